// The memory that ranks of one node share: one segment per rank, written as its owner sees fit and read by the others.
//
// A segment holds its owner's wake word, the two control rings between the owner and the node's leader, and the owner's
// data slots. **A slot belongs to its writer.** Its tag says which use it holds; each reader stores that tag into its
// own `released` cell when it has finished, and the writer refills a slot only after every reader of its last use has
// done so – whichever process set that use was for.
#pragma once

#include <pthread.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

namespace compat_hvd {

constexpr int kSlots = 4;
constexpr size_t kRingBytes = 64 << 10;

// A single-producer single-consumer ring of bytes; head and tail count bytes ever written and read.
struct Ring {
  alignas(64) std::atomic<uint64_t> written;
  alignas(64) std::atomic<uint64_t> read;
  alignas(64) char data[kRingBytes];
};

struct alignas(64) Cell {
  std::atomic<uint64_t> value;
};

struct SegmentHeader {
  uint64_t nonce;                 // tells the right segment from any other file
  pthread_mutex_t alive;          // robust, held by the owner's worker as long as it lives
  std::atomic<uint32_t> started;  // the worker holds `alive`
  alignas(64) std::atomic<uint32_t> wake;
  std::atomic<uint32_t> sleeping;
  Ring up;    // owner → leader
  Ring down;  // leader → owner
  Cell tags[kSlots];
};

// A view of one segment: the header, then released[slot][reader], then the slots.
class Segment {
 public:
  Segment() = default;
  Segment(char* base, int readers, size_t slot_bytes) : base_(base), readers_(readers), slot_bytes_(slot_bytes) {}

  static size_t bytes(int readers, size_t slot_bytes) { return data_offset(readers) + kSlots * slot_bytes; }
  SegmentHeader& header() const { return *reinterpret_cast<SegmentHeader*>(base_); }
  std::atomic<uint64_t>& tag(int slot) const { return header().tags[slot].value; }
  std::atomic<uint64_t>& released(int slot, int reader) const {
    return reinterpret_cast<Cell*>(base_ + sizeof(SegmentHeader))[slot * readers_ + reader].value;
  }
  char* slot(int index) const { return base_ + data_offset(readers_) + index * slot_bytes_; }
  size_t slot_bytes() const { return slot_bytes_; }

 private:
  static size_t data_offset(int readers) {
    const size_t cells = sizeof(SegmentHeader) + sizeof(Cell) * kSlots * readers;
    return (cells + 4095) / 4096 * 4096;
  }

  char* base_ = nullptr;
  int readers_ = 0;
  size_t slot_bytes_ = 0;
};

// The segments of the ranks of this node. Engines that are tested in one process share plain memory through the same
// class.
class NodeMemory {
 public:
  virtual ~NodeMemory() = default;

  const Segment& of(int rank) const { return segments_.at(rank).segment; }
  // The position of `rank` in each segment's list of readers.
  int reader_index(int rank) const { return segments_.at(rank).reader_index; }
  size_t slot_bytes() const { return segments_.begin()->second.segment.slot_bytes(); }
  // Makes the worker of `rank` look at its memory again.
  void wake(int rank) const;
  // True when the process of `rank` has ended without taking leave.
  virtual bool dead(int rank) = 0;

 protected:
  void insert(int rank, Segment segment, int reader_index) { segments_[rank] = {segment, reader_index}; }

 private:
  struct Item {
    Segment segment;
    int reader_index;
  };
  std::map<int, Item> segments_;
};

// Segments in files without a name (memfd), which the other ranks of the node open through /proc.
class SharedNodeMemory : public NodeMemory {
 public:
  // `readers` is the number of ranks that may read the segments, `slot_bytes` a multiple of 64.
  SharedNodeMemory(int readers, size_t slot_bytes) : readers_(readers), slot_bytes_(slot_bytes) {}
  ~SharedNodeMemory() override;

  // Makes this rank's own segment, with all its pages present. Returns its file descriptor or −errno.
  int create(int rank, int reader_index, uint64_t nonce);
  // Maps the segment of another rank. Returns 0 or an errno; EBADMSG when it is not the segment it should be.
  int attach(int rank, int reader_index, int64_t pid, int descriptor, uint64_t nonce);
  // Closes the descriptor of the own segment once everybody has attached, so that no child inherits it.
  void seal();
  bool dead(int rank) override;

 private:
  char* map(int descriptor);

  int readers_;
  size_t slot_bytes_;
  int descriptor_ = -1;
  std::vector<char*> mappings_;
};

}  // namespace compat_hvd

// Writing the own slots and reading those of others (see node_memory.h for the rule).
//
// A *use* is named by (sequence of the response, number within it). Both sides derive from it the slot and its tag, so
// that nothing has to be told. Tags grow in the order in which a writer uses its slots.
#pragma once

#include <cstdint>
#include <vector>

#include "byte_mover.h"
#include "node_memory.h"

namespace compat_hvd {

class Slots {
 public:
  Slots(NodeMemory* memory, int rank) : memory_(memory), rank_(rank), own_(memory->of(rank)) {}

  size_t bytes() const { return own_.slot_bytes(); }

  // The own slot for this use, nullptr while a reader or a transfer of its last use is not finished.
  char* acquire(uint64_t sequence, uint64_t use, ByteMover* mover);
  // Opens the slot's contents to `readers` (ranks of this node).
  void publish(uint64_t sequence, uint64_t use, const std::vector<int>& readers);
  // Keeps the slot until the transfer has completed.
  ByteMover::Transfer* add_transfer(uint64_t sequence, uint64_t use);
  // True when no transfer out of or into a slot is under way.
  bool transfers_done(ByteMover* mover);

  // The contents of that use in a slot of `writer`, nullptr while it has not been published.
  const char* read(int writer, uint64_t sequence, uint64_t use) const;
  // Gives the slot back to its writer.
  void release(int writer, uint64_t sequence, uint64_t use) const;

 private:
  struct LastUse {
    uint64_t tag = 0;
    std::vector<int> readers;
    std::vector<ByteMover::Transfer> transfers;
  };
  static int index(uint64_t sequence, uint64_t use) { return static_cast<int>((sequence + use) % kSlots); }
  static uint64_t tag(uint64_t sequence, uint64_t use) { return sequence << 28 | use; }
  bool finished(ByteMover* mover, LastUse* last) const;

  NodeMemory* memory_;
  int rank_;
  Segment own_;
  LastUse last_[kSlots];
};

}  // namespace compat_hvd

// Ordered frames over a pipe that takes and gives bytes as it can. Nothing here blocks: what does not fit waits in a
// queue.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "byte_mover.h"
#include "node_memory.h"

namespace compat_hvd {

// A stream of bytes in each direction.
class Pipe {
 public:
  virtual ~Pipe() = default;
  // Takes up to `size` bytes; returns how many.
  virtual size_t write(const char* data, size_t size) = 0;
  // Gives up to `size` bytes; returns how many.
  virtual size_t read(char* data, size_t size) = 0;
  // True when nothing that was written still depends on this process.
  virtual bool drained() = 0;
};

// Over two rings of shared memory; `far` is woken after each write.
class RingPipe : public Pipe {
 public:
  RingPipe(Ring* out, Ring* in, const NodeMemory* memory, int far) : out_(out), in_(in), memory_(memory), far_(far) {}
  size_t write(const char* data, size_t size) override;
  size_t read(char* data, size_t size) override;
  bool drained() override { return true; }

 private:
  Ring* out_;
  Ring* in_;
  const NodeMemory* memory_;
  int far_;
};

// Over messages of a fixed size that carry their length, because no status of a receive is ever read. A new receive is
// posted only when more is asked for: after the last frame none is left pending.
class MoverPipe : public Pipe {
 public:
  MoverPipe(ByteMover* mover, int far);
  size_t write(const char* data, size_t size) override;
  size_t read(char* data, size_t size) override;
  bool drained() override { return mover_->done(&sending_); }

 private:
  ByteMover* mover_;
  int far_;
  std::vector<char> outgoing_, incoming_;
  ByteMover::Transfer sending_, receiving_;
  size_t at_ = 0, available_ = 0;
  bool posted_ = false;
};

class Channel {
 public:
  explicit Channel(std::unique_ptr<Pipe> pipe) : pipe_(std::move(pipe)) {}
  void send(const std::string& frame);
  // Moves queued bytes into the pipe. Returns true when it moved some.
  bool flush();
  // Takes one frame if a whole one has arrived.
  bool receive(std::string* frame);
  bool drained() { return outgoing_.size() == sent_ && pipe_->drained(); }

 private:
  std::unique_ptr<Pipe> pipe_;
  std::string outgoing_, incoming_;
  size_t sent_ = 0, taken_ = 0;
};

}  // namespace compat_hvd

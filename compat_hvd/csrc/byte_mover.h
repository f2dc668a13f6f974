// Moves bytes between ranks of different nodes. The engine knows nothing else of MPI.
#pragma once

#include <cstddef>
#include <cstdint>

namespace compat_hvd {

class ByteMover {
 public:
  // A transfer under way. Eight opaque bytes: an MPI_Request is four in MPICH and eight in Open MPI.
  struct Transfer {
    uint64_t bits = 0;
    bool active = false;
  };

  virtual ~ByteMover() = default;
  // `bytes` fits an int; messages between two ranks with one tag arrive in the order they were sent.
  virtual void send(int rank, int tag, const void* data, size_t bytes, Transfer* transfer) = 0;
  virtual void receive(int rank, int tag, void* data, size_t bytes, Transfer* transfer) = 0;
  // True once the transfer has completed (also for one that was never started). Never blocks.
  virtual bool done(Transfer* transfer) = 0;
};

constexpr int kControlTag = 0;

}  // namespace compat_hvd

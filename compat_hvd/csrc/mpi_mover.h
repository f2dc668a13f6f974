// The byte mover on the MPI that mpi4py loaded, called through function addresses.
//
// Handles travel as uintptr_t: MPICH's are ints and Open MPI's are pointers, and the calling conventions of x86-64 and
// aarch64 pass both alike. A status is never read, only given room; receives name their source.
#pragma once

#include <cstdint>

#include "byte_mover.h"

namespace compat_hvd {

struct MpiFunctions {
  using Isend = int (*)(const void*, int, uintptr_t type, int destination, int tag, uintptr_t comm, uint64_t* request);
  using Irecv = int (*)(void*, int, uintptr_t type, int source, int tag, uintptr_t comm, uint64_t* request);
  using Test = int (*)(uint64_t* request, int* flag, void* status);
  using Abort = int (*)(uintptr_t comm, int status);

  Isend isend = nullptr;
  Irecv irecv = nullptr;
  Test test = nullptr;
  Abort abort = nullptr;
  uintptr_t comm = 0;
  uintptr_t byte = 0;
};

class MpiMover : public ByteMover {
 public:
  explicit MpiMover(const MpiFunctions& mpi) : mpi_(mpi) {}
  void send(int rank, int tag, const void* data, size_t bytes, Transfer* transfer) override;
  void receive(int rank, int tag, void* data, size_t bytes, Transfer* transfer) override;
  bool done(Transfer* transfer) override;

 private:
  MpiFunctions mpi_;
};

}  // namespace compat_hvd

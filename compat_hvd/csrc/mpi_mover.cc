#include "mpi_mover.h"

#include <stdexcept>
#include <string>

namespace compat_hvd {
namespace {

void check(int error, const char* function) {
  if (error != 0) throw std::runtime_error(std::string(function) + " failed with MPI error " + std::to_string(error));
}

}  // namespace

void MpiMover::send(int rank, int tag, const void* data, size_t bytes, Transfer* transfer) {
  check(mpi_.isend(data, static_cast<int>(bytes), mpi_.byte, rank, tag, mpi_.comm, &transfer->bits), "MPI_Isend");
  transfer->active = true;
}

void MpiMover::receive(int rank, int tag, void* data, size_t bytes, Transfer* transfer) {
  check(mpi_.irecv(data, static_cast<int>(bytes), mpi_.byte, rank, tag, mpi_.comm, &transfer->bits), "MPI_Irecv");
  transfer->active = true;
}

bool MpiMover::done(Transfer* transfer) {
  if (!transfer->active) return true;
  alignas(64) char status[256];
  int flag = 0;
  check(mpi_.test(&transfer->bits, &flag, status), "MPI_Test");
  if (flag) transfer->active = false;
  return flag != 0;
}

}  // namespace compat_hvd

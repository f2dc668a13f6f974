#include "node_memory.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "futex.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

namespace compat_hvd {

void NodeMemory::wake(int rank) const {
  // Pairs with the worker, which sets `sleeping` and then looks once more: one of the two sees the other's store.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  SegmentHeader& header = of(rank).header();
  if (!header.sleeping.load(std::memory_order_relaxed)) return;
  header.wake.fetch_add(1, std::memory_order_relaxed);
  futex_wake(&header.wake);
}

SharedNodeMemory::~SharedNodeMemory() {
  seal();
  for (char* base : mappings_) munmap(base, Segment::bytes(readers_, slot_bytes_));
}

char* SharedNodeMemory::map(int descriptor) {
  void* base = mmap(nullptr, Segment::bytes(readers_, slot_bytes_), PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  if (base == MAP_FAILED) return nullptr;
  mappings_.push_back(static_cast<char*>(base));
  return mappings_.back();
}

int SharedNodeMemory::create(int rank, int reader_index, uint64_t nonce) {
  const size_t bytes = Segment::bytes(readers_, slot_bytes_);
  descriptor_ = memfd_create("compat_hvd", MFD_CLOEXEC);
  if (descriptor_ < 0 || ftruncate(descriptor_, static_cast<off_t>(bytes)) != 0) return -errno;
  char* base = map(descriptor_);
  if (!base) return -errno;
  // Reports lack of memory here instead of as a SIGBUS later. EINVAL: a kernel before 5.14, which does without.
  if (madvise(base, bytes, MADV_POPULATE_WRITE) != 0 && errno != EINVAL) return -errno;
  Segment segment(base, readers_, slot_bytes_);
  pthread_mutexattr_t attributes;
  pthread_mutexattr_init(&attributes);
  pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
  pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
  pthread_mutex_init(&segment.header().alive, &attributes);
  pthread_mutexattr_destroy(&attributes);
  segment.header().nonce = nonce;
  insert(rank, segment, reader_index);
  return descriptor_;
}

int SharedNodeMemory::attach(int rank, int reader_index, int64_t pid, int descriptor, uint64_t nonce) {
  char path[64];
  snprintf(path, sizeof path, "/proc/%lld/fd/%d", static_cast<long long>(pid), descriptor);
  // In another namespace of processes the same number may be any file: look before opening, since opening a device or a
  // FIFO can have effects of its own.
  struct stat found;
  if (stat(path, &found) != 0) return errno;
  if (!S_ISREG(found.st_mode) || static_cast<size_t>(found.st_size) != Segment::bytes(readers_, slot_bytes_))
    return EBADMSG;
  const int opened = open(path, O_RDWR | O_CLOEXEC);
  if (opened < 0) return errno;
  char* base = map(opened);
  const int error = errno;
  close(opened);
  if (!base) return error;
  Segment segment(base, readers_, slot_bytes_);
  if (segment.header().nonce != nonce) return EBADMSG;
  insert(rank, segment, reader_index);
  return 0;
}

void SharedNodeMemory::seal() {
  if (descriptor_ >= 0) close(descriptor_);
  descriptor_ = -1;
}

bool SharedNodeMemory::dead(int rank) {
  SegmentHeader& header = of(rank).header();
  if (!header.started.load(std::memory_order_acquire)) return false;
  const int result = pthread_mutex_trylock(&header.alive);
  if (result == 0) {  // given back in an orderly way
    pthread_mutex_unlock(&header.alive);
    return false;
  }
  // Unlocking without making it consistent leaves ENOTRECOVERABLE for whoever looks next.
  if (result == EOWNERDEAD) pthread_mutex_unlock(&header.alive);
  return result == EOWNERDEAD || result == ENOTRECOVERABLE;
}

}  // namespace compat_hvd

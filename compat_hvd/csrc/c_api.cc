// The functions that compat_hvd/common/native.py calls.
#include <cstring>
#include <memory>
#include <string>

#include "blocking.h"
#include "runtime.h"

using namespace compat_hvd;

namespace {

thread_local std::string last_error;

int64_t nanoseconds(double seconds) { return static_cast<int64_t>(seconds * 1e9); }

std::unique_ptr<SharedNodeMemory>& memory_to_be() {
  static auto* memory = new std::unique_ptr<SharedNodeMemory>;
  return *memory;
}

// What allgather_bytes has gathered for this thread, until it asks for more.
struct Gathered {
  std::string bytes;
  std::vector<int64_t> sizes;
};
thread_local Gathered gathered;

// Returns the code and remembers the message.
int32_t outcome(const Status& status) {
  last_error = status.message;
  return static_cast<int32_t>(status.code);
}

}  // namespace

extern "C" {

// Mirrored by native.StartArguments.
struct compat_hvd_start_arguments {
  int32_t rank;
  int32_t size;
  const int32_t* node_of;
  int32_t local_rank;
  int32_t local_size;
  int32_t process_sets;  // beside the world
  const int32_t* process_set_sizes;
  const int32_t* process_set_ranks;  // one set after the other
  int64_t fusion_threshold;
  int64_t cache_capacity;
  double stall_warning;   // seconds; 0: off
  double stall_limit;     // seconds; 0: never
  double deadlock_limit;  // seconds; 0: off
  const char* timeline;   // path; nullptr: off
  int32_t mark_cycles;
  uint64_t mpi_isend;  // addresses of functions and raw handles; 0 in a world without MPI
  uint64_t mpi_irecv;
  uint64_t mpi_test;
  uint64_t mpi_abort;
  uint64_t mpi_comm;
  uint64_t mpi_byte;
};

const char* compat_hvd_last_error() { return last_error.c_str(); }

// Makes this rank's segment for `readers` ranks of its host. Returns its file descriptor or a negative errno.
int32_t compat_hvd_create_segment(int32_t rank, int32_t readers, int32_t reader_index, int64_t slot_bytes,
                                  uint64_t nonce) {
  memory_to_be() = std::make_unique<SharedNodeMemory>(readers, static_cast<size_t>(slot_bytes));
  return memory_to_be()->create(rank, reader_index, nonce);
}

// Maps the segment of another rank. Returns 0 or an errno.
int32_t compat_hvd_attach_segment(int32_t rank, int32_t reader_index, int64_t pid, int32_t descriptor, uint64_t nonce) {
  return memory_to_be()->attach(rank, reader_index, pid, descriptor, nonce);
}

// Starts the engine. All ranks have attached. Returns 0, or −1 and sets the last error.
int32_t compat_hvd_start(const compat_hvd_start_arguments* a) try {
  RuntimeConfig config;
  config.rank = a->rank;
  config.node_of.assign(a->node_of, a->node_of + a->size);
  config.local_rank = a->local_rank;
  config.local_size = a->local_size;
  const int32_t* ranks = a->process_set_ranks;
  for (int32_t i = 0; i < a->process_sets; ++i) {
    config.process_sets.emplace_back(ranks, ranks + a->process_set_sizes[i]);
    ranks += a->process_set_sizes[i];
  }
  config.coordinator.fusion_threshold = static_cast<size_t>(a->fusion_threshold);
  config.coordinator.cache_capacity = static_cast<size_t>(a->cache_capacity);
  config.coordinator.stall = {nanoseconds(a->stall_warning), nanoseconds(a->stall_limit),
                              nanoseconds(a->deadlock_limit)};
  if (a->timeline) config.timeline.path = a->timeline;
  config.timeline.mark_responses = a->mark_cycles != 0;
  config.mpi.isend = reinterpret_cast<MpiFunctions::Isend>(a->mpi_isend);
  config.mpi.irecv = reinterpret_cast<MpiFunctions::Irecv>(a->mpi_irecv);
  config.mpi.test = reinterpret_cast<MpiFunctions::Test>(a->mpi_test);
  config.mpi.abort = reinterpret_cast<MpiFunctions::Abort>(a->mpi_abort);
  config.mpi.comm = a->mpi_comm;
  config.mpi.byte = a->mpi_byte;
  memory_to_be()->seal();
  Runtime::start(std::move(config), std::move(memory_to_be()));
  return 0;
} catch (const std::exception& error) {
  last_error = error.what();
  return -1;
}

int32_t compat_hvd_running() { return Runtime::current() != nullptr; }

// See Runtime::goodbye. Does nothing when the engine does not run here.
void compat_hvd_goodbye() {
  if (auto runtime = Runtime::current()) runtime->goodbye();
}

// See Runtime::fail.
void compat_hvd_fail(const char* text) {
  if (auto runtime = Runtime::current()) runtime->fail(text);
}

// Writes rank 0's timeline to `path` from now on; does nothing on other ranks.
void compat_hvd_start_timeline(const char* path, int32_t mark_cycles) {
  TimelineOptions options;
  options.path = path;
  options.mark_responses = mark_cycles != 0;
  if (auto runtime = Runtime::current()) runtime->start_timeline(options);
}

// Returns when the file is complete.
void compat_hvd_stop_timeline() {
  if (auto runtime = Runtime::current()) runtime->stop_timeline();
}

// The following wait for the other members. They return a code of status.h; the message is the last error.

int32_t compat_hvd_broadcast_bytes(const char* name, int32_t process_set, int32_t root, char* data, int64_t size) {
  return outcome(broadcast_bytes(name, process_set, root, data, static_cast<size_t>(size)));
}

// `bytes` and `sizes` (one for each member) are valid until this thread calls the function again.
int32_t compat_hvd_allgather_bytes(const char* name, int32_t process_set, const char* data, int64_t size,
                                   const char** bytes, const int64_t** sizes, int32_t* members) {
  gathered = {};
  const int32_t code =
      outcome(allgather_bytes(name, process_set, data, static_cast<size_t>(size), &gathered.bytes, &gathered.sizes));
  *bytes = gathered.bytes.data();
  *sizes = gathered.sizes.data();
  *members = static_cast<int32_t>(gathered.sizes.size());
  return code;
}

// Registers a process set of the given ranks; `id` receives its id.
int32_t compat_hvd_add_process_set(const int64_t* ranks, int32_t count, int64_t* id) {
  std::vector<int64_t> results;
  const int32_t code = outcome(change_process_sets(Collective::kAddProcessSet, {ranks, ranks + count}, &results));
  if (!results.empty()) *id = results[0];
  return code;
}

int32_t compat_hvd_remove_process_set(int64_t id) {
  return outcome(change_process_sets(Collective::kRemoveProcessSet, {id}, nullptr));
}

}  // extern "C"

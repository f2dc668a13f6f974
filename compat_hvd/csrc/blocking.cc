#include "blocking.h"

#include <condition_variable>
#include <memory>
#include <mutex>

#include "runtime.h"

namespace compat_hvd {
namespace {

std::unique_ptr<Entry> entry_of_bytes(const std::string& name, int process_set, Collective collective, const char* data,
                                      size_t size) {
  auto entry = std::make_unique<Entry>();
  entry->request.name = name;
  entry->request.process_set = process_set;
  entry->request.collective = collective;
  entry->request.dtype = DataType::kUint8;
  entry->request.shape = {static_cast<int64_t>(size)};
  entry->input = data;
  return entry;
}

}  // namespace

Status run_blocking(std::unique_ptr<Entry> entry, std::vector<int64_t>* results) {
  auto runtime = Runtime::current();
  if (!runtime) return Status::failed_precondition("Horovod has not been initialized; use hvd.init().");
  std::mutex mutex;
  std::condition_variable finished;
  bool done = false;
  Status outcome;
  Entry* raw = entry.get();
  entry->done = [&, raw](const Status& status) {
    std::lock_guard<std::mutex> lock(mutex);
    if (results) *results = raw->results;
    outcome = status;
    done = true;
    finished.notify_one();  // under the lock: the waiter's stack holds all of this
  };
  runtime->submit(std::move(entry));
  std::unique_lock<std::mutex> lock(mutex);
  finished.wait(lock, [&] { return done; });
  return outcome;
}

Status broadcast_bytes(const std::string& name, int process_set, int root, char* data, size_t size) {
  auto entry = entry_of_bytes(name, process_set, Collective::kBroadcast, data, size);
  entry->request.root = root;
  entry->output = data;
  return run_blocking(std::move(entry));
}

Status allgather_bytes(const std::string& name, int process_set, const char* data, size_t size, std::string* gathered,
                       std::vector<int64_t>* sizes) {
  auto entry = entry_of_bytes(name, process_set, Collective::kAllgather, data, size);
  entry->allocate = [gathered](int64_t bytes) {
    gathered->resize(static_cast<size_t>(bytes));
    return gathered->data();
  };
  return run_blocking(std::move(entry), sizes);
}

Status change_process_sets(Collective collective, const std::vector<int64_t>& sizes, std::vector<int64_t>* results) {
  auto entry = entry_of_bytes("process_sets", 0, collective, nullptr, 0);
  entry->request.sizes = sizes;
  return run_blocking(std::move(entry), results);
}

}  // namespace compat_hvd

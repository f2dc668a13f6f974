#include "completion.h"

#include "thread.h"

namespace compat_hvd {
namespace {

constexpr auto kPatience = std::chrono::milliseconds(5);
constexpr auto kIdleLife = std::chrono::seconds(10);

}  // namespace

Completion& Completion::instance() {
  static Completion* pool = new Completion;
  return *pool;
}

void Completion::post(std::unique_ptr<Entry> entry, const Status& status) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    items_.push_back({std::move(entry), status, Clock::now()});
    if (threads_ == 0) add_thread();
  }
  posted_.notify_one();
}

bool Completion::relieve() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (items_.empty()) return false;
  if (idle_ == 0 && Clock::now() - items_.front().since > kPatience) add_thread();
  return true;
}

void Completion::add_thread() {
  ++threads_;
  start_thread([this] { run(); }).detach();
}

void Completion::run() {
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    ++idle_;
    const bool found = posted_.wait_for(lock, kIdleLife, [this] { return !items_.empty(); });
    --idle_;
    if (!found) {
      if (threads_ == 1) continue;
      --threads_;
      return;
    }
    Item item = std::move(items_.front());
    items_.pop_front();
    lock.unlock();
    item.entry->done(item.status);
    item.entry.reset();
    lock.lock();
  }
}

}  // namespace compat_hvd

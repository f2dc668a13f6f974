// Calls done for finished entries, on threads that nothing of the engine waits for.
//
// A done may run the rest of the user's graph on the thread that calls it (inter_op_parallelism_threads = -1),
// including a py_func that itself waits for a collective. So one thread normally does the work, and another one joins
// when entries have waited while all threads were held up.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>

#include "entry.h"

namespace compat_hvd {

class Completion {
 public:
  // The pool of this process, never destroyed.
  static Completion& instance();

  void post(std::unique_ptr<Entry> entry, const Status& status);
  // Adds a thread when entries have waited for too long. Returns true while any wait at all.
  bool relieve();

 private:
  using Clock = std::chrono::steady_clock;
  struct Item {
    std::unique_ptr<Entry> entry;
    Status status;
    Clock::time_point since;
  };
  void add_thread();
  void run();

  std::mutex mutex_;
  std::condition_variable posted_;
  std::deque<Item> items_;
  int threads_ = 0, idle_ = 0;
};

}  // namespace compat_hvd

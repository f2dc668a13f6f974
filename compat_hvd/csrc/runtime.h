// The engine of this process with its worker thread: what init() starts and shutdown() or the exit of the interpreter
// ends.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <memory>
#include <thread>

#include "engine.h"
#include "mpi_mover.h"

namespace compat_hvd {

struct RuntimeConfig {
  int rank = 0;
  std::vector<int> node_of;  // of each rank: ranks with equal numbers share memory
  int local_rank = 0;        // among the ranks of this host, as users see it
  int local_size = 1;
  std::vector<std::vector<int>> process_sets;
  CoordinatorOptions coordinator;
  TimelineOptions timeline;  // no path: off. Rank 0 only
  MpiFunctions mpi;
};

class Runtime {
 public:
  // nullptr before init, after shutdown and in a forked child: there, no worker runs.
  static std::shared_ptr<Runtime> current();
  static void start(RuntimeConfig config, std::unique_ptr<SharedNodeMemory> memory);

  Runtime(RuntimeConfig config, std::unique_ptr<SharedNodeMemory> memory);

  void submit(std::unique_ptr<Entry> entry) { engine_.submit(std::move(entry)); }
  // The end of a rank that has no complaint: returns when all ranks have come to theirs. Never returns if the job fails
  // meanwhile.
  void goodbye();
  // The end of a rank with an uncaught exception: tells the others, aborts the job and ends the process. Never returns.
  void fail(const std::string& text);

  // Only rank 0 has a timeline: the other ranks see too little.
  void start_timeline(const TimelineOptions& options) {
    if (engine_.topology().is_coordinator()) engine_.timeline().start(options);
  }
  void stop_timeline() { engine_.timeline().stop(); }

  const Engine& engine() const { return engine_; }
  const RuntimeConfig& config() const { return config_; }

 private:
  void work();
  void rest();
  void sleep();
  int64_t sleep_time() const;
  void attend_to_fatal();
  [[noreturn]] void abort();

  RuntimeConfig config_;
  std::unique_ptr<SharedNodeMemory> memory_;
  MpiMover mover_;
  Engine engine_;
  SegmentHeader& own_;
  pid_t pid_;
  std::thread worker_;
  int64_t idle_since_ = 0, fatal_since_ = 0;
  bool crowded_;
};

}  // namespace compat_hvd

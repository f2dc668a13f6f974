// One rank's engine: submit → negotiate → execute → done.
//
// `step()` advances everything by what can be done now and never blocks: it looks at local submissions, control
// messages, the execution under way, deaths and clocks. One thread calls it (the worker, or a test that steps many
// engines in turn); submit, goodbye and fail may be called from any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "control_plane.h"
#include "coordinator.h"
#include "entry.h"
#include "execution.h"

namespace compat_hvd {

struct EngineOptions {
  CoordinatorOptions coordinator;
  std::function<int64_t()> now;    // nanoseconds of a clock that does not jump
  std::function<int64_t()> usage;  // nanoseconds of processor time that this process has used beyond its worker
  // Hands a finished entry over to whoever calls its done.
  std::function<void(std::unique_ptr<Entry>, const Status&)> complete;
  // The process sets beside the world (which has id 0).
  std::vector<std::vector<int>> process_sets;
};

class Engine {
 public:
  Engine(Topology topology, NodeMemory* memory, ByteMover* mover, EngineOptions options);

  void submit(std::unique_ptr<Entry> entry);
  // This rank ends normally: it submits nothing more, and goes on serving the others until all have said so.
  void goodbye();
  // This rank ends because of an uncaught exception.
  void fail(const std::string& text);

  bool step();
  // Gives up because of an error in the engine itself.
  void panic(const std::string& what) { report(topology_.rank(), "met an internal error: " + what); }
  // True when there is nothing left to do for anybody: all ranks have said goodbye.
  bool stopped();
  // The error after which nothing can be communicated any more; ok as long as there is none.
  Status fatal() const;
  bool has_fatal() const { return has_fatal_.load(std::memory_order_acquire); }
  // Entries that are not done.
  size_t pending() const { return table_.size() + executing_ + later_joins_.size(); }
  // True when a transfer between nodes may complete without anybody waking this rank.
  bool must_poll() const { return control_.crosses_nodes() || (execution_ && topology_.nodes() > 1); }

  const Topology& topology() const { return topology_; }
  const ProcessSetTable& process_sets() const { return sets_; }
  // Shows what rank 0 sees; stays off on the others.
  Timeline& timeline() { return timeline_; }

 private:
  struct Cached {
    uint32_t id = 0;
    Request signature;
  };

  struct CachedName {
    int process_set;
    std::string name;
  };

  bool take_inbox();
  void announce(std::unique_ptr<Entry> entry);
  std::unique_ptr<Entry> take_pending();
  void join_again();
  void receive(const DownMessage& message);
  void refuse(const DownMessage& message);
  void enqueue(const DownMessage& message);
  void update_cache(const DownMessage& message, const ExecuteItem& item, const Request& request);
  void update_sets(Collective collective, const ExecuteItem& item);
  bool coordinate();
  bool execute();
  void show_execution();
  void finish_response();
  void watch(int64_t now);
  void report(int rank, const std::string& how);
  void die(const Status& status);
  void send(UpMessage message);

  Topology topology_;
  ProcessSetTable sets_;
  NodeMemory* memory_;
  EngineOptions options_;
  Timeline timeline_;
  ControlPlane control_;
  std::unique_ptr<Coordinator> coordinator_;  // rank 0 only
  Slots slots_;
  DataPlane plane_;

  mutable std::mutex mutex_;  // guards the inbox, closed_ and fatal_
  std::vector<std::unique_ptr<Entry>> inbox_;
  std::vector<UpMessage> farewells_;
  Status closed_;  // why nothing more is accepted
  Status fatal_;
  std::atomic<bool> has_inbox_{false}, has_fatal_{false};

  TensorTable table_;
  bool joining_ = false;                            // a join is in flight
  std::deque<std::unique_ptr<Entry>> later_joins_;  // each waits until the one before it is done
  std::unordered_map<std::string, Cached> cache_;
  std::unordered_map<uint32_t, CachedName> cached_names_;
  std::deque<Response> responses_;  // the first one is being executed
  std::unique_ptr<Execution> execution_;
  Status execution_error_;
  size_t executing_ = 0;
  uint64_t last_sequence_ = 0, told_sequence_ = 0;
  uint64_t completed_ = 0;
  bool all_gone_ = false;
  int64_t next_watch_ = 0, next_heartbeat_ = 0;
};

}  // namespace compat_hvd

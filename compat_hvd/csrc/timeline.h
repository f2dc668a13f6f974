// What rank 0 sees of every collective, as events for chrome://tracing (see docs/timeline.md).
//
// Each tensor of each process set has a track with two lanes, because the others may negotiate a tensor again while
// rank 0 still executes it. A *phase* is a pair of events, begin and end. It is written to the file that is open when
// it begins; a file that ends while a phase is under way ends the phase with it. So in every file phases nest and each
// has its end, and no phase is in two files.
//
// The worker calls all but start and stop, which any thread may call. While the timeline is off a call costs one load.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "message.h"
#include "timeline_file.h"

namespace compat_hvd {

struct TimelineOptions {
  std::string path;
  bool mark_responses = false;
  size_t limit = 64 << 20;  // bytes that may wait for the disk; beyond, no phases are begun
};

// What an execution does, in the words of Horovod's timelines.
namespace activity {
constexpr const char* kQueue = "QUEUE";
constexpr const char* kAllocateOutput = "ALLOCATE_OUTPUT";
constexpr const char* kCopyOwn = "COPY_OWN_PART";
constexpr const char* kPack = "MEMCPY_IN_FUSION_BUFFER";
constexpr const char* kUnpack = "MEMCPY_OUT_FUSION_BUFFER";
// Moving and reducing on one node, or between several.
const char* communication(Collective collective, bool several_nodes);
}  // namespace activity

class Timeline {
 public:
  ~Timeline() { stop(); }

  // Goes on in a new file; does nothing when it is being written already. Returns false after a warning when the file
  // cannot be had; what was written before then goes on.
  bool start(const TimelineOptions& options);
  // Returns when the file is complete.
  void stop();
  bool on() const { return on_.load(std::memory_order_relaxed); }

  // The negotiation of a tensor, from the first rank's submission to the response or the error.
  void begin_negotiation(const Request& request) {
    if (on()) write_begin_negotiation(request);
  }
  void rank_ready(const Request& request, int rank) {
    if (on()) write_rank_ready(request, rank);
  }
  void end_negotiation(int process_set, const std::string& key, const Status& status) {
    if (on()) write_end_negotiation(process_set, key, status);
  }
  void mark_response() {
    if (on()) write_mark();
  }

  // The execution on this rank, from the response to the end. Between, one response at a time is `executed`, and its
  // entries pass from one activity to the next; nullptr is none.
  void begin_execution(const Request& request) {
    if (on()) write_begin_execution(request);
  }
  void execute(const std::vector<const Request*>& requests);
  void activity(const char* name) {
    if (on()) write_activity(name);
  }
  void end_execution(const Request& request, const Status& status) {
    if (on()) write_end_execution(request, status);
  }

 private:
  enum Lane { kNegotiation = 0, kExecution = 1 };
  struct Track {
    int number;
    int depth[2] = {0, 0};  // phases under way, by lane
    bool idle() const { return depth[kNegotiation] + depth[kExecution] == 0; }
  };

  void write_begin_negotiation(const Request& request);
  void write_rank_ready(const Request& request, int rank);
  void write_end_negotiation(int process_set, const std::string& key, const Status& status);
  void write_mark();
  void write_begin_execution(const Request& request);
  void write_activity(const char* name);
  void write_end_execution(const Request& request, const Status& status);

  Track* find(int process_set, const std::string& key);
  Track* track(const Request& request);  // makes it when there is none
  void name_track(const Track& track, const Request& request);
  void begin(Track* track, Lane lane, const std::string& name);
  void end(Track* track, Lane lane, const std::string& arguments);
  void end_all();
  bool room();
  void note_losses();

  std::mutex control_;  // one start or stop at a time
  std::mutex mutex_;    // guards what follows; never held while the disk is waited for
  std::atomic<bool> on_{false};
  std::unique_ptr<TimelineFile> file_;
  bool mark_responses_ = false;
  int64_t epoch_ = 0;  // what times are counted from
  std::unordered_map<std::string, Track> tracks_;
  int last_track_ = 0;
  std::vector<Track*> executing_;
  const char* activity_ = nullptr;  // of what is being executed
  uint64_t lost_ = 0;               // phases and marks that there was no room for, since the last note of it
};

}  // namespace compat_hvd

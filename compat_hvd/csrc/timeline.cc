#include "timeline.h"

#include <algorithm>
#include <cctype>
#include <chrono>
#include <cstring>

#include "json.h"

namespace compat_hvd {
namespace {

// Beyond so many names, those at rest are forgotten; they get a new track when they come again.
constexpr size_t kTracks = 1 << 16;

int64_t microseconds(std::chrono::nanoseconds time) { return time.count() / 1000; }
int64_t now() { return microseconds(std::chrono::steady_clock::now().time_since_epoch()); }

std::string upper(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return std::toupper(c); });
  return text;
}

std::string phase_of(const Request& request) {
  if (request.collective == Collective::kAllreduce && request.op == ReduceOp::kAdasum) return "ADASUM";
  return upper(name_of(request.collective));
}

std::string key_of(int set, const std::string& key) { return std::to_string(set) + ':' + key; }

// `more` are further members of the object, each behind a comma.
std::string event(char kind, int track, int lane, int64_t time, const std::string& more) {
  return std::string("{\"ph\":\"") + kind + "\",\"ts\":" + std::to_string(time) + ",\"pid\":" + std::to_string(track) +
         ",\"tid\":" + std::to_string(lane) + more + '}';
}

std::string metadata(const char* what, int track, int lane, const std::string& arguments) {
  return std::string("{\"ph\":\"M\",\"name\":\"") + what + "\",\"pid\":" + std::to_string(track) +
         ",\"tid\":" + std::to_string(lane) + ",\"args\":{" + arguments + "}}";
}

std::string named(const std::string& name) { return ",\"name\":" + json_string(name); }

std::string error_text(const Status& status) {
  return status.ok() ? "" : ",\"args\":{\"error\":" + json_string(status.message) + '}';
}

std::string header() {
  const auto since_epoch = std::chrono::system_clock::now().time_since_epoch();
  return metadata("process_name", 0, 0,
                  "\"name\":\"compat_hvd\",\"start_time_since_epoch_in_micros\":" +
                      std::to_string(microseconds(since_epoch))) +
         ",\n" + metadata("process_sort_index", 0, 0, "\"sort_index\":0");
}

}  // namespace

const char* activity::communication(Collective collective, bool several_nodes) {
  switch (collective) {
    case Collective::kAllreduce:
      return several_nodes ? "MPI_ALLREDUCE" : "SHM_ALLREDUCE";
    case Collective::kAllgather:
      return several_nodes ? "MPI_ALLGATHER" : "SHM_ALLGATHER";
    case Collective::kBroadcast:
      return several_nodes ? "MPI_BCAST" : "SHM_BCAST";
    case Collective::kAlltoall:
      return several_nodes ? "MPI_ALLTOALL" : "SHM_ALLTOALL";
    case Collective::kReducescatter:
      return several_nodes ? "MPI_REDUCESCATTER" : "SHM_REDUCESCATTER";
    default:
      return nullptr;
  }
}

// ---- Files ----

// In both, the old file is destroyed, and so written to its end, after `lock` is released.

bool Timeline::start(const TimelineOptions& options) {
  std::lock_guard<std::mutex> control(control_);
  std::unique_ptr<TimelineFile> last, next;
  if (!file_ || !file_->is_at(options.path)) {
    next = TimelineFile::open(options.path, header(), options.limit);
    if (!next) return false;
  }
  std::lock_guard<std::mutex> lock(mutex_);
  mark_responses_ = options.mark_responses;
  if (!next) return true;
  end_all();
  last.swap(file_);
  file_.swap(next);
  epoch_ = now();
  last_track_ = 0;
  on_.store(true, std::memory_order_relaxed);
  return true;
}

void Timeline::stop() {
  std::lock_guard<std::mutex> control(control_);
  std::unique_ptr<TimelineFile> last;
  std::lock_guard<std::mutex> lock(mutex_);
  on_.store(false, std::memory_order_relaxed);
  end_all();
  last.swap(file_);
}

void Timeline::end_all() {
  for (auto& [key, track] : tracks_) {
    for (Lane lane : {kNegotiation, kExecution}) {
      while (track.depth[lane] > 0) end(&track, lane, ",\"args\":{\"unfinished\":true}");
    }
  }
  if (lost_ > 0) note_losses();
  tracks_.clear();
  executing_.clear();
  activity_ = nullptr;
}

// ---- Negotiation ----

void Timeline::write_begin_negotiation(const Request& request) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (room()) begin(track(request), kNegotiation, "NEGOTIATE_" + phase_of(request));
}

void Timeline::write_rank_ready(const Request& request, int rank) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (!room()) return;
  const std::string more = named(std::to_string(rank)) + ",\"dur\":0";
  file_->append(event('X', track(request)->number, kNegotiation, now() - epoch_, more));
}

void Timeline::write_end_negotiation(int process_set, const std::string& key, const Status& status) {
  std::lock_guard<std::mutex> lock(mutex_);
  Track* track = find(process_set, key);
  if (track && track->depth[kNegotiation] > 0) end(track, kNegotiation, error_text(status));
}

void Timeline::write_mark() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (mark_responses_ && room()) file_->append(event('i', 0, 0, now() - epoch_, named("CYCLE_START") + ",\"s\":\"g\""));
}

// ---- Execution ----

void Timeline::write_begin_execution(const Request& request) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (!room()) return;
  Track* own = track(request);
  begin(own, kExecution, phase_of(request));
  begin(own, kExecution, activity::kQueue);
}

void Timeline::execute(const std::vector<const Request*>& requests) {
  std::lock_guard<std::mutex> lock(mutex_);
  executing_.clear();
  activity_ = activity::kQueue;
  for (const Request* request : requests) {
    Track* track = find(request->process_set, request->key());
    if (track && track->depth[kExecution] > 0) executing_.push_back(track);
  }
}

void Timeline::write_activity(const char* name) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (name == activity_) return;
  activity_ = name;
  const bool begins = name && room();
  for (Track* track : executing_) {
    if (track->depth[kExecution] > 1) end(track, kExecution, "");
    if (begins) begin(track, kExecution, name);
  }
}

void Timeline::write_end_execution(const Request& request, const Status& status) {
  std::lock_guard<std::mutex> lock(mutex_);
  executing_.clear();
  activity_ = nullptr;
  Track* track = find(request.process_set, request.key());
  if (!track || track->depth[kExecution] == 0) return;
  while (track->depth[kExecution] > 1) end(track, kExecution, "");
  std::string arguments = ",\"args\":{\"dtype\":" + json_string(name_of(request.dtype)) +
                          ",\"shape\":" + json_string(shape_text(request.shape));
  if (!status.ok()) arguments += ",\"error\":" + json_string(status.message);
  end(track, kExecution, arguments + '}');
}

// ---- Tracks and events ----

Timeline::Track* Timeline::find(int process_set, const std::string& key) {
  auto at = tracks_.find(key_of(process_set, key));
  return at == tracks_.end() ? nullptr : &at->second;
}

Timeline::Track* Timeline::track(const Request& request) {
  const std::string key = request.key();
  if (Track* known = find(request.process_set, key)) return known;
  if (tracks_.size() >= kTracks) {
    for (auto at = tracks_.begin(); at != tracks_.end();) at = at->second.idle() ? tracks_.erase(at) : std::next(at);
  }
  Track& fresh = tracks_[key_of(request.process_set, key)];
  fresh.number = ++last_track_;
  name_track(fresh, request);
  return &fresh;
}

void Timeline::name_track(const Track& track, const Request& request) {
  file_->append(metadata("process_name", track.number, 0, "\"name\":" + json_string(request.name)));
  file_->append(metadata("process_sort_index", track.number, 0, "\"sort_index\":" + std::to_string(track.number)));
  file_->append(metadata("thread_name", track.number, kNegotiation, "\"name\":\"negotiation\""));
  file_->append(metadata("thread_name", track.number, kExecution, "\"name\":\"execution\""));
  if (request.process_set == 0) return;
  const std::string label = "process set " + std::to_string(request.process_set);
  file_->append(metadata("process_labels", track.number, 0, "\"labels\":" + json_string(label)));
}

void Timeline::begin(Track* track, Lane lane, const std::string& name) {
  ++track->depth[lane];
  file_->append(event('B', track->number, lane, now() - epoch_, named(name)));
}

void Timeline::end(Track* track, Lane lane, const std::string& arguments) {
  --track->depth[lane];
  file_->append(event('E', track->number, lane, now() - epoch_, arguments));
}

// Whether more than the ends of phases may be written.
bool Timeline::room() {
  if (!file_) return false;
  if (file_->crowded()) {
    ++lost_;
    return false;
  }
  if (lost_ > 0) note_losses();
  return true;
}

void Timeline::note_losses() {
  const std::string more = named("EVENTS_LOST") + ",\"s\":\"g\",\"args\":{\"count\":" + std::to_string(lost_) + '}';
  file_->append(event('i', 0, 0, now() - epoch_, more));
  lost_ = 0;
}

}  // namespace compat_hvd

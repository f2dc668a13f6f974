#include "distribution.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <numeric>

namespace compat_hvd {
namespace {

class Distribution : public Execution {
 public:
  Distribution(const DataPlane& plane, const Response& response, std::vector<Stream> streams, uint64_t* use)
      : plane_(plane), view_(plane, *response.set), sequence_(response.sequence), chunk_(plane.slots->bytes()) {
    communication_ = activity::communication(response.entries.front()->request.collective, view_.nodes() > 1);
    for (Stream& stream : streams) {
      if (stream.data.total() == 0) continue;
      stream.first_use = *use;
      *use += chunks(stream);
      if (view_.set->size() == 1) continue;
      if (publisher(stream.origin) == view_.rank) {
        publishing_.push_back({std::move(stream), 0, 0});
      } else {
        reading_.push_back({std::move(stream), 0, 0});
      }
    }
  }

  bool finished() const override { return publishing_.empty() && reading_.empty() && sent_; }

  bool step() override {
    bool moved = false;
    while (!publishing_.empty() && publish(&publishing_.front())) moved = true;
    for (auto at = reading_.begin(); at != reading_.end();) {
      while (at->done < chunks(at->stream) && read(&*at)) moved = true;
      at = at->done == chunks(at->stream) ? reading_.erase(at) : at + 1;
    }
    if (publishing_.empty() && !sent_) {
      sent_ = plane_.slots->transfers_done(plane_.mover);
      moved = moved || sent_;
    }
    return moved;
  }

 private:
  // A stream that this rank publishes or reads, and how many of its chunks have passed.
  struct Task {
    Stream stream;
    size_t started;
    size_t done;
  };

  size_t chunks(const Stream& stream) const { return (stream.data.total() + chunk_ - 1) / chunk_; }
  size_t bytes(const Stream& stream, size_t k) const { return std::min(chunk_, stream.data.total() - k * chunk_); }
  bool needed(const Stream& stream, size_t k, int rank) const {
    return stream.needed_by(view_.set->index_of(rank), k * chunk_, bytes(stream, k));
  }
  // Which of `ranks` need the chunk.
  std::vector<int> readers(const Stream& stream, size_t k, const std::vector<int>& ranks) const {
    std::vector<int> found;
    for (int rank : ranks) {
      if (needed(stream, k, rank)) found.push_back(rank);
    }
    return found;
  }
  bool needed_on(const Stream& stream, size_t k, int node) const {
    return !readers(stream, k, view_.set->by_node[node]).empty();
  }

  // Origins of other nodes are spread over the members of a node.
  int relay(int origin, int node) const {
    const std::vector<int>& members = view_.set->by_node[node];
    return members[view_.set->index_of(origin) % members.size()];
  }
  bool is_local(int rank) const { return std::binary_search(view_.local.begin(), view_.local.end(), rank); }
  int publisher(int origin) const { return is_local(origin) ? origin : relay(origin, view_.node); }

  bool publish(Task* task) {
    const bool moved = task->stream.origin == view_.rank ? publish_own(task) : publish_relayed(task);
    if (task->done == chunks(task->stream)) publishing_.pop_front();
    return moved;
  }

  bool publish_own(Task* task) {
    const Stream& stream = task->stream;
    const size_t k = task->done;
    const uint64_t use = stream.first_use + k;
    char* slot = plane_.slots->acquire(sequence_, use, plane_.mover);
    if (!slot) return false;
    if (k == 0) plane_.timeline->activity(activity::kPack);
    stream.data.copy_out(k * chunk_, bytes(stream, k), slot);
    plane_.timeline->activity(communication_);
    for (int node = 0; node < view_.nodes(); ++node) {
      if (node == view_.node || !needed_on(stream, k, node)) continue;
      plane_.mover->send(relay(view_.rank, node), data_tag(use), slot, bytes(stream, k),
                         plane_.slots->add_transfer(sequence_, use));
    }
    plane_.slots->publish(sequence_, use, readers(stream, k, view_.others));
    ++task->done;
    return true;
  }

  // Receives into as many slots as are free, and publishes in order.
  bool publish_relayed(Task* task) {
    bool moved = false;
    const Stream& stream = task->stream;
    while (task->started < chunks(stream) && task->started < task->done + kSlots) {
      const uint64_t use = stream.first_use + task->started;
      char* slot = plane_.slots->acquire(sequence_, use, plane_.mover);
      if (!slot) break;
      plane_.timeline->activity(communication_);
      receiving_.push_back({slot, {}});
      if (needed_on(stream, task->started, view_.node)) {
        plane_.mover->receive(stream.origin, data_tag(use), slot, bytes(stream, task->started),
                              &receiving_.back().transfer);
      }
      ++task->started;
      moved = true;
    }
    while (!receiving_.empty() && plane_.mover->done(&receiving_.front().transfer)) {
      const size_t k = task->done;
      if (needed(stream, k, view_.rank)) {
        stream.data.copy_in(k * chunk_, bytes(stream, k), receiving_.front().slot);
      }
      plane_.slots->publish(sequence_, stream.first_use + k, readers(stream, k, view_.others));
      receiving_.pop_front();
      ++task->done;
      moved = true;
    }
    return moved;
  }

  bool read(Task* task) {
    const Stream& stream = task->stream;
    const size_t k = task->done;
    if (needed(stream, k, view_.rank)) {
      const int writer = publisher(stream.origin);
      const char* slot = plane_.slots->read(writer, sequence_, stream.first_use + k);
      if (!slot) return false;
      plane_.timeline->activity(communication_);
      stream.data.copy_in(k * chunk_, bytes(stream, k), slot);
      plane_.slots->release(writer, sequence_, stream.first_use + k);
    }
    ++task->done;
    return true;
  }

  struct Receiving {
    char* slot;
    ByteMover::Transfer transfer;
  };

  DataPlane plane_;
  View view_;
  uint64_t sequence_;
  size_t chunk_;
  const char* communication_;
  std::deque<Task> publishing_;  // in the order of their uses, one after the other
  std::vector<Task> reading_;    // side by side
  std::deque<Receiving> receiving_;
  bool sent_ = false;
};

}  // namespace

std::unique_ptr<Execution> distribute(const DataPlane& plane, const Response& response, std::vector<Stream> streams,
                                      uint64_t* use) {
  return std::make_unique<Distribution>(plane, response, std::move(streams), use);
}

std::unique_ptr<Execution> start_allgather(const DataPlane& plane, const Response& response, Status* error) {
  plane.timeline->activity(activity::kAllocateOutput);
  const ProcessSet& set = *response.set;
  std::vector<Stream> streams;
  for (int rank : set.ranks) streams.push_back({rank, {}, {}, 0});
  for (size_t e = 0; e < response.entries.size(); ++e) {
    Entry& entry = *response.entries[e];
    const std::vector<int64_t>& rows = response.sizes[e];
    const size_t row = entry.request.row_bytes();
    const int64_t total = std::accumulate(rows.begin(), rows.end(), int64_t{0});
    entry.results = rows;
    entry.output = entry.allocate(total);
    if (!entry.output && total * row > 0) *error = no_memory(entry.request, total);
    char* at = entry.output;
    for (size_t member = 0; member < set.ranks.size(); ++member) {
      const size_t bytes = static_cast<size_t>(rows[member]) * row;
      const bool own = set.ranks[member] == plane.topology->rank();
      streams[member].data.add(own ? const_cast<char*>(entry.input) : at, bytes);
      if (own && at && bytes > 0) std::memcpy(at, entry.input, bytes);
      if (at) at += bytes;
    }
  }
  plane.timeline->activity(nullptr);
  uint64_t use = 0;
  return distribute(plane, response, std::move(streams), &use);
}

std::unique_ptr<Execution> start_alltoall(const DataPlane& plane, const Response& response, Status* error) {
  plane.timeline->activity(activity::kAllocateOutput);
  const ProcessSet& set = *response.set;
  Entry& entry = *response.entries.front();
  const std::vector<int64_t>& splits = response.sizes.front();
  const size_t members = set.ranks.size(), row = entry.request.row_bytes();
  const size_t me = static_cast<size_t>(set.index_of(plane.topology->rank()));
  int64_t total = 0;
  for (size_t from = 0; from < members; ++from) {
    entry.results.push_back(splits[from * members + me]);
    total += entry.results.back();
  }
  entry.output = entry.allocate(total);
  if (!entry.output && total * row > 0) *error = no_memory(entry.request, total);
  std::vector<Stream> streams;
  char* at = entry.output;
  for (size_t from = 0; from < members; ++from) {
    Stream stream{set.ranks[from], {}, {}, 0};
    for (size_t to = 0, start = 0; to < members; ++to) {
      const size_t bytes = static_cast<size_t>(splits[from * members + to]) * row;
      // Nobody reads what a rank sends to itself.
      stream.needs.push_back({start, to == from ? start : start + bytes});
      if (from == me) {
        stream.data.add(const_cast<char*>(entry.input) + start, bytes);
      } else {
        stream.data.add(to == me ? at : nullptr, bytes);
      }
      if (from == me && to == me && at && bytes > 0) std::memcpy(at, entry.input + start, bytes);
      if (to == me && at) at += bytes;
      start += bytes;
    }
    streams.push_back(std::move(stream));
  }
  plane.timeline->activity(nullptr);
  uint64_t use = 0;
  return distribute(plane, response, std::move(streams), &use);
}

std::unique_ptr<Execution> start_broadcast(const DataPlane& plane, const Response& response) {
  const int root = response.entries.front()->request.root;
  const bool own = root == plane.topology->rank();
  std::vector<Stream> streams{{root, {}, {}, 0}};
  if (own) plane.timeline->activity(activity::kCopyOwn);
  for (const auto& entry : response.entries) {
    const size_t bytes = entry->request.bytes();
    streams[0].data.add(own ? const_cast<char*>(entry->input) : entry->output, bytes);
    if (own && entry->output != entry->input && bytes > 0) std::memcpy(entry->output, entry->input, bytes);
  }
  if (own) plane.timeline->activity(nullptr);
  uint64_t use = 0;
  return distribute(plane, response, std::move(streams), &use);
}

}  // namespace compat_hvd

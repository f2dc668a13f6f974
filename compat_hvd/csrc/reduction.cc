#include "reduction.h"

#include <algorithm>

#include "pieces.h"
#include "reduce_kernels.h"

namespace compat_hvd {
namespace {

// Up to these, each member reduces everything itself; beyond, the work is shared.
constexpr int kDirectMembers = 3;
constexpr size_t kDirectBytes = 16 << 10;
// Slices up to this size go whole to every node; larger ones are split among the nodes first.
constexpr size_t kWholeSliceBytes = 16 << 10;

// The rows of a reducescatter that a member keeps: the first members get one more when they do not divide evenly.
struct Rows {
  int64_t first, count;
};
Rows rows_of(int64_t rows, int members, int index) {
  const int64_t each = rows / members, extra = rows % members;
  return {index * each + std::min<int64_t>(index, extra), each + (index < extra ? 1 : 0)};
}

// What both forms need to know of the fused entries.
struct Job {
  Job(const DataPlane& data_plane, const Response& response) : plane(data_plane), view(data_plane, *response.set) {
    const Request& request = response.entries.front()->request;
    sequence = response.sequence;
    dtype = request.dtype;
    op = request.op;
    scaling = {request.prescale, request.postscale, op == ReduceOp::kAverage ? view.set->size() : 1};
    element = size_of(dtype);
    for (const auto& entry : response.entries) {
      input.add(const_cast<char*>(entry->input), entry->request.bytes());
      add_output(entry.get());
    }
    elements = input.total() / element;
    chunk = plane.slots->bytes() / element;
    chunks = (elements + chunk - 1) / chunk;
    communication = activity::communication(request.collective, view.nodes() > 1);
  }
  void add_output(Entry* entry) {
    if (entry->request.collective == Collective::kAllreduce) return output.add(entry->output, entry->request.bytes());
    // The rows of other members are dropped.
    const Rows rows = rows_of(entry->request.shape[0], view.set->size(), view.set->index_of(view.rank));
    const size_t row = entry->request.row_bytes();
    output.add(nullptr, rows.first * row);
    output.add(entry->output, rows.count * row);
    output.add(nullptr, (entry->request.shape[0] - rows.first - rows.count) * row);
  }
  size_t first(size_t k) const { return k * chunk; }
  size_t count(size_t k) const { return std::min(chunk, elements - first(k)); }
  // The timeline shows the packing of the first chunk; later ones are packed while earlier ones travel.
  void pack(size_t k, char* slot) const {
    if (k == 0) plane.timeline->activity(activity::kPack);
    input.copy_out(first(k) * element, count(k) * element, slot);
    plane.timeline->activity(communication);
  }

  DataPlane plane;
  View view;
  uint64_t sequence;
  DataType dtype;
  ReduceOp op;
  Scaling scaling;
  size_t element, elements, chunk, chunks;
  const char* communication;
  Pieces input, output;
};

class DirectReduction : public Execution {
 public:
  explicit DirectReduction(Job job) : job_(std::move(job)), sources_(job_.view.local.size()) {}

  bool finished() const override { return reduced_ == job_.chunks; }

  bool step() override {
    if (job_.view.others.empty()) return reduce_alone();
    bool moved = false;
    while (!finished() && (pack() || reduce())) moved = true;
    return moved;
  }

 private:
  bool reduce_alone() {
    if (finished()) return false;
    std::vector<char*> outputs;
    job_.output.for_range(0, job_.output.total(), [&](char* piece, size_t, size_t) { outputs.push_back(piece); });
    size_t next = 0;
    job_.input.for_range(0, job_.input.total(), [&](char* piece, size_t, size_t bytes) {
      const char* source = piece;
      reduce_to_output(job_.dtype, job_.op, &source, 1, outputs[next++], bytes / job_.element, job_.scaling);
    });
    reduced_ = job_.chunks;
    return true;
  }

  // One chunk ahead of the reduction, so that the others find it ready.
  bool pack() {
    if (packed_ == job_.chunks || packed_ > reduced_ + 1) return false;
    char* slot = job_.plane.slots->acquire(job_.sequence, packed_, job_.plane.mover);
    if (!slot) return false;
    job_.pack(packed_, slot);
    job_.plane.slots->publish(job_.sequence, packed_, job_.view.others);
    ++packed_;
    return true;
  }

  bool reduce() {
    if (reduced_ == packed_) return false;
    for (size_t i = 0; i < sources_.size(); ++i) {
      sources_[i] = job_.plane.slots->read(job_.view.local[i], job_.sequence, reduced_);
      if (!sources_[i]) return false;
    }
    std::vector<const char*> at(sources_.size());
    const size_t bytes = job_.count(reduced_) * job_.element;
    job_.output.for_range(job_.first(reduced_) * job_.element, bytes, [&](char* piece, size_t offset, size_t part) {
      if (!piece) return;
      for (size_t i = 0; i < at.size(); ++i) at[i] = sources_[i] + offset;
      reduce_to_output(job_.dtype, job_.op, at.data(), static_cast<int>(at.size()), piece, part / job_.element,
                       job_.scaling);
    });
    for (int other : job_.view.others) job_.plane.slots->release(other, job_.sequence, reduced_);
    ++reduced_;
    return true;
  }

  Job job_;
  std::vector<const char*> sources_;
  size_t packed_ = 0, reduced_ = 0;
};

// Two uses of slots per chunk k: 2k holds a member's input, 2k + 1 a lane's finished slice.
class SlicedReduction : public Execution {
 public:
  explicit SlicedReduction(Job job) : job_(std::move(job)) {
    size_t fewest = job_.view.local.size();
    for (const auto& members : job_.view.set->by_node) fewest = std::min(fewest, members.size());
    lanes_ = static_cast<int>(fewest);
    if (is_lane()) exchanges_.resize(kInFlight);
  }

  bool finished() const override { return unpacked_ == job_.chunks && finished_ == job_.chunks; }

  bool step() override {
    bool moved = false;
    while (!finished() && (pack() || reduce() || combine() || finish() || unpack())) moved = true;
    return moved;
  }

 private:
  static constexpr size_t kInFlight = 2;

  // The exchange of one chunk's slice with the other nodes.
  struct Exchange {
    std::vector<char> partial;   // mine, in the accumulator's type
    std::vector<char> received;  // partials of the nodes in their order, mine copied to its place
    std::vector<char> result;    // the finished slice
    std::vector<ByteMover::Transfer> transfers;
    bool combined = false;  // the part that this rank sums is done, results are being gathered

    bool done(ByteMover* mover) {
      while (!transfers.empty()) {
        if (!mover->done(&transfers.back())) return false;
        transfers.pop_back();
      }
      return true;
    }
  };

  bool is_lane() const { return job_.view.index < lanes_; }
  int nodes() const { return job_.view.nodes(); }
  size_t slice_start(size_t k, int lane) const { return job_.count(k) * lane / lanes_; }
  size_t slice_count(size_t k, int lane) const { return slice_start(k, lane + 1) - slice_start(k, lane); }
  // The part of a slice that node n sums, when slices are split among nodes.
  static size_t part_start(size_t count, int n, int nodes) { return count * n / nodes; }
  bool whole(size_t count) const { return nodes() == 2 || count * partial_size(job_.dtype) <= kWholeSliceBytes; }
  int lane_rank(int n) const { return job_.view.set->by_node[n][job_.view.index]; }

  bool pack() {
    if (packed_ == job_.chunks || packed_ == unpacked_ + kInFlight) return false;
    char* slot = job_.plane.slots->acquire(job_.sequence, 2 * packed_, job_.plane.mover);
    if (!slot) return false;
    job_.pack(packed_, slot);
    std::vector<int> readers;
    for (int lane = 0; lane < lanes_; ++lane) {
      if (job_.view.local[lane] != job_.view.rank) readers.push_back(job_.view.local[lane]);
    }
    job_.plane.slots->publish(job_.sequence, 2 * packed_, readers);
    ++packed_;
    if (!is_lane()) ++finished_;
    return true;
  }

  // Reduces my slice of everybody on this node and sends it off.
  bool reduce() {
    if (!is_lane() || reduced_ == packed_) return false;
    std::vector<const char*> sources;
    const size_t offset = slice_start(reduced_, job_.view.index) * job_.element;
    for (int member : job_.view.local) {
      const char* slot = job_.plane.slots->read(member, job_.sequence, 2 * reduced_);
      if (!slot) return false;
      sources.push_back(slot + offset);
    }
    const size_t count = slice_count(reduced_, job_.view.index);
    Exchange& exchange = exchanges_[reduced_ % kInFlight];
    exchange.partial.resize(count * partial_size(job_.dtype));
    reduce_to_partial(job_.dtype, job_.op, sources.data(), static_cast<int>(sources.size()), exchange.partial.data(),
                      count, job_.scaling);
    for (int other : job_.view.others) job_.plane.slots->release(other, job_.sequence, 2 * reduced_);
    start_exchange(&exchange, count);
    ++reduced_;
    return true;
  }

  void start_exchange(Exchange* exchange, size_t count) {
    const size_t size = partial_size(job_.dtype);
    exchange->combined = false;
    exchange->result.resize(count * job_.element);
    const bool all = whole(count);
    const size_t mine_from = all ? 0 : part_start(count, job_.view.node, nodes());
    const size_t mine = all ? count : part_start(count, job_.view.node + 1, nodes()) - mine_from;
    exchange->received.resize(mine * size * nodes());
    for (int n = 0; n < nodes(); ++n) {
      char* place = exchange->received.data() + n * mine * size;
      if (n == job_.view.node) {
        std::copy_n(exchange->partial.data() + mine_from * size, mine * size, place);
        continue;
      }
      const size_t from = all ? 0 : part_start(count, n, nodes());
      const size_t theirs = all ? count : part_start(count, n + 1, nodes()) - from;
      transfer(exchange, n, exchange->partial.data() + from * size, theirs * size, place, mine * size, 2 * reduced_);
    }
  }

  void transfer(Exchange* exchange, int n, const char* out, size_t out_bytes, char* in, size_t in_bytes, uint64_t use) {
    if (in_bytes > 0) {
      exchange->transfers.emplace_back();
      job_.plane.mover->receive(lane_rank(n), data_tag(use), in, in_bytes, &exchange->transfers.back());
    }
    if (out_bytes > 0) {
      exchange->transfers.emplace_back();
      job_.plane.mover->send(lane_rank(n), data_tag(use), out, out_bytes, &exchange->transfers.back());
    }
  }

  // Sums over nodes what this rank is responsible for; with split slices the finished parts then go round.
  bool combine() {
    if (!is_lane() || combined_ == reduced_) return false;
    Exchange& exchange = exchanges_[combined_ % kInFlight];
    if (!exchange.done(job_.plane.mover)) return false;
    const size_t count = slice_count(combined_, job_.view.index);
    const bool all = whole(count);
    const size_t from = all ? 0 : part_start(count, job_.view.node, nodes());
    const size_t mine = all ? count : part_start(count, job_.view.node + 1, nodes()) - from;
    std::vector<const char*> partials;
    for (int n = 0; n < nodes(); ++n)
      partials.push_back(exchange.received.data() + n * mine * partial_size(job_.dtype));
    char* result = exchange.result.data() + from * job_.element;
    combine_partials(job_.dtype, job_.op, partials.data(), nodes(), result, mine, job_.scaling);
    for (int n = 0; n < nodes() && !all; ++n) {
      if (n == job_.view.node) continue;
      const size_t at = part_start(count, n, nodes());
      const size_t theirs = part_start(count, n + 1, nodes()) - at;
      transfer(&exchange, n, result, mine * job_.element, exchange.result.data() + at * job_.element,
               theirs * job_.element, 2 * combined_ + 1);
    }
    ++combined_;
    return true;
  }

  // Hands my finished slice to the node.
  bool finish() {
    if (!is_lane() || finished_ == combined_) return false;
    Exchange& exchange = exchanges_[finished_ % kInFlight];
    if (!exchange.done(job_.plane.mover)) return false;
    char* slot = job_.plane.slots->acquire(job_.sequence, 2 * finished_ + 1, job_.plane.mover);
    if (!slot) return false;
    std::copy(exchange.result.begin(), exchange.result.end(), slot);
    job_.plane.slots->publish(job_.sequence, 2 * finished_ + 1, job_.view.others);
    ++finished_;
    return true;
  }

  bool unpack() {
    if (unpacked_ == packed_ || (is_lane() && unpacked_ == finished_)) return false;
    std::vector<const char*> slices;
    for (int lane = 0; lane < lanes_; ++lane) {
      slices.push_back(job_.plane.slots->read(job_.view.local[lane], job_.sequence, 2 * unpacked_ + 1));
      if (!slices.back()) return false;
    }
    if (unpacked_ + 1 == job_.chunks) job_.plane.timeline->activity(activity::kUnpack);
    for (int lane = 0; lane < lanes_; ++lane) {
      const size_t from = (job_.first(unpacked_) + slice_start(unpacked_, lane)) * job_.element;
      job_.output.copy_in(from, slice_count(unpacked_, lane) * job_.element, slices[lane]);
      if (job_.view.local[lane] == job_.view.rank) continue;
      job_.plane.slots->release(job_.view.local[lane], job_.sequence, 2 * unpacked_ + 1);
    }
    ++unpacked_;
    return true;
  }

  Job job_;
  int lanes_;
  std::vector<Exchange> exchanges_;
  // Chunks that have passed each stage. A rank that is no lane passes reduce, combine and finish at once.
  size_t packed_ = 0, reduced_ = 0, combined_ = 0, finished_ = 0, unpacked_ = 0;
};

// For the rows of a reducescatter that this rank keeps.
void allocate_outputs(const DataPlane& plane, const Response& response, Status* error) {
  plane.timeline->activity(activity::kAllocateOutput);
  const int index = response.set->index_of(plane.topology->rank());
  for (const auto& entry : response.entries) {
    const int64_t rows = rows_of(entry->request.shape[0], response.set->size(), index).count;
    entry->output = entry->allocate(rows);
    if (!entry->output && rows * entry->request.row_bytes() > 0) *error = no_memory(entry->request, rows);
  }
  plane.timeline->activity(nullptr);
}

}  // namespace

std::unique_ptr<Execution> start_reduction(const DataPlane& plane, const Response& response, Status* error) {
  if (response.entries.front()->request.collective == Collective::kReducescatter) {
    allocate_outputs(plane, response, error);
  }
  Job job(plane, response);
  const bool few = static_cast<int>(job.view.local.size()) <= kDirectMembers || job.input.total() <= kDirectBytes;
  if (job.view.nodes() == 1 && few) return std::make_unique<DirectReduction>(std::move(job));
  return std::make_unique<SlicedReduction>(std::move(job));
}

}  // namespace compat_hvd

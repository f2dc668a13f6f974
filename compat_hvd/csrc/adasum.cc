#include "adasum.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "adasum_kernels.h"
#include "distribution.h"
#include "reduce_kernels.h"

namespace compat_hvd {
namespace {

// Two members by their positions: the vector of the second is added to that of the first.
struct Pair {
  size_t into, from;
};

// Who meets whom at each level. The last level leaves everything with the first member.
std::vector<std::vector<Pair>> tree_over(const std::vector<int>& ranks) {
  std::vector<std::vector<Pair>> levels;
  std::vector<std::pair<int, size_t>> alive;  // number of the subtree at this level, the member that holds its vector
  for (size_t member = 0; member < ranks.size(); ++member) alive.push_back({ranks[member], member});
  while (alive.size() > 1) {
    std::vector<std::pair<int, size_t>> next;
    std::vector<Pair> level;
    for (const auto& [number, member] : alive) {
      if (!next.empty() && next.back().first == number / 2) {
        level.push_back({next.back().second, member});
      } else {
        next.push_back({number / 2, member});
      }
    }
    alive.swap(next);
    if (!level.empty()) levels.push_back(std::move(level));
  }
  return levels;
}

class Adasum : public Execution {
 public:
  Adasum(const DataPlane& plane, const Response& response)
      : plane_(plane),
        response_(response),
        members_(response.set->ranks.size()),
        me_(static_cast<size_t>(response.set->index_of(plane.topology->rank()))),
        dtype_(response.entries.front()->request.dtype),
        element_(size_of(dtype_)),
        tree_(tree_over(response.set->ranks)) {
    for (size_t e = 0; e < response.entries.size(); ++e) slice_ += part_size(e, me_);
    scatter();
  }

  bool finished() const override { return stage_ == Stage::kDone; }

  bool step() override {
    bool moved = false;
    while (!finished()) {
      moved |= phase_->step();
      if (!phase_->finished()) return moved;
      advance();
      moved = true;
    }
    return moved;
  }

 private:
  enum class Stage { kScatter, kExchange, kGather, kDone };

  // ---- The part of each tensor that a member owns, in elements ----

  size_t tensors() const { return response_.entries.size(); }
  Entry& entry(size_t e) const { return *response_.entries[e]; }
  size_t part_start(size_t e, size_t member) const {
    return static_cast<size_t>(entry(e).request.elements()) * member / members_;
  }
  size_t part_size(size_t e, size_t member) const { return part_start(e, member + 1) - part_start(e, member); }
  // A member's parts of the tensors where they lie in `base(entry)`.
  template <typename Base>
  void add_parts(Pieces* pieces, size_t member, const Base& base) const {
    for (size_t e = 0; e < tensors(); ++e) {
      pieces->add(base(entry(e)) + part_start(e, member) * element_, part_size(e, member) * element_);
    }
  }
  // Calls visit(tensor, byte within `work_`, elements) for each of this rank's parts.
  template <typename Visit>
  void for_own_parts(const Visit& visit) const {
    size_t at = 0;
    for (size_t e = 0; e < tensors(); ++e) {
      visit(e, at * partial_size(dtype_), part_size(e, me_));
      at += part_size(e, me_);
    }
  }

  // ---- The stages ----

  void advance() {
    switch (stage_) {
      case Stage::kScatter:
        for (std::vector<char>& vector : work_) widen(&vector);
        return climb();
      case Stage::kExchange:
        combine(tree_[level_++]);
        return climb();
      case Stage::kGather:
        phase_.reset();
        stage_ = Stage::kDone;
        return;
      case Stage::kDone:
        return;
    }
  }

  void climb() {
    if (level_ == tree_.size()) return gather();
    exchange(tree_[level_]);
  }

  Stream stream_of(size_t member) const { return {response_.set->ranks[member], {}, {}, 0}; }
  void start(Stage stage, std::vector<Stream> streams) {
    stage_ = stage;
    phase_ = distribute(plane_, response_, std::move(streams), &use_);
  }

  // Every member's stream holds the parts of the first member, then those of the second, and so on.
  void scatter() {
    const auto input = [](const Entry& one) { return const_cast<char*>(one.input); };
    Pieces own;
    std::vector<Range> ranges;
    for (size_t member = 0; member < members_; ++member) {
      const size_t from = own.total();
      add_parts(&own, member, input);
      ranges.push_back({from, own.total()});
    }
    work_.assign(members_, std::vector<char>(slice_ * partial_size(dtype_)));
    std::vector<Stream> streams;
    for (size_t member = 0; member < members_; ++member) {
      Stream stream = stream_of(member);
      stream.needs = ranges;
      stream.needs[member].to = stream.needs[member].from;  // nobody reads what a rank sends to itself
      if (member == me_) {
        stream.data = own;
      } else {
        stream.data.add(nullptr, ranges[me_].from);
        stream.data.add(raw(&work_[member]), slice_ * element_);
        stream.data.add(nullptr, own.total() - ranges[me_].to);
      }
      streams.push_back(std::move(stream));
    }
    own.copy_out(ranges[me_].from, slice_ * element_, raw(&work_[me_]));
    start(Stage::kScatter, std::move(streams));
  }

  // Elements arrive at the end of the room for their accumulators, so that widening from the front never overtakes
  // those that it has yet to read.
  char* raw(std::vector<char>* vector) const { return vector->data() + vector->size() - slice_ * element_; }

  void widen(std::vector<char>* vector) const {
    const Request& request = entry(0).request;
    if (partial_size(dtype_) == element_ && request.prescale == 1.0) return;
    constexpr size_t kBlock = 1024;
    alignas(8) char block[kBlock * 8];
    const char* source = block;
    for (size_t from = 0; from < slice_; from += kBlock) {
      const size_t count = std::min(kBlock, slice_ - from);
      std::memcpy(block, raw(vector) + from * element_, count * element_);
      reduce_to_partial(dtype_, ReduceOp::kSum, &source, 1, vector->data() + from * partial_size(dtype_), count,
                        {request.prescale, 1.0, 1});
    }
  }

  void exchange(const std::vector<Pair>& level) {
    products_.assign(members_, std::vector<DotProducts>(level.size() * tensors()));
    for (size_t p = 0; p < level.size(); ++p) {
      const char* a = work_[level[p].into].data();
      const char* b = work_[level[p].from].data();
      for_own_parts([&](size_t e, size_t at, size_t count) {
        products_[me_][p * tensors() + e] = dot_products(dtype_, a + at, b + at, count);
      });
    }
    std::vector<Stream> streams;
    for (size_t member = 0; member < members_; ++member) {
      streams.push_back(stream_of(member));
      streams.back().data.add(reinterpret_cast<char*>(products_[member].data()),
                              products_[member].size() * sizeof(DotProducts));
    }
    start(Stage::kExchange, std::move(streams));
  }

  void combine(const std::vector<Pair>& level) {
    for (size_t p = 0; p < level.size(); ++p) {
      for_own_parts([&](size_t e, size_t at, size_t count) {
        DotProducts total;
        for (const std::vector<DotProducts>& of_member : products_) total.add(of_member[p * tensors() + e]);
        adaptive_add(dtype_, work_[level[p].into].data() + at, work_[level[p].from].data() + at, count, total);
      });
      std::vector<char>().swap(work_[level[p].from]);
    }
  }

  // By now nobody needs the inputs any more, in whose place the outputs may be.
  void gather() {
    for_own_parts([&](size_t e, size_t at, size_t count) {
      const char* result = work_[0].data() + at;
      combine_partials(dtype_, ReduceOp::kSum, &result, 1, entry(e).output + part_start(e, me_) * element_, count,
                       {1.0, entry(e).request.postscale, 1});
    });
    work_.clear();
    std::vector<Stream> streams;
    for (size_t member = 0; member < members_; ++member) {
      streams.push_back(stream_of(member));
      add_parts(&streams.back().data, member, [](const Entry& one) { return one.output; });
    }
    start(Stage::kGather, std::move(streams));
  }

  DataPlane plane_;
  const Response& response_;
  size_t members_, me_;
  DataType dtype_;
  size_t element_;
  std::vector<std::vector<Pair>> tree_;
  size_t slice_ = 0;                                // elements of this rank's parts together
  std::vector<std::vector<char>> work_;             // by member: its vector on this rank's parts, in accumulators
  std::vector<std::vector<DotProducts>> products_;  // by member: for each pair of the level, for each tensor
  Stage stage_ = Stage::kScatter;
  size_t level_ = 0;
  uint64_t use_ = 0;
  std::unique_ptr<Execution> phase_;
};

}  // namespace

std::unique_ptr<Execution> start_adasum(const DataPlane& plane, const Response& response) {
  return std::make_unique<Adasum>(plane, response);
}

}  // namespace compat_hvd

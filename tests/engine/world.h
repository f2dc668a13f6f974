// Many engines in one process, without threads and MPI: the tests step them in any order they like.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "../../compat_hvd/csrc/engine.h"

#define CHECK(condition)                                                                 \
  do {                                                                                   \
    if (!(condition)) {                                                                  \
      std::fprintf(stderr, "%s:%d: CHECK(%s) failed\n", __FILE__, __LINE__, #condition); \
      std::exit(1);                                                                      \
    }                                                                                    \
  } while (0)

namespace compat_hvd {

// Plain memory that the engines of one node have in common.
class HeapNode {
 public:
  HeapNode(const std::vector<int>& ranks, size_t slot_bytes) : ranks_(ranks), slot_bytes_(slot_bytes) {
    const int readers = static_cast<int>(ranks.size());
    const size_t bytes = (Segment::bytes(readers, slot_bytes) + 4095) / 4096 * 4096;
    for (int rank : ranks) {
      char* base = static_cast<char*>(std::aligned_alloc(4096, bytes));
      std::memset(base, 0, bytes);
      bases_[rank] = base;
    }
  }
  ~HeapNode() {
    for (auto& [rank, base] : bases_) std::free(base);
  }
  HeapNode(const HeapNode&) = delete;

  const std::vector<int> ranks_;
  const size_t slot_bytes_;
  std::map<int, char*> bases_;
  std::set<int> dead_;
};

class HeapNodeMemory : public NodeMemory {
 public:
  explicit HeapNodeMemory(HeapNode* node) : node_(node) {
    const int readers = static_cast<int>(node->ranks_.size());
    for (int i = 0; i < readers; ++i) {
      insert(node->ranks_[i], Segment(node->bases_[node->ranks_[i]], readers, node->slot_bytes_), i);
    }
  }
  bool dead(int rank) override { return node_->dead_.count(rank) > 0; }

 private:
  HeapNode* node_;
};

// Messages between ranks with a random delay, counted in looks at them.
class Network {
 public:
  explicit Network(unsigned seed) : random_(seed) {}

  struct Message {
    std::vector<char> bytes;
    int delay;
  };
  std::map<std::tuple<int, int, int>, std::deque<Message>> queues_;
  std::mt19937 random_;
};

class TestMover : public ByteMover {
 public:
  TestMover(Network* network, int rank) : network_(network), rank_(rank) {}
  void send(int rank, int tag, const void* data, size_t bytes, Transfer* transfer) override {
    const char* from = static_cast<const char*>(data);
    network_->queues_[{rank_, rank, tag}].push_back({{from, from + bytes}, static_cast<int>(network_->random_() % 4)});
    transfer->active = false;
  }
  void receive(int rank, int tag, void* data, size_t bytes, Transfer* transfer) override {
    transfer->bits = next_;
    transfer->active = true;
    receives_[next_++] = {rank, tag, static_cast<char*>(data), bytes};
  }
  bool done(Transfer* transfer) override {
    if (!transfer->active) return true;
    const Receive& receive = receives_.at(transfer->bits);
    auto& queue = network_->queues_[{receive.rank, rank_, receive.tag}];
    if (queue.empty() || queue.front().delay-- > 0) return false;
    CHECK(queue.front().bytes.size() <= receive.bytes);
    std::memcpy(receive.data, queue.front().bytes.data(), queue.front().bytes.size());
    queue.pop_front();
    receives_.erase(transfer->bits);
    transfer->active = false;
    return true;
  }
  size_t receives() const { return receives_.size(); }

 private:
  struct Receive {
    int rank, tag;
    char* data;
    size_t bytes;
  };
  Network* network_;
  int rank_;
  uint64_t next_ = 1;
  std::map<uint64_t, Receive> receives_;
};

// What became of one submission.
struct Outcome {
  bool done = false;
  Status status;
  std::vector<char> input, output;
  std::vector<int64_t> results;

  template <typename T>
  std::vector<T> values() const {
    std::vector<T> result(output.size() / sizeof(T));
    if (!output.empty()) std::memcpy(result.data(), output.data(), output.size());
    return result;
  }
};

class World {
 public:
  struct Options {
    std::vector<int> split;  // sizes of the nodes
    size_t slot_bytes = 256;
    unsigned seed = 1;
    CoordinatorOptions coordinator;
    std::vector<std::vector<int>> process_sets;
  };

  explicit World(const Options& options) : network_(options.seed), random_(options.seed) {
    std::vector<int> node_of;
    std::vector<std::vector<int>> nodes;
    for (size_t n = 0; n < options.split.size(); ++n) {
      nodes.emplace_back();
      for (int i = 0; i < options.split[n]; ++i) {
        nodes.back().push_back(static_cast<int>(node_of.size()));
        node_of.push_back(static_cast<int>(n));
      }
    }
    for (const auto& ranks : nodes) nodes_.push_back(std::make_unique<HeapNode>(ranks, options.slot_bytes));
    for (size_t rank = 0; rank < node_of.size(); ++rank) {
      memories_.push_back(std::make_unique<HeapNodeMemory>(nodes_[node_of[rank]].get()));
      movers_.push_back(std::make_unique<TestMover>(&network_, static_cast<int>(rank)));
      EngineOptions engine;
      engine.coordinator = options.coordinator;
      engine.now = [this] { return now_; };
      engine.usage = [this, rank] { return usage_[static_cast<int>(rank)]; };
      engine.complete = [](std::unique_ptr<Entry> entry, const Status& status) { entry->done(status); };
      engine.process_sets = options.process_sets;
      engines_.push_back(std::make_unique<Engine>(Topology(static_cast<int>(rank), node_of), memories_.back().get(),
                                                  movers_.back().get(), engine));
    }
  }

  int size() const { return static_cast<int>(engines_.size()); }
  Engine& engine(int rank) { return *engines_[rank]; }
  HeapNode& node_of(int rank) { return *nodes_[engines_[rank]->topology().node()]; }
  TestMover& mover(int rank) { return *movers_[rank]; }
  void advance(int64_t nanoseconds) { now_ += nanoseconds; }

  template <typename T>
  std::shared_ptr<Outcome> submit(int rank, Request request, const std::vector<T>& values) {
    auto outcome = std::make_shared<Outcome>();
    outcome->input.resize(values.size() * sizeof(T));
    if (!values.empty()) std::memcpy(outcome->input.data(), values.data(), outcome->input.size());
    outcome->output.resize(outcome->input.size());
    auto entry = std::make_unique<Entry>();
    if (request.shape.empty() && values.size() != 1) request.shape = {static_cast<int64_t>(values.size())};
    size_t row = sizeof(T);
    for (size_t i = 1; i < request.shape.size(); ++i) row *= static_cast<size_t>(request.shape[i]);
    entry->request = std::move(request);
    entry->input = outcome->input.data();
    entry->output = outcome->output.data();
    entry->allocate = [outcome, row](int64_t rows) {
      outcome->output.resize(static_cast<size_t>(rows) * row);
      return outcome->output.data();
    };
    Entry* raw = entry.get();
    entry->done = [outcome, raw](const Status& status) {
      CHECK(!outcome->done);  // exactly once
      outcome->done = true;
      outcome->status = status;
      outcome->results = raw->results;
    };
    engines_[rank]->submit(std::move(entry));
    return outcome;
  }

  // Steps ranks in random order, `delayed` ones rarely, until `until` holds or nothing has moved for long.
  bool run(const std::function<bool()>& until, const std::vector<int>& delayed = {}, int stopped = -1) {
    for (int idle = 0; idle < 20000;) {
      if (until()) return true;
      const int rank = static_cast<int>(random_() % engines_.size());
      const bool slow = std::find(delayed.begin(), delayed.end(), rank) != delayed.end();
      if (rank == stopped || (slow && random_() % 50 != 0)) {
        ++idle;
        continue;
      }
      idle = engines_[rank]->step() ? 0 : idle + 1;
      now_ += 1000;
    }
    return until();
  }
  bool run_all(const std::vector<std::shared_ptr<Outcome>>& outcomes, const std::vector<int>& delayed = {}) {
    return run(
        [&] {
          for (const auto& outcome : outcomes) {
            if (!outcome->done) return false;
          }
          return true;
        },
        delayed);
  }

  std::mt19937& random() { return random_; }
  int64_t& usage(int rank) { return usage_[rank]; }

 private:
  Network network_;
  std::mt19937 random_;
  int64_t now_ = 0;
  std::map<int, int64_t> usage_;
  std::vector<std::unique_ptr<HeapNode>> nodes_;
  std::vector<std::unique_ptr<HeapNodeMemory>> memories_;
  std::vector<std::unique_ptr<TestMover>> movers_;
  std::vector<std::unique_ptr<Engine>> engines_;
};

inline Request sum_of(const std::string& name, DataType dtype = DataType::kFloat32, int process_set = 0) {
  Request request;
  request.name = name;
  request.dtype = dtype;
  request.process_set = process_set;
  return request;
}

// A test program: each case is run by its name, "list" names all.
using Case = std::pair<const char*, std::function<void()>>;
inline int run_cases(int argc, char** argv, const std::vector<Case>& cases) {
  const std::string wanted = argc > 1 ? argv[1] : "list";
  for (const Case& one : cases) {
    if (wanted == "list") std::printf("%s\n", one.first);
    if (wanted == one.first) return one.second(), 0;
  }
  return wanted == "list" ? 0 : 2;
}

}  // namespace compat_hvd

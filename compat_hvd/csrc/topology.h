// Which rank is where, and the process sets.
#pragma once

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace compat_hvd {

// Ranks of one world, grouped into nodes: ranks of a node share memory. The leader of a node is its lowest rank; rank 0
// is the coordinator and leads its own node.
class Topology {
 public:
  // `node_of[r]` is any integer that ranks of one node have in common.
  Topology(int rank, std::vector<int> node_of) : rank_(rank), node_of_(std::move(node_of)) {
    for (int r = 0; r < size(); ++r) {
      auto [at, fresh] = index_.emplace(node_of_[r], static_cast<int>(nodes_.size()));
      if (fresh) nodes_.emplace_back();
      nodes_[at->second].push_back(r);
      node_of_[r] = at->second;
    }
  }

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(node_of_.size()); }
  int node() const { return node_of_[rank_]; }
  int node_of(int rank) const { return node_of_[rank]; }
  int nodes() const { return static_cast<int>(nodes_.size()); }
  const std::vector<int>& ranks_of_node(int node) const { return nodes_[node]; }
  int leader_of(int rank) const { return nodes_[node_of_[rank]].front(); }
  int leader() const { return leader_of(rank_); }
  bool is_leader() const { return leader() == rank_; }
  bool is_coordinator() const { return rank_ == 0; }

 private:
  int rank_;
  std::vector<int> node_of_;
  std::map<int, int> index_;
  std::vector<std::vector<int>> nodes_;
};

// The members of a process set in ascending order, and how they lie on the nodes.
struct ProcessSet {
  ProcessSet(const Topology& topology, int set_id, std::vector<int> members) : id(set_id), ranks(std::move(members)) {
    std::sort(ranks.begin(), ranks.end());
    for (int node = 0; node < topology.nodes(); ++node) {
      std::vector<int> on_node;
      for (int rank : topology.ranks_of_node(node)) {
        if (contains(rank)) on_node.push_back(rank);
      }
      if (!on_node.empty()) by_node.push_back(std::move(on_node));
    }
  }

  int id;
  std::vector<int> ranks;
  std::vector<std::vector<int>> by_node;  // only nodes that hold members, in the order of nodes

  int size() const { return static_cast<int>(ranks.size()); }
  // Position of a member in the set, −1 for others.
  int index_of(int rank) const {
    auto at = std::lower_bound(ranks.begin(), ranks.end(), rank);
    return at != ranks.end() && *at == rank ? static_cast<int>(at - ranks.begin()) : -1;
  }
  bool contains(int rank) const { return index_of(rank) >= 0; }
};

using ProcessSetPointer = std::shared_ptr<const ProcessSet>;

// Changed by the worker only, read by kernels as well. A set that was removed lives on as long as somebody uses it.
class ProcessSetTable {
 public:
  void add(const Topology& topology, int id, std::vector<int> ranks) {
    auto set = std::make_shared<const ProcessSet>(topology, id, std::move(ranks));
    std::lock_guard<std::mutex> lock(mutex_);
    sets_[id] = std::move(set);
  }
  void remove(int id) {
    std::lock_guard<std::mutex> lock(mutex_);
    sets_.erase(id);
  }
  // nullptr for an id that is not in use.
  ProcessSetPointer find(int id) const {
    std::lock_guard<std::mutex> lock(mutex_);
    auto at = sets_.find(id);
    return at == sets_.end() ? nullptr : at->second;
  }
  // The id of the set with these members in ascending order, −1 when there is none.
  int find(const std::vector<int>& ranks) const {
    std::lock_guard<std::mutex> lock(mutex_);
    for (const auto& [id, set] : sets_) {
      if (set->ranks == ranks) return id;
    }
    return -1;
  }

 private:
  mutable std::mutex mutex_;
  std::map<int, ProcessSetPointer> sets_;
};

}  // namespace compat_hvd

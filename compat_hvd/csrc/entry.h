// One submission of a collective, from the kernel that makes it to the call of done.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>

#include "message.h"

namespace compat_hvd {

struct Entry {
  Request request;
  const char* input = nullptr;
  char* output = nullptr;  // may equal input
  // Allgather, alltoall, reducescatter: gives the output once its first dimension is known, nullptr when there is no
  // memory.
  std::function<char*(int64_t first_dimension)> allocate;
  // Before done. Allgather, alltoall: rows received from each member. Join: the last rank to join. Adding a process
  // set: its id.
  std::vector<int64_t> results;
  // Called exactly once, from no thread of the engine's that others depend on.
  std::function<void(const Status&)> done;
};

// The entries of this rank that are not done.
class TensorTable {
 public:
  // Adds an entry and returns its ticket. `duplicate` tells that one of the same name is in flight already.
  uint64_t add(std::unique_ptr<Entry> entry, bool* duplicate) {
    const uint64_t ticket = ++last_ticket_;
    *duplicate = !by_name_.emplace(key(entry->request.process_set, entry->request.key()), ticket).second;
    entries_.emplace(ticket, std::move(entry));
    return ticket;
  }
  // Takes an entry out; nullptr when there is none.
  std::unique_ptr<Entry> remove(uint64_t ticket) {
    auto at = entries_.find(ticket);
    if (at == entries_.end()) return nullptr;
    std::unique_ptr<Entry> entry = std::move(at->second);
    entries_.erase(at);
    auto named = by_name_.find(key(entry->request.process_set, entry->request.key()));
    if (named != by_name_.end() && named->second == ticket) by_name_.erase(named);
    return entry;
  }
  std::unique_ptr<Entry> remove(int process_set, const std::string& request_key) {
    auto at = by_name_.find(key(process_set, request_key));
    return at == by_name_.end() ? nullptr : remove(at->second);
  }
  std::unique_ptr<Entry> remove_any() { return entries_.empty() ? nullptr : remove(entries_.begin()->first); }
  size_t size() const { return entries_.size(); }

 private:
  static std::string key(int process_set, const std::string& request_key) {
    return std::to_string(process_set) + ':' + request_key;
  }

  std::map<uint64_t, std::unique_ptr<Entry>> entries_;
  std::unordered_map<std::string, uint64_t> by_name_;  // the first in flight of each name
  uint64_t last_ticket_ = 0;
};

}  // namespace compat_hvd

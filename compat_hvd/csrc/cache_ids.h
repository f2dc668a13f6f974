// Rank 0's side of the response cache: after the first time, a request is one small number.
//
// Ids are given and revoked only inside responses that reach all members of the process set, and never used twice.
// Members may still send a revoked id until they have seen that response: its meaning is kept until all have
// acknowledged it.
#pragma once

#include <cstdint>
#include <deque>
#include <list>
#include <unordered_map>
#include <vector>

#include "negotiation.h"

namespace compat_hvd {

class CacheIds {
 public:
  explicit CacheIds(size_t capacity) : capacity_(capacity) {}

  // The name that has this id, nullptr when it is revoked or unknown.
  Negotiation* find(uint32_t id) const;
  // What a revoked id stood for, nullptr when nobody can still send it.
  const Request* revoked(uint32_t id) const;
  void touch(Negotiation* n) { ages_.splice(ages_.end(), ages_, n->age); }
  // Gives `n` an id in the response `message`, for `signature`. The least recently used name of the same set may lose
  // its own for it and is returned then, else nullptr.
  Negotiation* assign(Negotiation* n, const Request& signature, DownMessage* message);
  void revoke(Negotiation* n, DownMessage* message);
  // Forgets what every member has acknowledged; `acknowledged` is by rank.
  void purge(const std::vector<uint64_t>& acknowledged);

 private:
  struct Retired {
    uint32_t id;
    uint64_t sequence;
    ProcessSetPointer set;
    Request signature;
  };

  size_t capacity_;
  uint32_t last_id_ = 0;
  std::unordered_map<uint32_t, Negotiation*> by_id_;
  std::list<Negotiation*> ages_;  // least recently used first
  std::deque<Retired> retired_;
};

}  // namespace compat_hvd

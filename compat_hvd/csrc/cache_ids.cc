#include "cache_ids.h"

#include <algorithm>

namespace compat_hvd {

Negotiation* CacheIds::find(uint32_t id) const {
  auto at = by_id_.find(id);
  return at == by_id_.end() ? nullptr : at->second;
}

const Request* CacheIds::revoked(uint32_t id) const {
  auto at = std::find_if(retired_.begin(), retired_.end(), [id](const Retired& r) { return r.id == id; });
  return at == retired_.end() ? nullptr : &at->signature;
}

Negotiation* CacheIds::assign(Negotiation* n, const Request& signature, DownMessage* message) {
  if (capacity_ == 0) return nullptr;
  Negotiation* evicted = nullptr;
  if (by_id_.size() >= capacity_) {
    auto old = std::find_if(ages_.begin(), ages_.end(),
                            [n](const Negotiation* other) { return other->present == 0 && other->set == n->set; });
    if (old == ages_.end()) return nullptr;
    evicted = *old;
    revoke(evicted, message);
  }
  n->cache_id = ++last_id_;
  n->signature = signature;
  by_id_[n->cache_id] = n;
  n->age = ages_.insert(ages_.end(), n);
  return evicted;
}

void CacheIds::revoke(Negotiation* n, DownMessage* message) {
  message->revoked.push_back(n->cache_id);
  retired_.push_back({n->cache_id, message->sequence, n->set, n->signature});
  by_id_.erase(n->cache_id);
  ages_.erase(n->age);
  n->cache_id = 0;
}

void CacheIds::purge(const std::vector<uint64_t>& acknowledged) {
  while (!retired_.empty()) {
    const Retired& oldest = retired_.front();
    for (int rank : oldest.set->ranks) {
      if (acknowledged[rank] < oldest.sequence) return;
    }
    retired_.pop_front();
  }
}

}  // namespace compat_hvd

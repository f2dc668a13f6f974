#include "fusion.h"

namespace compat_hvd {
namespace {

// Bytes that a response carries for `n`.
size_t bytes_of(const Negotiation& n) {
  const Request& request = n.any_request();
  if (request.collective != Collective::kAllgather) return request.bytes();
  int64_t rows = 0;
  for (int i : n.positions()) rows += n.submissions[i].variable_part[0];
  return static_cast<size_t>(rows) * request.row_bytes();
}

bool can_fuse(const Negotiation& first, const Negotiation& other) {
  if (first.set != other.set) return false;
  const Request& a = first.any_request();
  const Request& b = other.any_request();
  if (a.collective != b.collective) return false;
  if (!(first.all_present() && other.all_present()) && first.positions() != other.positions()) return false;
  switch (a.collective) {
    case Collective::kAllreduce:
    case Collective::kReducescatter:
      return a.dtype == b.dtype && a.op == b.op && a.prescale == b.prescale && a.postscale == b.postscale;
    case Collective::kBroadcast:
      return a.root == b.root;
    case Collective::kAllgather:
      return true;
    default:
      return false;
  }
}

}  // namespace

std::vector<Negotiation*> take_group(std::deque<Negotiation*>* ready, size_t position, size_t threshold) {
  Negotiation* first = (*ready)[position];
  ready->erase(ready->begin() + position);
  std::vector<Negotiation*> group{first};
  size_t bytes = bytes_of(*first);
  for (size_t at = position; at < ready->size() && bytes < threshold;) {
    Negotiation* next = (*ready)[at];
    const size_t more = bytes_of(*next);
    if (can_fuse(*first, *next) && bytes + more <= threshold) {
      bytes += more;
      group.push_back(next);
      ready->erase(ready->begin() + at);
    } else {
      ++at;
    }
  }
  return group;
}

}  // namespace compat_hvd

#include "negotiation_table.h"

namespace compat_hvd {
namespace {

std::string key_of(int set, const std::string& key) { return std::to_string(set) + ':' + key; }

template <typename Condition>
std::vector<Negotiation*> select(const std::unordered_map<std::string, std::unique_ptr<Negotiation>>& all,
                                 const Condition& condition) {
  std::vector<Negotiation*> found;
  for (const auto& [key, n] : all) {
    if (condition(*n)) found.push_back(n.get());
  }
  return found;
}

}  // namespace

Negotiation* NegotiationTable::get(const ProcessSetPointer& set, const std::string& key, const std::string& name) {
  std::unique_ptr<Negotiation>& slot = negotiations_[key_of(set->id, key)];
  if (!slot) slot = std::make_unique<Negotiation>(set, key, name);
  return slot.get();
}

void NegotiationTable::remove(Negotiation* n) { negotiations_.erase(key_of(n->set->id, n->key)); }

std::vector<Negotiation*> NegotiationTable::incomplete() const {
  return select(negotiations_, [](const Negotiation& n) { return n.waiting(); });
}

std::vector<Negotiation*> NegotiationTable::of_set(int id) const {
  return select(negotiations_, [id](const Negotiation& n) { return n.set->id == id; });
}

}  // namespace compat_hvd

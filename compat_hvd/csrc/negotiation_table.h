// The names that rank 0 knows something about, by process set.
#pragma once

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "negotiation.h"

namespace compat_hvd {

class NegotiationTable {
 public:
  // Makes it when there is none.
  Negotiation* get(const ProcessSetPointer& set, const std::string& key, const std::string& name);
  void remove(Negotiation* n);
  void forget_if_idle(Negotiation* n) {
    if (n->idle()) remove(n);
  }
  // Those that lack members.
  std::vector<Negotiation*> incomplete() const;
  std::vector<Negotiation*> of_set(int id) const;

 private:
  std::unordered_map<std::string, std::unique_ptr<Negotiation>> negotiations_;
};

}  // namespace compat_hvd

#include "execution.h"

#include "distribution.h"
#include "reduction.h"

namespace compat_hvd {
namespace {

// A barrier has happened once its response arrives: all members were ready.
class NothingToDo : public Execution {
 public:
  bool step() override { return false; }
  bool finished() const override { return true; }
};

}  // namespace

View::View(const DataPlane& plane, const ProcessSet& members) : rank(plane.topology->rank()), set(&members) {
  for (int n = 0; n < nodes(); ++n) {
    const std::vector<int>& on_node = members.by_node[n];
    if (plane.topology->node_of(on_node.front()) != plane.topology->node()) continue;
    node = n;
    local = on_node;
  }
  for (int i = 0; i < static_cast<int>(local.size()); ++i) {
    if (local[i] == rank) {
      index = i;
    } else {
      others.push_back(local[i]);
    }
  }
}

std::unique_ptr<Execution> Execution::start(const DataPlane& plane, const Response& response, Status* error) {
  switch (response.entries.front()->request.collective) {
    case Collective::kAllreduce:
      return start_reduction(plane, response);
    case Collective::kAllgather:
      return start_allgather(plane, response, error);
    case Collective::kBroadcast:
      return start_broadcast(plane, response);
    case Collective::kBarrier:
      return std::make_unique<NothingToDo>();
  }
  return nullptr;
}

}  // namespace compat_hvd

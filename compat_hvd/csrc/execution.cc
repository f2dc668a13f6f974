#include "execution.h"

#include "adasum.h"
#include "distribution.h"
#include "reduction.h"

namespace compat_hvd {
namespace {

// What has happened once its response arrives, because all members were ready.
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

Status no_memory(const Request& request, int64_t rows) {
  return Status::unknown(std::string(name_of(request.collective)) + " of tensor '" + request.name +
                         "': no memory for the " + std::to_string(rows * request.row_bytes()) +
                         " bytes of the result on this rank.");
}

std::unique_ptr<Execution> Execution::start(const DataPlane& plane, const Response& response, Status* error) {
  const Request& request = response.entries.front()->request;
  switch (request.collective) {
    case Collective::kAllreduce:
      if (request.op == ReduceOp::kAdasum) return start_adasum(plane, response);
      return start_reduction(plane, response, error);
    case Collective::kReducescatter:
      return start_reduction(plane, response, error);
    case Collective::kAllgather:
      return start_allgather(plane, response, error);
    case Collective::kAlltoall:
      return start_alltoall(plane, response, error);
    case Collective::kBroadcast:
      return start_broadcast(plane, response);
    case Collective::kJoin:
    case Collective::kAddProcessSet:
    case Collective::kRemoveProcessSet:
      response.entries.front()->results = response.sizes.front();
      return std::make_unique<NothingToDo>();
    case Collective::kBarrier:
      return std::make_unique<NothingToDo>();
  }
  return nullptr;
}

}  // namespace compat_hvd

#include "agreement.h"

#include <algorithm>
#include <cstdio>
#include <functional>
#include <utility>

#include "adasum_kernels.h"
#include "reduce_kernels.h"

namespace compat_hvd {
namespace {

using Requests = std::function<const Request&(int)>;

std::string number(double value) {
  char text[32];
  snprintf(text, sizeof text, "%.9g", value);
  return text;
}

// Compares what `describe` makes of every request. Equal texts are equal values.
Status compare(const std::vector<int>& ranks, const Requests& request, const std::string& subject,
               const std::function<std::string(const Request&)>& describe) {
  std::vector<std::pair<std::string, std::vector<int>>> groups;
  for (size_t i = 0; i < ranks.size(); ++i) {
    const std::string text = describe(request(static_cast<int>(i)));
    auto same = std::find_if(groups.begin(), groups.end(), [&](const auto& group) { return group.first == text; });
    if (same == groups.end()) same = groups.insert(groups.end(), {text, {}});
    same->second.push_back(ranks[i]);
  }
  if (groups.size() <= 1) return {};
  std::string message = "Mismatched " + subject + " for tensor '" + request(0).name + "': ";
  for (size_t i = 0; i < groups.size(); ++i) {
    message += (i ? "; " : "") + ranks_text(groups[i].second) + " sent " + groups[i].first;
  }
  return Status::failed_precondition(message + ". All of them must send the same; nothing was communicated.");
}

std::string trailing(const Request& r) {
  std::vector<int64_t> shape = r.shape;
  std::string text = shape_text(shape);
  if (!shape.empty())
    text = "[?" + (shape.size() > 1 ? ", " + shape_text({shape.begin() + 1, shape.end()}).substr(1) : "]");
  return text;
}

Status check_reduction(const std::vector<int>& ranks, const Requests& request) {
  Status status = compare(ranks, request, "prescale and/or postscale factors", [](const Request& r) {
    return "factors (" + number(r.prescale) + ", " + number(r.postscale) + ")";
  });
  if (!status.ok()) return status;
  status = compare(ranks, request, "reduction operation", [](const Request& r) { return std::string(name_of(r.op)); });
  if (!status.ok()) return status;
  const Request& first = request(0);
  const std::string what = std::string(name_of(first.collective)) + " of tensor '" + first.name + "': ";
  if (!can_reduce(first.dtype)) {
    return Status::invalid_argument(
        "allreduce of tensor '" + first.name + "': data type " + name_of(first.dtype) +
        " cannot be reduced; cast it to one of float16, bfloat16, float32, float64, int8, uint8, "
        "int32, int64.");
  }
  if (static_cast<int>(first.op) < 0 || static_cast<int>(first.op) > 5) {
    return Status::invalid_argument(what + "reduce op " + std::to_string(static_cast<int>(first.op)) +
                                    " is none; use Average, Sum, Adasum, Min, Max or Product.");
  }
  return {};
}

Status check_not_scalar(const Request& request, const std::string& verb) {
  if (!request.shape.empty()) return {};
  return Status::failed_precondition(std::string(name_of(request.collective)) + " of tensor '" + request.name +
                                     "': a scalar has no first dimension to " + verb + " along; reshape it to [1].");
}

Status check_root(const std::vector<int>& ranks, const Request& request) {
  if (std::binary_search(ranks.begin(), ranks.end(), request.root)) return {};
  return Status::invalid_argument("broadcast of tensor '" + request.name + "': root rank " +
                                  std::to_string(request.root) + " is not a member of the process set, which holds " +
                                  ranks_text(ranks) + "; root ranks are global ranks.");
}

// The requests themselves; `request(i)` is that of `ranks[i]`.
Status check_requests(const std::vector<int>& ranks, const Requests& request) {
  const std::string what = name_of(request(0).collective);
  const auto same = [&](const std::string& subject, const auto& describe) {
    return compare(ranks, request, subject, describe);
  };
  const auto shape = [](const Request& r) { return "shape " + shape_text(r.shape); };
  Status status = same("operations", [](const Request& r) { return std::string(name_of(r.collective)); });
  if (status.ok())
    status = same("group sizes", [](const Request& r) { return "a group of " + std::to_string(r.group_size); });
  if (status.ok()) status = same("data types", [](const Request& r) { return std::string(name_of(r.dtype)); });
  if (!status.ok()) return status;
  switch (request(0).collective) {
    case Collective::kAllreduce:
      status = same(what + " tensor shapes", shape);
      return status.ok() ? check_reduction(ranks, request) : status;
    case Collective::kReducescatter:
      status = same(what + " tensor shapes", shape);
      if (status.ok()) status = check_not_scalar(request(0), "scatter");
      return status.ok() ? check_reduction(ranks, request) : status;
    case Collective::kBroadcast:
      status = same(what + " root ranks", [](const Request& r) { return "root rank " + std::to_string(r.root); });
      if (status.ok()) status = same(what + " tensor shapes", shape);
      return status.ok() ? check_root(ranks, request(0)) : status;
    case Collective::kAllgather:
    case Collective::kAlltoall:
      status = same(what + " tensor shapes (all but the first dimension)",
                    [](const Request& r) { return "shape " + trailing(r); });
      return status.ok() ? check_not_scalar(request(0), "gather") : status;
    case Collective::kAddProcessSet:
    case Collective::kRemoveProcessSet:
      return same(what + " arguments", [](const Request& r) { return shape_text(r.sizes); });
    case Collective::kBarrier:
    case Collective::kJoin:
      return {};
  }
  return {};
}

// Only an allreduce can do without the ranks that have joined.
Status check_absent(const Negotiation& n) {
  const Request& request = n.any_request();
  if (n.all_present() || request.collective == Collective::kAllreduce) return {};
  std::vector<int> absent;
  for (int i = 0; i < n.set->size(); ++i) {
    if (!n.submissions[i].present) absent.push_back(n.set->ranks[i]);
  }
  return Status::failed_precondition(std::string(name_of(request.collective)) + " of tensor '" + n.name +
                                     "' is not supported while ranks have joined (" + ranks_text(absent) +
                                     "): only allreduce is. Sparse gradients need sparse_as_dense=True.");
}

Status check_adasum(const Request& request, const ProcessSet& set) {
  if (request.op != ReduceOp::kAdasum) return {};
  const std::string what = std::string(name_of(request.collective)) + " of tensor '" + request.name + "' with Adasum: ";
  if (request.collective == Collective::kReducescatter) {
    return Status::invalid_argument(what + "only allreduce has it; use Average, Sum, Min, Max or Product.");
  }
  if (!can_adasum(request.dtype)) {
    return Status::invalid_argument(what + "data type " + name_of(request.dtype) +
                                    " has no adaptive sum; cast it to one of float16, bfloat16, float32, float64.");
  }
  if (set.id != 0) {
    return Status::invalid_argument(what + "it takes all ranks, not process set " + std::to_string(set.id) + ".");
  }
  if ((set.size() & (set.size() - 1)) != 0) {
    return Status::invalid_argument(what + "it needs a number of ranks that is a power of two, not " +
                                    std::to_string(set.size()) + ".");
  }
  return {};
}

Status check_new_set(const Request& request, const ProcessSetTable& sets) {
  if (request.collective != Collective::kAddProcessSet) return {};
  const std::vector<int> ranks(request.sizes.begin(), request.sizes.end());
  const int existing = sets.find(ranks);
  if (existing < 0) return {};
  return Status::invalid_argument("a process set with " + ranks_text(ranks) + " exists already: its id is " +
                                  std::to_string(existing) + ".");
}

}  // namespace

std::string ranks_text(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < ranks.size(); ++i) text += (i ? ", " : "") + std::to_string(ranks[i]);
  return text;
}

Status membership(const Request& request, const ProcessSetPointer& set, int rank) {
  if (set && set->contains(rank)) return {};
  const std::string id = std::to_string(request.process_set);
  return Status::invalid_argument(std::string(name_of(request.collective)) + " of tensor '" + request.name + "': " +
                                  (set ? "rank " + std::to_string(rank) + " is not a member of process set " + id +
                                             ", which holds " + ranks_text(set->ranks) + "."
                                       : "process set " + id + " does not exist, or has not been registered."));
}

Status agreement(const Negotiation& n, const ProcessSetTable& sets) {
  Status status = check_absent(n);
  if (!status.ok() || n.all_cached()) return status;
  const std::vector<int> positions = n.positions();
  status = check_requests(n.participants(), [&](int i) -> const Request& { return n.request(positions[i]); });
  if (status.ok()) status = check_adasum(n.any_request(), *n.set);
  return status.ok() ? check_new_set(n.any_request(), sets) : status;
}

}  // namespace compat_hvd

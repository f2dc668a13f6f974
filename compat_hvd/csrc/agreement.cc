#include "agreement.h"

#include <algorithm>
#include <cstdio>
#include <utility>

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
  if (!can_reduce(first.dtype)) {
    return Status::invalid_argument(
        "allreduce of tensor '" + first.name + "': data type " + name_of(first.dtype) +
        " cannot be reduced; cast it to one of float16, bfloat16, float32, float64, int8, uint8, "
        "int32, int64.");
  }
  if (first.op == ReduceOp::kAdasum || static_cast<int>(first.op) < 0 || static_cast<int>(first.op) > 5) {
    return Status::invalid_argument("allreduce of tensor '" + first.name + "': reduce op " +
                                    std::to_string(static_cast<int>(first.op)) +
                                    " is not supported here; use Average, Sum, Min, Max or Product.");
  }
  return {};
}

}  // namespace

std::string ranks_text(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < ranks.size(); ++i) text += (i ? ", " : "") + std::to_string(ranks[i]);
  return text;
}

Status agreement(const std::vector<int>& ranks, const Requests& request) {
  const std::string what = name_of(request(0).collective);
  Status status =
      compare(ranks, request, "operations", [](const Request& r) { return std::string(name_of(r.collective)); });
  if (status.ok()) {
    status = compare(ranks, request, "data types", [](const Request& r) { return std::string(name_of(r.dtype)); });
  }
  if (!status.ok()) return status;
  switch (request(0).collective) {
    case Collective::kAllreduce:
      status = compare(ranks, request, what + " tensor shapes",
                       [](const Request& r) { return "shape " + shape_text(r.shape); });
      return status.ok() ? check_reduction(ranks, request) : status;
    case Collective::kBroadcast:
      status = compare(ranks, request, what + " root ranks",
                       [](const Request& r) { return "root rank " + std::to_string(r.root); });
      if (!status.ok()) return status;
      status = compare(ranks, request, what + " tensor shapes",
                       [](const Request& r) { return "shape " + shape_text(r.shape); });
      if (!status.ok()) return status;
      if (!std::binary_search(ranks.begin(), ranks.end(), request(0).root)) {
        return Status::invalid_argument(
            "broadcast of tensor '" + request(0).name + "': root rank " + std::to_string(request(0).root) +
            " is not a member of the process set, which holds " + ranks_text(ranks) + "; root ranks are global ranks.");
      }
      return status;
    case Collective::kAllgather:
      status = compare(ranks, request, what + " tensor shapes (all but the first dimension)",
                       [](const Request& r) { return "shape " + trailing(r); });
      if (status.ok() && request(0).shape.empty()) {
        status = Status::failed_precondition("allgather of tensor '" + request(0).name +
                                             "': a scalar has no first dimension to gather along; reshape it to [1].");
      }
      return status;
    case Collective::kBarrier:
      return {};
  }
  return {};
}

}  // namespace compat_hvd

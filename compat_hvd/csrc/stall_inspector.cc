#include "stall_inspector.h"

#include <algorithm>

#include "agreement.h"

namespace compat_hvd {
namespace {

constexpr size_t kNamesPerRank = 6;

std::string seconds(int64_t nanoseconds) { return std::to_string(nanoseconds / 1000000000); }

std::vector<int> listed(const std::set<int>& ranks) { return {ranks.begin(), ranks.end()}; }

// "1: [a, b]" for each rank, with what it has not submitted.
std::string missing_text(const std::vector<Waiting>& waiting) {
  std::map<int, std::vector<std::string>> names;
  for (const Waiting& one : waiting) {
    for (int rank : one.missing) names[rank].push_back(one.name);
  }
  std::string text;
  for (const auto& [rank, list] : names) {
    text += "\n" + std::to_string(rank) + ": [";
    for (size_t i = 0; i < list.size() && i < kNamesPerRank; ++i) text += (i ? ", " : "") + list[i];
    text += list.size() > kNamesPerRank ? ", ...]" : "]";
  }
  return text;
}

bool intersects(const std::vector<int>& ranks, const std::set<int>& group) {
  return std::any_of(ranks.begin(), ranks.end(), [&](int rank) { return group.count(rank) > 0; });
}

}  // namespace

std::set<int> mutually_waiting(const std::vector<Waiting>& waiting) {
  std::set<int> group;
  for (const Waiting& one : waiting) group.insert(one.present.begin(), one.present.end());
  for (bool changed = true; changed;) {
    changed = false;
    for (const Waiting& one : waiting) {
      if (intersects(one.missing, group)) continue;
      // Ranks outside the group may complete this one, and with it those that wait for it.
      for (int rank : one.present) changed |= group.erase(rank) > 0;
    }
  }
  return group;
}

StallInspector::Findings StallInspector::look(int64_t now, const std::vector<Waiting>& waiting,
                                              const std::vector<uint64_t>& events) {
  Findings findings;
  if (options_.warn > 0) look_for_stalls(now, waiting, &findings);
  if (options_.deadlock > 0) look_for_mutual_wait(now, waiting, events, &findings);
  return findings;
}

void StallInspector::look_for_stalls(int64_t now, const std::vector<Waiting>& waiting, Findings* findings) {
  std::vector<Waiting> stalled;
  for (size_t i = 0; i < waiting.size(); ++i) {
    const int64_t age = now - waiting[i].since;
    if (age >= options_.warn) stalled.push_back(waiting[i]);
    if (options_.limit > 0 && age >= options_.limit) {
      findings->failures[i] = Status::unknown(
          "tensor '" + waiting[i].name + "' has waited for " + ranks_text(waiting[i].missing) + " for more than " +
          seconds(options_.limit) + " s (HOROVOD_STALL_SHUTDOWN_TIME_SECONDS); " + ranks_text(waiting[i].present) +
          " had submitted it. Every rank must run the same collectives.");
    }
  }
  if (stalled.empty() || now < next_warning_) return;
  next_warning_ = now + options_.warn;
  findings->warnings.push_back(
      "One or more tensors were submitted to be reduced, gathered or broadcasted by subset of ranks and are waiting "
      "for "
      "remainder of ranks for more than " +
      seconds(options_.warn) +
      " seconds. This may indicate that different ranks are trying to submit different tensors or that only subset of "
      "ranks "
      "is submitting tensors, which will cause deadlock.\nMissing ranks:" +
      missing_text(stalled));
}

void StallInspector::begin_watch(int64_t now, const std::set<int>& group, const std::vector<uint64_t>& state) {
  group_ = group;
  state_ = state;
  group_since_ = now;
  asked_since_ = 0;
  warned_ = asked_again_ = false;
  first_usage_.clear();
  last_usage_.clear();
}

void StallInspector::look_for_mutual_wait(int64_t now, const std::vector<Waiting>& waiting,
                                          const std::vector<uint64_t>& events, Findings* findings) {
  const std::set<int> group = mutually_waiting(waiting);
  std::vector<uint64_t> state;
  for (int rank : group) state.push_back(events[rank]);
  if (group != group_ || state != state_) begin_watch(now, group, state);
  if (group.empty()) return;
  const int64_t age = now - group_since_;
  // The use of the processor is measured over the second half of the wait.
  const int64_t warn_at = options_.deadlock * 2 / 5;
  if (!warned_ && age >= warn_at) {
    warned_ = true;
    asked_since_ = now;
    findings->ask = listed(group);
    std::vector<Waiting> theirs;
    std::copy_if(waiting.begin(), waiting.end(), std::back_inserter(theirs),
                 [&](const Waiting& one) { return intersects(one.present, group); });
    findings->warnings.push_back(
        ranks_text(listed(group)) + " wait for each other since " + seconds(age) +
        " s: each has submitted collectives that another one has not. Still missing:" + missing_text(theirs));
  } else if (age >= options_.deadlock && !asked_again_) {
    asked_again_ = true;
    findings->ask = listed(group);
  } else if (asked_again_ && last_usage_.size() == group.size()) {
    if (all_idle(now)) {
      for (size_t i = 0; i < waiting.size(); ++i) {
        if (!intersects(waiting[i].present, group)) continue;
        findings->failures[i] = Status::unknown(
            "tensor '" + waiting[i].name + "' cannot complete: " + ranks_text(listed(group)) +
            " wait for each other since " + seconds(age) + " s (COMPAT_HVD_DEADLOCK_SECONDS). " +
            ranks_text(waiting[i].present) + " submitted it, " + ranks_text(waiting[i].missing) +
            " did not. Usually another op of the same step has failed on one rank, or the ranks run different graphs.");
      }
    } else {
      begin_watch(now, group, state);  // somebody computes: a long step is not a deadlock
    }
  }
}

void StallInspector::usage(int rank, int64_t nanoseconds) {
  if (!group_.count(rank)) return;
  (asked_again_ ? last_usage_ : first_usage_)[rank] = nanoseconds;
}

bool StallInspector::all_idle(int64_t now) const {
  for (const auto& [rank, last] : last_usage_) {
    const auto first = first_usage_.find(rank);
    if (first == first_usage_.end() || last - first->second > (now - asked_since_) / 10) return false;
  }
  return true;
}

}  // namespace compat_hvd

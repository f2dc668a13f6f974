// Looks at collectives that wait for ranks: warns about those that wait long, and recognises ranks that wait for each
// other.
//
// *Stall*: some rank has not submitted what others wait for. It is named every `warn` and, past `limit`, the collective
// fails.
//
// *Mutual wait*: a group of ranks of which each has entries pending, and each of those entries lacks a rank of the
// group. None can go on – unless one of them is computing something long before it submits the rest. So the group fails
// only if, over the time of the judgement, no rank of it used more than a tenth of a core beyond its worker. A rank
// with nothing pending is merely late and never part of a group.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "status.h"

namespace compat_hvd {

struct StallOptions {
  int64_t warn = 60000000000;      // nanoseconds; 0: no warnings and no limit
  int64_t limit = 0;               // 0: never
  int64_t deadlock = 25000000000;  // 0: mutual wait is not judged
};

// A collective that lacks ranks.
struct Waiting {
  std::string name;
  std::vector<int> present, missing;
  int64_t since = 0;
};

class StallInspector {
 public:
  struct Findings {
    std::vector<std::string> warnings;
    std::map<size_t, Status> failures;  // by position among the waiting
    std::vector<int> ask;               // ranks whose use of the processor must be known
  };

  explicit StallInspector(const StallOptions& options) : options_(options) {}

  // `events[r]` changes whenever rank r submits or gets an answer.
  Findings look(int64_t now, const std::vector<Waiting>& waiting, const std::vector<uint64_t>& events);
  // The processor time in nanoseconds that rank has used beyond its worker.
  void usage(int rank, int64_t nanoseconds);

 private:
  void look_for_stalls(int64_t now, const std::vector<Waiting>& waiting, Findings* findings);
  void look_for_mutual_wait(int64_t now, const std::vector<Waiting>& waiting, const std::vector<uint64_t>& events,
                            Findings* findings);
  void begin_watch(int64_t now, const std::set<int>& group, const std::vector<uint64_t>& state);
  bool all_idle(int64_t now) const;

  StallOptions options_;
  int64_t next_warning_ = 0;
  // The group under observation: its members' events must not change.
  std::set<int> group_;
  std::vector<uint64_t> state_;
  int64_t group_since_ = 0, asked_since_ = 0;
  bool warned_ = false, asked_again_ = false;
  std::map<int, int64_t> first_usage_, last_usage_;
};

// The largest set of ranks of which each waits only for collectives that lack a rank of the set.
std::set<int> mutually_waiting(const std::vector<Waiting>& waiting);

}  // namespace compat_hvd

// What rank 0 knows about one name in one process set, as long as it is pending, cached or owed.
#pragma once

#include <algorithm>
#include <cstdint>
#include <list>
#include <map>
#include <string>
#include <vector>

#include "message.h"
#include "topology.h"

namespace compat_hvd {

struct Submission {
  uint64_t ticket = 0;
  bool present = false;
  bool cached = false;
  std::vector<int64_t> variable_part;
  Request request;  // unset when cached
};

struct Debt {
  int count = 0;
  Status status;
};

struct Negotiation {
  Negotiation(ProcessSetPointer process_set, std::string request_key, std::string tensor_name)
      : set(std::move(process_set)),
        key(std::move(request_key)),
        name(std::move(tensor_name)),
        submissions(set->ranks.size()) {}

  ProcessSetPointer set;
  std::string key;                      // what the members' entries match by
  std::string name;                     // for messages
  std::vector<Submission> submissions;  // by position in the set
  int present = 0;
  bool ready = false;                     // all who take part have submitted, and agree
  int64_t since = 0;                      // when the first member submitted
  uint32_t cache_id = 0;                  // 0: none
  Request signature;                      // of the cached request
  std::list<Negotiation*>::iterator age;  // among the cached ones
  std::map<int, Debt> debts;              // by position in the set

  bool idle() const { return present == 0 && cache_id == 0 && debts.empty(); }
  bool waiting() const { return present > 0 && !ready; }
  bool all_present() const { return present == set->size(); }
  bool all_cached() const {
    return std::all_of(submissions.begin(), submissions.end(),
                       [](const Submission& s) { return s.cached || !s.present; });
  }
  const Request& request(int index) const { return submissions[index].cached ? signature : submissions[index].request; }
  // Positions of those who have submitted.
  std::vector<int> positions() const {
    std::vector<int> found;
    for (int i = 0; i < set->size(); ++i) {
      if (submissions[i].present) found.push_back(i);
    }
    return found;
  }
  std::vector<int> participants() const {
    std::vector<int> ranks;
    for (int i : positions()) ranks.push_back(set->ranks[i]);
    return ranks;
  }
  // The next `count` submissions of the member at `position` fail with `status`.
  void owe(int position, int count, const Status& status) {
    Debt& debt = debts[position];
    debt.count += count;
    debt.status = status;
  }
  const Request& any_request() const { return request(positions().front()); }
  void clear() {
    for (Submission& s : submissions) s = {};
    present = 0;
    ready = false;
  }
};

}  // namespace compat_hvd

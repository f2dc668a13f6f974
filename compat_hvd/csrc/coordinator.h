// Rank 0's part: decides what runs and in which order.
//
// Every rank announces its entries here by name. When all members of a process set have announced a name and agree, the
// coordinator sends them a response; one coordinator orders the responses of all process sets, and every rank executes
// its share of that one sequence, so that overlapping sets cannot wait for each other in a circle.
//
// A failed negotiation is answered to the members that have submitted. Each other member owes one: its next submission
// of the name gets the same error (a debt), because its own failed share is still to come. So one rank's error is every
// rank's error, at its submission, and the job goes on.
#pragma once

#include <cstdint>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "message.h"
#include "stall_inspector.h"
#include "topology.h"

namespace compat_hvd {

struct CoordinatorOptions {
  size_t fusion_threshold = 128u << 20;  // bytes; 0: nothing is fused
  size_t cache_capacity = 1024;          // 0: no cache
  StallOptions stall;
};

class Coordinator {
 public:
  struct Outgoing {
    Destination destination;
    DownMessage message;
  };

  Coordinator(const Topology& topology, const ProcessSetTable& sets, const CoordinatorOptions& options);

  void receive(const UpMessage& message);
  // Forms responses from what is ready. While `busy` (rank 0 is executing), what rank 0 takes part in waits, so that it
  // is fused with whatever becomes ready meanwhile.
  void respond(bool busy);
  // Looks for collectives that wait too long. `now` is in nanoseconds; calls may be as frequent as one likes.
  void inspect(int64_t now);
  // A rank has ended without leaving in an orderly way.
  void dead(int rank, const std::string& how);
  std::vector<Outgoing> take();

 private:
  struct Submission {
    uint64_t ticket = 0;
    bool present = false;
    bool cached = false;
    int64_t first_dimension = 0;
    Request request;  // unset when cached
  };
  struct Debt {
    int count = 0;
    Status status;
  };
  // What is known about one name in one process set, as long as it is pending, cached or owed.
  struct Negotiation {
    const ProcessSet* set = nullptr;
    std::string name;
    std::vector<Submission> submissions;  // by position in the set
    int present = 0;
    int64_t since = 0;  // when the first member submitted
    uint32_t cache_id = 0;
    Request signature;  // of the cached request
    std::list<Negotiation*>::iterator age;
    std::map<int, Debt> debts;
  };
  struct Retired {
    uint32_t id;
    uint64_t sequence;
    Request signature;
  };
  enum class Presence : uint8_t { kRunning, kGone };

  void receive_request(int rank, uint64_t ticket, Request request);
  void receive_cached(int rank, uint64_t ticket, uint32_t id, int64_t first_dimension);
  // True when the submission was answered with an error here.
  bool refused(Negotiation* n, int rank, int index, uint64_t ticket, const Status& error);
  void record(Negotiation* n, int index, Submission submission);
  void goodbye(int rank, uint64_t completed);
  Negotiation* negotiation(const ProcessSet& set, const std::string& name);
  void forget_if_idle(Negotiation* n);
  void fail(Negotiation* n, int rank, int extra, const Status& status);
  void answer(int rank, uint64_t ticket, const Status& status);
  Status disagreement(const Negotiation& n) const;
  const Request& request_of(const Negotiation& n, int index) const;
  bool can_join(const Negotiation& first, const Negotiation& other) const;
  size_t bytes_of(const Negotiation& n) const;
  void execute(const std::vector<Negotiation*>& group);
  ExecuteItem item_for(Negotiation* n, DownMessage* message);
  // Returns the name that lost its id for it, or `n` itself.
  Negotiation* assign_cache_id(Negotiation* n, DownMessage* message);
  void revoke(Negotiation* n, DownMessage* message);
  void purge_retired();
  Status departure(int rank, const Negotiation& n) const;
  void check_all_gone();
  std::vector<Negotiation*> incomplete() const;

  const Topology& topology_;
  const ProcessSetTable& sets_;
  CoordinatorOptions options_;
  std::unordered_map<std::string, std::unique_ptr<Negotiation>> negotiations_;
  std::unordered_map<uint32_t, Negotiation*> by_cache_id_;
  std::list<Negotiation*> ages_;  // cached ones, least recently used first
  std::deque<Retired> retired_;
  std::deque<Negotiation*> ready_;
  std::vector<Outgoing> outgoing_;
  StallInspector inspector_;
  std::vector<uint64_t> events_;  // of each rank: submissions and answers
  int64_t now_ = 0, next_inspection_ = 0;
  std::vector<uint64_t> acknowledged_;
  std::vector<Presence> presence_;
  std::vector<uint64_t> completed_;
  uint64_t sequence_ = 0;
  uint32_t last_cache_id_ = 0;
  int gone_ = 0;
  bool fatal_ = false;
};

}  // namespace compat_hvd

// Rank 0's part: decides what runs and in which order.
//
// Every rank announces its entries here by name. When all members of a process set have announced a name and agree, the
// coordinator sends them a response; one coordinator orders the responses of all process sets, and every rank executes
// its share of that one sequence, so that overlapping sets cannot wait for each other in a circle.
//
// A failed negotiation is answered to the members that have submitted. Each other member owes one: its next submission
// of the name gets the same error (a debt), because its own failed share is still to come. So one rank's error is every
// rank's error, at its submission, and the job goes on.
//
// A rank that has joined takes no part in the reductions of the world until all have joined: the others go on without
// it.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "cache_ids.h"
#include "message.h"
#include "negotiation_table.h"
#include "stall_inspector.h"
#include "timeline.h"
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

  // `sets` holds the world of `ranks` ranks as set 0, and what init() was given.
  Coordinator(int ranks, const ProcessSetTable& sets, const CoordinatorOptions& options, Timeline* timeline);

  void receive(const UpMessage& message);
  // Forms responses from what is ready. While `busy` (rank 0 is executing), what rank 0 takes part in waits, so that it
  // is fused with whatever becomes ready meanwhile.
  void respond(bool busy);
  // Tells the time in nanoseconds, before anything is received, and looks for collectives that wait too long.
  void inspect(int64_t now);
  // A rank has ended without leaving in an orderly way.
  void dead(int rank, const std::string& how);
  std::vector<Outgoing> take();

 private:
  // Submissions
  void receive_request(int rank, uint64_t ticket, Request request);
  void receive_cached(const UpMessage& message);
  // True when the submission was answered with an error here.
  bool refused(Negotiation* n, int rank, int index, uint64_t ticket, const Status& error);
  void record(Negotiation* n, int index, Submission submission);
  void join(int rank);
  void settle(Negotiation* n);
  void fail_rest_of_group(const Negotiation& n, const Status& status);
  // Members that must still submit.
  std::vector<int> missing(const Negotiation& n) const;
  void fail(Negotiation* n, int rank, int extra, const Status& status);
  void end(Negotiation* n, const Status& status);
  void answer(int rank, uint64_t ticket, const Status& status);

  // Departures
  void goodbye(int rank, uint64_t completed);
  Status departure(int rank, const Negotiation& n) const;

  // Responses
  void execute(const std::vector<Negotiation*>& group);
  ExecuteItem item_for(const Negotiation& n);
  void update_cache(Negotiation* n, DownMessage* message, std::vector<Negotiation*>* touched);
  int64_t new_set_id();
  void retire_set(int id, DownMessage* message);

  const ProcessSetTable& sets_;
  CoordinatorOptions options_;
  Timeline* timeline_;
  NegotiationTable negotiations_;
  CacheIds cache_;
  std::deque<Negotiation*> ready_;
  std::vector<Outgoing> outgoing_;
  StallInspector inspector_;
  std::vector<uint64_t> events_;        // of each rank: submissions and answers
  std::vector<uint64_t> acknowledged_;  // of each rank
  std::vector<bool> gone_;              // ranks that have said goodbye
  std::vector<uint64_t> completed_;     // collectives of each of these
  std::vector<bool> joined_;
  int last_joined_ = -1;
  std::deque<int64_t> free_set_ids_;  // of removed sets, oldest first
  int64_t next_set_id_;
  int64_t now_ = 0, next_inspection_ = 0;
  uint64_t sequence_ = 0;
  bool fatal_ = false;
};

}  // namespace compat_hvd

#include "coordinator.h"

#include <algorithm>
#include <cstdio>
#include <set>

#include "agreement.h"

namespace compat_hvd {
namespace {

constexpr int64_t kInspectionInterval = 500000000;

std::string key_of(int set, const std::string& name) { return std::to_string(set) + ':' + name; }

}  // namespace

Coordinator::Coordinator(const Topology& topology, const ProcessSetTable& sets, const CoordinatorOptions& options)
    : topology_(topology),
      sets_(sets),
      options_(options),
      inspector_(options.stall),
      events_(topology.size(), 0),
      acknowledged_(topology.size(), 0),
      presence_(topology.size(), Presence::kRunning),
      completed_(topology.size(), 0) {}

std::vector<Coordinator::Outgoing> Coordinator::take() {
  std::vector<Outgoing> messages;
  messages.swap(outgoing_);
  return messages;
}

void Coordinator::receive(const UpMessage& message) {
  uint64_t& acknowledged = acknowledged_.at(message.rank);
  acknowledged = std::max(acknowledged, message.acknowledged);
  switch (message.kind) {
    case Up::kRequest:
      return receive_request(message.rank, message.ticket, message.request);
    case Up::kCachedRequest:
      return receive_cached(message.rank, message.ticket, message.cache_id, message.first_dimension);
    case Up::kGoodbye:
      return goodbye(message.rank, message.completed);
    case Up::kFailure:
      return dead(message.rank, message.text);
    case Up::kDeath:
      return dead(message.subject, message.text);
    case Up::kUsage:
      return inspector_.usage(message.rank, message.usage);
    case Up::kAcknowledge:
    case Up::kLast:
    case Up::kHeartbeat:
      return;
  }
}

// ---- Submissions ----

Coordinator::Negotiation* Coordinator::negotiation(const ProcessSet& set, const std::string& name) {
  std::unique_ptr<Negotiation>& slot = negotiations_[key_of(set.id, name)];
  if (!slot) {
    slot = std::make_unique<Negotiation>();
    slot->set = &set;
    slot->name = name;
    slot->submissions.resize(set.ranks.size());
  }
  return slot.get();
}

void Coordinator::forget_if_idle(Negotiation* n) {
  if (n->present == 0 && n->cache_id == 0 && n->debts.empty()) negotiations_.erase(key_of(n->set->id, n->name));
}

void Coordinator::receive_request(int rank, uint64_t ticket, Request request) {
  const ProcessSet* set = sets_.find(request.process_set);
  if (!set || !set->contains(rank)) {
    const std::string id = std::to_string(request.process_set);
    return answer(
        rank, ticket,
        Status::invalid_argument(std::string(name_of(request.collective)) + " of tensor '" + request.name + "': " +
                                 (set ? "rank " + std::to_string(rank) + " is not a member of process set " + id +
                                            ", which holds " + ranks_text(set->ranks) + "."
                                      : "process set " + id + " does not exist, or has not been registered.")));
  }
  Negotiation* n = negotiation(*set, request.name);
  const int index = set->index_of(rank);
  if (refused(n, rank, index, ticket, request.error)) return;
  const int64_t first = request.shape.empty() ? 0 : request.shape[0];
  record(n, index, {ticket, true, false, first, std::move(request)});
}

void Coordinator::receive_cached(int rank, uint64_t ticket, uint32_t id, int64_t first_dimension) {
  auto at = by_cache_id_.find(id);
  if (at == by_cache_id_.end()) {
    // Revoked while the request was on its way.
    auto retired = std::find_if(retired_.begin(), retired_.end(), [&](const Retired& r) { return r.id == id; });
    if (retired == retired_.end()) {
      return answer(rank, ticket, Status::unknown("internal error: unknown cache id " + std::to_string(id)));
    }
    Request request = retired->signature;
    if (!request.shape.empty()) request.shape[0] = first_dimension;
    return receive_request(rank, ticket, std::move(request));
  }
  Negotiation* n = at->second;
  const int index = n->set->index_of(rank);
  if (refused(n, rank, index, ticket, {})) return;
  record(n, index, {ticket, true, true, first_dimension, {}});
}

bool Coordinator::refused(Negotiation* n, int rank, int index, uint64_t ticket, const Status& error) {
  for (int member : n->set->ranks) {
    if (presence_[member] == Presence::kRunning) continue;
    answer(rank, ticket, departure(member, *n));
    forget_if_idle(n);
    return true;
  }
  auto debt = n->debts.find(index);
  if (debt != n->debts.end()) {
    answer(rank, ticket, debt->second.status);
    if (--debt->second.count == 0) n->debts.erase(debt);
    forget_if_idle(n);
    return true;
  }
  const bool twice = n->submissions[index].present;
  if (!twice && error.ok()) return false;
  const Status status =
      !error.ok() ? error
                  : Status::invalid_argument("tensor '" + n->name + "' was submitted by rank " + std::to_string(rank) +
                                             " while an earlier one of the same name was still in flight; use "
                                             "a different name for each.");
  answer(rank, ticket, status);
  fail(n, index, 1, status);
  return true;
}

void Coordinator::record(Negotiation* n, int index, Submission submission) {
  n->submissions[index] = std::move(submission);
  ++events_[n->set->ranks[index]];
  if (n->present == 0) n->since = now_;
  if (++n->present < n->set->size()) return;
  const Status status = disagreement(*n);
  if (status.ok()) {
    ready_.push_back(n);
  } else {
    fail(n, -1, 0, status);
  }
}

const Request& Coordinator::request_of(const Negotiation& n, int index) const {
  return n.submissions[index].cached ? n.signature : n.submissions[index].request;
}

Status Coordinator::disagreement(const Negotiation& n) const {
  const bool all_cached =
      std::all_of(n.submissions.begin(), n.submissions.end(), [](const Submission& s) { return s.cached; });
  if (all_cached) return {};
  return agreement(n.set->ranks, [&](int index) -> const Request& { return request_of(n, index); });
}

// Answers all who have submitted; `extra` submissions of the member at `index` were answered by the caller. Every
// member ends with as many failed submissions as the one with the most.
void Coordinator::fail(Negotiation* n, int index, int extra, const Status& status) {
  int most = 0;
  std::vector<int> submitted(n->submissions.size());
  for (size_t i = 0; i < n->submissions.size(); ++i) {
    submitted[i] = n->submissions[i].present + (static_cast<int>(i) == index ? extra : 0);
    most = std::max(most, submitted[i]);
  }
  for (size_t i = 0; i < n->submissions.size(); ++i) {
    if (n->submissions[i].present) answer(n->set->ranks[i], n->submissions[i].ticket, status);
    n->submissions[i] = {};
    if (submitted[i] < most) {
      Debt& debt = n->debts[static_cast<int>(i)];
      debt.count += most - submitted[i];
      debt.status = status;
    }
  }
  if (n->present == n->set->size()) ready_.erase(std::remove(ready_.begin(), ready_.end(), n), ready_.end());
  n->present = 0;
  forget_if_idle(n);
}

void Coordinator::answer(int rank, uint64_t ticket, const Status& status) {
  ++events_[rank];
  DownMessage message;
  message.kind = Down::kFail;
  message.ticket = ticket;
  message.status = status;
  outgoing_.push_back({Destination::rank(rank), std::move(message)});
}

// ---- Departures ----

Status Coordinator::departure(int rank, const Negotiation& n) const {
  return Status::unknown(
      "tensor '" + n.name + "' cannot be communicated: rank " + std::to_string(rank) +
      " has left the job (it ended normally after " + std::to_string(completed_[rank]) +
      " collectives). Give every rank the same number of steps, for example with a StopAtStepHook on the "
      "global step or by repeating the shorter shards of the data.");
}

void Coordinator::goodbye(int rank, uint64_t completed) {
  if (presence_[rank] == Presence::kGone) return;
  presence_[rank] = Presence::kGone;
  completed_[rank] = completed;
  acknowledged_[rank] = UINT64_MAX;
  ++gone_;
  for (Negotiation* n : incomplete()) {
    if (!n->set->contains(rank)) continue;
    // Later submissions are refused because of the departure itself: nobody is left owing.
    const Status status = departure(rank, *n);
    fail(n, -1, 0, status);
  }
  check_all_gone();
}

void Coordinator::check_all_gone() {
  if (gone_ < topology_.size() || fatal_) return;
  DownMessage message;
  message.kind = Down::kAllGone;
  outgoing_.push_back({Destination::all(), std::move(message)});
}

void Coordinator::dead(int rank, const std::string& how) {
  if (fatal_) return;
  fatal_ = true;
  DownMessage message;
  message.kind = Down::kFatal;
  message.status = Status::unknown("rank " + std::to_string(rank) + " " + how + "; the job cannot go on.");
  outgoing_.push_back({Destination::all(), std::move(message)});
}

// ---- Responses ----

size_t Coordinator::bytes_of(const Negotiation& n) const {
  const Request& request = request_of(n, 0);
  if (request.collective != Collective::kAllgather) return request.bytes();
  size_t row = size_of(request.dtype);
  for (size_t i = 1; i < request.shape.size(); ++i) row *= static_cast<size_t>(request.shape[i]);
  size_t rows = 0;
  for (const Submission& s : n.submissions) rows += static_cast<size_t>(s.first_dimension);
  return rows * row;
}

bool Coordinator::can_join(const Negotiation& first, const Negotiation& other) const {
  if (first.set != other.set) return false;
  const Request& a = request_of(first, 0);
  const Request& b = request_of(other, 0);
  if (a.collective != b.collective) return false;
  switch (a.collective) {
    case Collective::kAllreduce:
      return a.dtype == b.dtype && a.op == b.op && a.prescale == b.prescale && a.postscale == b.postscale;
    case Collective::kBroadcast:
      return a.root == b.root;
    case Collective::kAllgather:
      return true;
    case Collective::kBarrier:
      return false;
  }
  return false;
}

void Coordinator::respond(bool busy) {
  std::deque<Negotiation*> waiting;
  while (!ready_.empty()) {
    Negotiation* first = ready_.front();
    ready_.pop_front();
    if (busy && first->set->contains(0)) {
      waiting.push_back(first);
      continue;
    }
    std::vector<Negotiation*> group{first};
    size_t bytes = bytes_of(*first);
    for (auto at = ready_.begin(); at != ready_.end() && bytes < options_.fusion_threshold;) {
      const size_t more = bytes_of(**at);
      if (can_join(*first, **at) && bytes + more <= options_.fusion_threshold) {
        bytes += more;
        group.push_back(*at);
        at = ready_.erase(at);
      } else {
        ++at;
      }
    }
    // Once rank 0 has something to execute, the rest of what it takes part in gathers for the next response.
    busy = busy || first->set->contains(0);
    execute(group);
  }
  ready_.swap(waiting);
}

void Coordinator::execute(const std::vector<Negotiation*>& group) {
  DownMessage message;
  message.kind = Down::kExecute;
  message.sequence = ++sequence_;
  message.process_set = group.front()->set->id;
  std::set<Negotiation*> touched(group.begin(), group.end());
  for (Negotiation* n : group) {
    message.items.push_back(item_for(n, &message));
    if (n->cache_id == 0) touched.insert(assign_cache_id(n, &message));
    message.items.back().cache_id = n->cache_id;
  }
  outgoing_.push_back({Destination::process_set(message.process_set), std::move(message)});
  for (Negotiation* n : touched) forget_if_idle(n);
}

ExecuteItem Coordinator::item_for(Negotiation* n, DownMessage* message) {
  ExecuteItem item;
  const Request& request = request_of(*n, 0);
  if (request.collective == Collective::kAllgather) {
    for (const Submission& s : n->submissions) item.first_dimensions.push_back(s.first_dimension);
  }
  const bool all_cached =
      std::all_of(n->submissions.begin(), n->submissions.end(), [](const Submission& s) { return s.cached; });
  if (!all_cached) {
    item.name = n->name;
    const Request agreed = request;
    if (n->cache_id) revoke(n, message);
    n->signature = agreed;
  } else {
    ages_.splice(ages_.end(), ages_, n->age);
  }
  for (Submission& s : n->submissions) s = {};
  for (int rank : n->set->ranks) ++events_[rank];
  n->present = 0;
  return item;
}

// ---- Waiting ----

std::vector<Coordinator::Negotiation*> Coordinator::incomplete() const {
  std::vector<Negotiation*> found;
  for (const auto& [key, n] : negotiations_) {
    if (n->present > 0 && n->present < n->set->size()) found.push_back(n.get());
  }
  return found;
}

void Coordinator::inspect(int64_t now) {
  now_ = now;
  if (now < next_inspection_ || fatal_) return;
  next_inspection_ = now + kInspectionInterval;
  const std::vector<Negotiation*> negotiations = incomplete();
  std::vector<Waiting> waiting;
  for (const Negotiation* n : negotiations) {
    Waiting one{n->name, {}, {}, n->since};
    for (int i = 0; i < n->set->size(); ++i) {
      (n->submissions[i].present ? one.present : one.missing).push_back(n->set->ranks[i]);
    }
    waiting.push_back(std::move(one));
  }
  const StallInspector::Findings findings = inspector_.look(now, waiting, events_);
  for (const std::string& warning : findings.warnings)
    std::fprintf(stderr, "compat_hvd: warning: %s\n", warning.c_str());
  for (int rank : findings.ask) {
    DownMessage message;
    message.kind = Down::kAskUsage;
    outgoing_.push_back({Destination::rank(rank), std::move(message)});
  }
  for (const auto& [position, status] : findings.failures) fail(negotiations[position], -1, 0, status);
}

// ---- Response cache ----

Coordinator::Negotiation* Coordinator::assign_cache_id(Negotiation* n, DownMessage* message) {
  if (options_.cache_capacity == 0) return n;
  Negotiation* evicted = n;
  if (by_cache_id_.size() >= options_.cache_capacity) {
    // Of the same set, because a revocation reaches the members through this response.
    auto old = std::find_if(ages_.begin(), ages_.end(),
                            [&](const Negotiation* other) { return other->present == 0 && other->set == n->set; });
    if (old == ages_.end()) return n;
    evicted = *old;
    revoke(evicted, message);
  }
  n->cache_id = ++last_cache_id_;
  by_cache_id_[n->cache_id] = n;
  n->age = ages_.insert(ages_.end(), n);
  return evicted;
}

// Members may still send the id until they have seen this response: its meaning is kept until all have acknowledged it.
void Coordinator::revoke(Negotiation* n, DownMessage* message) {
  purge_retired();
  message->revoked.push_back(n->cache_id);
  retired_.push_back({n->cache_id, message->sequence, n->signature});
  by_cache_id_.erase(n->cache_id);
  ages_.erase(n->age);
  n->cache_id = 0;
}

void Coordinator::purge_retired() {
  while (!retired_.empty()) {
    const Retired& oldest = retired_.front();
    for (int rank : sets_.at(oldest.signature.process_set).ranks) {
      if (acknowledged_[rank] < oldest.sequence) return;
    }
    retired_.pop_front();
  }
}

}  // namespace compat_hvd

#include "coordinator.h"

#include <algorithm>
#include <cstdio>
#include <set>

#include "agreement.h"
#include "fusion.h"

namespace compat_hvd {
namespace {

constexpr int64_t kInspectionInterval = 500000000;

bool cacheable(Collective collective) {
  switch (collective) {
    case Collective::kAllreduce:
    case Collective::kAllgather:
    case Collective::kBroadcast:
    case Collective::kAlltoall:
    case Collective::kReducescatter:
      return true;
    default:
      return false;
  }
}

}  // namespace

Coordinator::Coordinator(int ranks, const ProcessSetTable& sets, const CoordinatorOptions& options, Timeline* timeline)
    : sets_(sets),
      options_(options),
      timeline_(timeline),
      cache_(options.cache_capacity),
      inspector_(options.stall),
      events_(ranks, 0),
      acknowledged_(ranks, 0),
      gone_(ranks, false),
      completed_(ranks, 0),
      joined_(ranks, false),
      next_set_id_(1) {
  while (sets.find(static_cast<int>(next_set_id_))) ++next_set_id_;
}

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
      return receive_cached(message);
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

void Coordinator::receive_request(int rank, uint64_t ticket, Request request) {
  const ProcessSetPointer set = sets_.find(request.process_set);
  const Status status = membership(request, set, rank);
  if (!status.ok()) return answer(rank, ticket, status);
  Negotiation* n = negotiations_.get(set, request.key(), request.name);
  const int index = set->index_of(rank);
  if (refused(n, rank, index, ticket, request.error)) return;
  const bool joins = request.collective == Collective::kJoin;
  std::vector<int64_t> variable_part = request.variable_part();
  record(n, index, {ticket, true, false, std::move(variable_part), std::move(request)});
  if (joins) join(rank);
}

void Coordinator::receive_cached(const UpMessage& message) {
  Negotiation* n = cache_.find(message.cache_id);
  if (!n) {
    const Request* revoked = cache_.revoked(message.cache_id);
    if (!revoked) return answer(message.rank, message.ticket, Status::unknown("internal error: unknown cache id"));
    Request request = *revoked;
    if (request.collective == Collective::kAllgather) request.shape[0] = message.variable_part[0];
    if (request.collective == Collective::kAlltoall) request.sizes = message.variable_part;
    return receive_request(message.rank, message.ticket, std::move(request));
  }
  const int index = n->set->index_of(message.rank);
  if (refused(n, message.rank, index, message.ticket, {})) return;
  record(n, index, {message.ticket, true, true, message.variable_part, {}});
}

bool Coordinator::refused(Negotiation* n, int rank, int index, uint64_t ticket, const Status& error) {
  for (int member : n->set->ranks) {
    if (!gone_[member]) continue;
    answer(rank, ticket, departure(member, *n));
    negotiations_.forget_if_idle(n);
    return true;
  }
  auto debt = n->debts.find(index);
  if (debt != n->debts.end()) {
    answer(rank, ticket, debt->second.status);
    if (--debt->second.count == 0) n->debts.erase(debt);
    negotiations_.forget_if_idle(n);
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
  if (n->present == 0) {
    n->since = now_;
    timeline_->begin_negotiation(n->request(index));
  }
  ++n->present;
  timeline_->rank_ready(n->request(index), n->set->ranks[index]);
  if (missing(*n).empty()) settle(n);
}

// The others need not wait for `rank` any more.
void Coordinator::join(int rank) {
  joined_[rank] = true;
  last_joined_ = rank;
  const auto complete = [this]() -> Negotiation* {
    const std::vector<Negotiation*> all = negotiations_.incomplete();
    const auto at = std::find_if(all.begin(), all.end(), [this](Negotiation* n) { return missing(*n).empty(); });
    return at == all.end() ? nullptr : *at;
  };
  // One at a time: the failure of one may end others of its group.
  while (Negotiation* n = complete()) settle(n);
}

std::vector<int> Coordinator::missing(const Negotiation& n) const {
  const bool may_join = n.set->id == 0 && n.any_request().collective != Collective::kJoin;
  std::vector<int> ranks;
  for (int i = 0; i < n.set->size(); ++i) {
    const int rank = n.set->ranks[i];
    if (!n.submissions[i].present && !(may_join && joined_[rank])) ranks.push_back(rank);
  }
  return ranks;
}

// All who take part have submitted.
void Coordinator::settle(Negotiation* n) {
  const Status status = agreement(*n, sets_);
  if (!status.ok()) {
    fail_rest_of_group(*n, status);
    return fail(n, -1, 0, status);
  }
  n->ready = true;
  ready_.push_back(n);
}

// Where the members' groups differ in size, the tensors that only some of them have fail as well. Each of those comes
// by itself: this is done once, at the first tensor of the group.
void Coordinator::fail_rest_of_group(const Negotiation& n, const Status& status) {
  const Request first = n.any_request();
  if (first.group_member != 1) return;
  std::vector<int> sizes(n.set->size(), 0);
  int smallest = first.group_size;
  for (int i : n.positions()) smallest = std::min(smallest, sizes[i] = n.request(i).group_size);
  for (int member = smallest + 1; member <= *std::max_element(sizes.begin(), sizes.end()); ++member) {
    Negotiation* rest = negotiations_.get(n.set, first.key_of_member(member), n.name);
    for (int i : n.positions()) {
      if (sizes[i] < member) continue;
      const Submission& submission = rest->submissions[i];
      submission.present ? answer(n.set->ranks[i], submission.ticket, status) : rest->owe(i, 1, status);
    }
    end(rest, status);
    negotiations_.forget_if_idle(rest);
  }
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
    const int rank = n->set->ranks[i];
    if (n->submissions[i].present) answer(rank, n->submissions[i].ticket, status);
    // A rank that has joined submits nothing more of this round.
    const bool excused = n->set->id == 0 && joined_[rank];
    if (submitted[i] == most || excused) continue;
    n->owe(static_cast<int>(i), most - submitted[i], status);
  }
  if (n->ready) ready_.erase(std::remove(ready_.begin(), ready_.end(), n), ready_.end());
  end(n, status);
  negotiations_.forget_if_idle(n);
}

void Coordinator::end(Negotiation* n, const Status& status) {
  timeline_->end_negotiation(n->set->id, n->key, status);
  n->clear();
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
  if (gone_[rank]) return;
  gone_[rank] = true;
  completed_[rank] = completed;
  acknowledged_[rank] = UINT64_MAX;
  // Later submissions are refused because of the departure itself: nobody is left owing.
  for (Negotiation* n : negotiations_.incomplete()) {
    if (!n->set->contains(rank)) continue;
    const Status status = departure(rank, *n);
    fail(n, -1, 0, status);
  }
  if (fatal_ || std::find(gone_.begin(), gone_.end(), false) != gone_.end()) return;
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

void Coordinator::respond(bool busy) {
  for (size_t at = 0; at < ready_.size();) {
    const ProcessSetPointer set = ready_[at]->set;
    if (busy && set->contains(0)) {
      ++at;
      continue;
    }
    execute(take_group(&ready_, at, options_.fusion_threshold));
    // Now rank 0 has something to execute: the rest of what it takes part in gathers for the next response.
    busy = busy || set->contains(0);
  }
}

void Coordinator::execute(const std::vector<Negotiation*>& group) {
  Negotiation* first = group.front();
  const ProcessSetPointer set = first->set;
  DownMessage message;
  message.kind = Down::kExecute;
  message.sequence = ++sequence_;
  message.process_set = set->id;
  const Collective collective = first->any_request().collective;
  if (!first->all_present()) message.participants = first->participants();
  std::vector<Negotiation*> touched = group;
  for (Negotiation* n : group) {
    message.items.push_back(item_for(*n));
    update_cache(n, &message, &touched);
  }
  if (collective == Collective::kRemoveProcessSet) retire_set(static_cast<int>(message.items[0].sizes[0]), &message);
  if (collective == Collective::kJoin) joined_.assign(joined_.size(), false);
  for (int rank : set->ranks) ++events_[rank];
  for (Negotiation* n : group) end(n, {});
  timeline_->mark_response();
  for (Negotiation* n : std::set<Negotiation*>(touched.begin(), touched.end())) negotiations_.forget_if_idle(n);
  for (int32_t rank : message.participants) outgoing_.push_back({Destination::rank(rank), message});
  if (message.participants.empty()) {
    outgoing_.push_back({Destination::process_set(message.process_set), std::move(message)});
  }
}

ExecuteItem Coordinator::item_for(const Negotiation& n) {
  ExecuteItem item;
  item.name = n.key;
  const Request& request = n.any_request();
  switch (request.collective) {
    case Collective::kAllgather:
    case Collective::kAlltoall:
      for (int i : n.positions()) {
        const std::vector<int64_t>& part = n.submissions[i].variable_part;
        item.sizes.insert(item.sizes.end(), part.begin(), part.end());
      }
      break;
    case Collective::kJoin:
      item.sizes = {last_joined_};
      break;
    case Collective::kAddProcessSet:
      item.sizes = {new_set_id()};
      item.sizes.insert(item.sizes.end(), request.sizes.begin(), request.sizes.end());
      break;
    case Collective::kRemoveProcessSet:
      item.sizes = request.sizes;
      break;
    default:
      break;
  }
  return item;
}

// A response that does not reach all members changes nothing in their caches.
void Coordinator::update_cache(Negotiation* n, DownMessage* message, std::vector<Negotiation*>* touched) {
  ExecuteItem& item = message->items.back();
  if (!n->all_present()) return;
  if (n->cache_id != 0 && n->all_cached()) {
    cache_.touch(n);
    item.name.clear();
  } else {
    const Request agreed = n->any_request();
    cache_.purge(acknowledged_);
    if (n->cache_id != 0) cache_.revoke(n, message);
    if (!cacheable(agreed.collective)) return;
    if (Negotiation* evicted = cache_.assign(n, agreed, message)) touched->push_back(evicted);
  }
  item.cache_id = n->cache_id;
}

int64_t Coordinator::new_set_id() {
  if (free_set_ids_.empty()) return next_set_id_++;
  const int64_t id = free_set_ids_.front();
  free_set_ids_.pop_front();
  return id;
}

// Nothing of a removed set remains; its id is free for a new one.
void Coordinator::retire_set(int id, DownMessage* message) {
  for (Negotiation* n : negotiations_.of_set(id)) {
    n->debts.clear();
    if (n->cache_id != 0) cache_.revoke(n, message);
    const Status removed = Status::invalid_argument("tensor '" + n->name + "': process set " + std::to_string(id) +
                                                    " was removed while it was in use.");
    for (int i : n->positions()) answer(n->set->ranks[i], n->submissions[i].ticket, removed);
    if (n->ready) ready_.erase(std::remove(ready_.begin(), ready_.end(), n), ready_.end());
    end(n, removed);
    negotiations_.remove(n);
  }
  free_set_ids_.push_back(id);
}

// ---- Waiting ----

void Coordinator::inspect(int64_t now) {
  now_ = now;
  if (now < next_inspection_ || fatal_) return;
  next_inspection_ = now + kInspectionInterval;
  const std::vector<Negotiation*> negotiations = negotiations_.incomplete();
  std::vector<Waiting> waiting;
  for (const Negotiation* n : negotiations) {
    waiting.push_back({n->name, n->participants(), missing(*n), n->since});
  }
  const StallInspector::Findings findings = inspector_.look(now, waiting, events_);
  for (const std::string& text : findings.warnings) std::fprintf(stderr, "compat_hvd: warning: %s\n", text.c_str());
  for (int rank : findings.ask) {
    DownMessage message;
    message.kind = Down::kAskUsage;
    outgoing_.push_back({Destination::rank(rank), std::move(message)});
  }
  for (const auto& [position, status] : findings.failures) fail(negotiations[position], -1, 0, status);
}

}  // namespace compat_hvd

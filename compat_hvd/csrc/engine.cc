#include "engine.h"

#include <algorithm>
#include <numeric>

namespace compat_hvd {
namespace {

constexpr int64_t kMillisecond = 1000000;
constexpr int64_t kWatchInterval = 100 * kMillisecond;
constexpr int64_t kHeartbeatInterval = 2000 * kMillisecond;
constexpr int64_t kSilenceLimit = 10000 * kMillisecond;
// Responses after which a rank that has nothing else to say acknowledges, so that rank 0 can forget revoked cache ids.
constexpr uint64_t kAcknowledgeInterval = 256;

std::string key_of(int set, const std::string& name) { return std::to_string(set) + ':' + name; }

// Equal but for the variable part, and valid.
bool same_signature(const Request& a, const Request& b) {
  if (a.collective != b.collective || a.dtype != b.dtype || a.op != b.op || a.prescale != b.prescale ||
      a.postscale != b.postscale || a.root != b.root || a.group_size != b.group_size ||
      a.shape.size() != b.shape.size() || !b.error.ok()) {
    return false;
  }
  const bool rows_vary = a.collective == Collective::kAllgather || a.collective == Collective::kAlltoall;
  const size_t skip = rows_vary && !a.shape.empty() ? 1 : 0;
  return std::equal(a.shape.begin() + skip, a.shape.end(), b.shape.begin() + skip);
}

// Alltoall: fills in equal splits when none were given, and checks those that were.
Status complete_splits(Request* request, int members) {
  if (request->collective != Collective::kAlltoall || request->shape.empty()) return {};
  const int64_t rows = request->shape[0];
  const std::string what = "alltoall of tensor '" + request->name + "': ";
  std::vector<int64_t>& splits = request->sizes;
  if (splits.empty()) {
    if (rows % members != 0) {
      return Status::invalid_argument(what + "splits not provided, but first dimension of tensor (" +
                                      std::to_string(rows) + ") is not an even multiple of the number of workers (" +
                                      std::to_string(members) + ").");
    }
    splits.assign(members, rows / members);
    return {};
  }
  if (static_cast<int>(splits.size()) != members) {
    return Status::invalid_argument(what + "Number of entries in splits (" + std::to_string(splits.size()) +
                                    ") does not equal number of workers (" + std::to_string(members) + ").");
  }
  int64_t sum = 0;
  for (int64_t split : splits) {
    if (split < 0)
      return Status::invalid_argument(what + "splits must not be negative, got " + shape_text(splits) + ".");
    sum += split;
  }
  if (sum == rows) return {};
  return Status::invalid_argument(what + "Sum of splits entries (" + std::to_string(sum) + ") is " +
                                  (sum > rows ? "greater" : "less") + " than the first dimension of tensor (" +
                                  std::to_string(rows) + "); every row must go somewhere.");
}

}  // namespace

Engine::Engine(Topology topology, NodeMemory* memory, ByteMover* mover, EngineOptions options)
    : topology_(std::move(topology)),
      memory_(memory),
      options_(std::move(options)),
      control_(topology_, sets_, memory, mover),
      slots_(memory, topology_.rank()),
      plane_{&topology_, &slots_, mover, &timeline_} {
  std::vector<int> world(topology_.size());
  std::iota(world.begin(), world.end(), 0);
  sets_.add(topology_, 0, world);
  for (size_t i = 0; i < options_.process_sets.size(); ++i) {
    sets_.add(topology_, static_cast<int>(i) + 1, options_.process_sets[i]);
  }
  if (topology_.is_coordinator()) {
    coordinator_ = std::make_unique<Coordinator>(topology_.size(), sets_, options_.coordinator, &timeline_);
  }
}

// ---- From other threads ----

void Engine::submit(std::unique_ptr<Entry> entry) {
  Status refused;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    refused = closed_;
    if (refused.ok()) inbox_.push_back(std::move(entry));
  }
  if (!refused.ok()) return options_.complete(std::move(entry), refused);
  has_inbox_.store(true, std::memory_order_release);
  memory_->wake(topology_.rank());
}

void Engine::goodbye() {
  UpMessage message;
  message.kind = Up::kGoodbye;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!closed_.ok()) return;
    closed_ = Status::unknown("compat_hvd has been shut down on this rank; nothing can be communicated any more.");
    farewells_.push_back(std::move(message));
  }
  has_inbox_.store(true, std::memory_order_release);
  memory_->wake(topology_.rank());
}

void Engine::fail(const std::string& text) {
  UpMessage message;
  message.kind = Up::kFailure;
  message.subject = topology_.rank();
  message.text = text;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    closed_ = Status::unknown("this rank has failed: " + text);
    farewells_.push_back(std::move(message));
  }
  has_inbox_.store(true, std::memory_order_release);
  memory_->wake(topology_.rank());
}

Status Engine::fatal() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return fatal_;
}

// ---- The step ----

bool Engine::step() {
  const int64_t now = options_.now();
  if (coordinator_) coordinator_->inspect(now);
  bool moved = take_inbox();
  moved |= control_.step(
      now, [this](const UpMessage& message) { coordinator_->receive(message); },
      [this](const DownMessage& message) { receive(message); });
  moved |= coordinate();
  moved |= execute();
  if (now >= next_watch_) watch(now);
  return moved;
}

bool Engine::stopped() { return all_gone_ && responses_.empty() && control_.drained() && control_.links_closed(); }

bool Engine::take_inbox() {
  if (!has_inbox_.exchange(false, std::memory_order_acq_rel)) return false;
  std::vector<std::unique_ptr<Entry>> entries;
  std::vector<UpMessage> farewells;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    entries.swap(inbox_);
    farewells.swap(farewells_);
  }
  for (auto& entry : entries) announce(std::move(entry));
  for (UpMessage& message : farewells) {
    message.completed = completed_;
    send(std::move(message));
  }
  return true;
}

void Engine::send(UpMessage message) {
  message.rank = topology_.rank();
  message.acknowledged = last_sequence_;
  told_sequence_ = last_sequence_;
  control_.send_up(message);
}

void Engine::announce(std::unique_ptr<Entry> entry) {
  if (has_fatal()) return options_.complete(std::move(entry), fatal());
  // All joins have one name. They carry no values that could be mixed: one that comes early simply waits.
  if (entry->request.collective == Collective::kJoin && joining_) return later_joins_.push_back(std::move(entry));
  joining_ |= entry->request.collective == Collective::kJoin;
  UpMessage message;
  message.kind = Up::kRequest;
  Entry* submitted = entry.get();
  const ProcessSetPointer set = sets_.find(entry->request.process_set);
  if (set && entry->request.error.ok()) entry->request.error = complete_splits(&entry->request, set->size());
  bool duplicate = false;
  message.ticket = table_.add(std::move(entry), &duplicate);
  const Request& request = submitted->request;
  auto cached = cache_.find(key_of(request.process_set, request.key()));
  if (!duplicate && cached != cache_.end() && same_signature(cached->second.signature, request)) {
    message.kind = Up::kCachedRequest;
    message.cache_id = cached->second.id;
    message.variable_part = request.variable_part();
  } else {
    message.request = request;
  }
  if (duplicate) {
    message.request.error = Status::invalid_argument(
        "Requested to communicate tensor '" + request.name + "' on rank " + std::to_string(topology_.rank()) +
        " while another of the same name is still in flight there. Use a different name for each.");
  }
  send(std::move(message));
}

// The join in flight is done: the next one may follow.
void Engine::join_again() {
  joining_ = false;
  if (later_joins_.empty()) return;
  std::unique_ptr<Entry> next = std::move(later_joins_.front());
  later_joins_.pop_front();
  announce(std::move(next));
}

// Any entry that is not being executed; nullptr when there is none.
std::unique_ptr<Entry> Engine::take_pending() {
  if (later_joins_.empty()) return table_.remove_any();
  std::unique_ptr<Entry> entry = std::move(later_joins_.front());
  later_joins_.pop_front();
  return entry;
}

void Engine::receive(const DownMessage& message) {
  switch (message.kind) {
    case Down::kExecute:
      return enqueue(message);
    case Down::kFail:
      return refuse(message);
    case Down::kAskUsage: {
      UpMessage answer;
      answer.kind = Up::kUsage;
      answer.usage = options_.usage();
      return send(std::move(answer));
    }
    case Down::kFatal:
      return die(message.status);
    case Down::kAllGone: {
      all_gone_ = true;
      while (auto entry = take_pending()) {
        options_.complete(std::move(entry), Status::unknown("compat_hvd has been shut down."));
      }
      if (!topology_.is_leader() || topology_.is_coordinator()) return;
      UpMessage last;
      last.kind = Up::kLast;
      return send(std::move(last));
    }
    case Down::kHeartbeat:
      return;
  }
}

void Engine::refuse(const DownMessage& message) {
  std::unique_ptr<Entry> entry = table_.remove(message.ticket);
  if (!entry) return;
  const bool joined = entry->request.collective == Collective::kJoin;
  options_.complete(std::move(entry), message.status);
  if (joined) join_again();
}

void Engine::enqueue(const DownMessage& message) {
  if (has_fatal()) return;
  last_sequence_ = message.sequence;
  Response response;
  response.sequence = message.sequence;
  response.set = sets_.find(message.process_set);
  if (!message.participants.empty()) {
    const std::vector<int> ranks(message.participants.begin(), message.participants.end());
    response.set = std::make_shared<const ProcessSet>(topology_, message.process_set, ranks);
  }
  for (const ExecuteItem& item : message.items) {
    const std::string& name = item.name.empty() ? cached_names_.at(item.cache_id).name : item.name;
    std::unique_ptr<Entry> entry = table_.remove(message.process_set, name);
    if (!entry) return panic("a response names '" + name + "', which this rank has not submitted");
    update_cache(message, item, entry->request);
    update_sets(entry->request.collective, item);
    if (entry->request.collective == Collective::kJoin) join_again();
    timeline_.begin_execution(entry->request);
    response.entries.push_back(std::move(entry));
    response.sizes.push_back(item.sizes);
  }
  for (uint32_t id : message.revoked) {
    auto name = cached_names_.find(id);
    if (name == cached_names_.end()) continue;
    auto cached = cache_.find(key_of(name->second.process_set, name->second.name));
    if (cached != cache_.end() && cached->second.id == id) cache_.erase(cached);
    cached_names_.erase(name);
  }
  executing_ += response.entries.size();
  responses_.push_back(std::move(response));
}

void Engine::update_cache(const DownMessage& message, const ExecuteItem& item, const Request& request) {
  if (item.cache_id == 0 || item.name.empty()) return;
  cache_[key_of(message.process_set, item.name)] = {item.cache_id, request};
  cached_names_[item.cache_id] = {message.process_set, item.name};
}

// At once, not when the response is executed: what comes behind it may name the set.
void Engine::update_sets(Collective collective, const ExecuteItem& item) {
  if (collective == Collective::kAddProcessSet) {
    sets_.add(topology_, static_cast<int>(item.sizes[0]), {item.sizes.begin() + 1, item.sizes.end()});
  } else if (collective == Collective::kRemoveProcessSet) {
    sets_.remove(static_cast<int>(item.sizes[0]));
  }
}

bool Engine::coordinate() {
  if (!coordinator_) return false;
  coordinator_->respond(!responses_.empty());
  const std::vector<Coordinator::Outgoing> messages = coordinator_->take();
  for (const Coordinator::Outgoing& out : messages) control_.send_down(out.destination, out.message);
  return !messages.empty();
}

bool Engine::execute() {
  bool moved = false;
  while (!responses_.empty()) {
    if (!execution_) {
      execution_error_ = {};
      if (timeline_.on()) show_execution();
      execution_ = Execution::start(plane_, responses_.front(), &execution_error_);
      moved = true;
    }
    moved |= execution_->step();
    if (!execution_->finished()) return moved;
    finish_response();
  }
  return moved;
}

void Engine::show_execution() {
  std::vector<const Request*> requests;
  for (const auto& entry : responses_.front().entries) requests.push_back(&entry->request);
  timeline_.execute(requests);
}

void Engine::finish_response() {
  execution_.reset();
  Response response = std::move(responses_.front());
  responses_.pop_front();
  executing_ -= response.entries.size();
  completed_ += response.entries.size();
  for (auto& entry : response.entries) {
    timeline_.end_execution(entry->request, execution_error_);
    options_.complete(std::move(entry), execution_error_);
  }
  if (last_sequence_ - told_sequence_ < kAcknowledgeInterval || all_gone_) return;
  UpMessage acknowledge;
  acknowledge.kind = Up::kAcknowledge;
  send(std::move(acknowledge));
}

// ---- Deaths ----

void Engine::watch(int64_t now) {
  next_watch_ = now + kWatchInterval;
  if (has_fatal() || all_gone_) return;
  for (int rank : topology_.ranks_of_node(topology_.node())) {
    // A leader watches its node, the others watch their leader.
    const bool mine = topology_.is_leader() ? rank != topology_.rank() : rank == topology_.leader();
    if (mine && memory_->dead(rank)) {
      return report(rank, "has vanished (its process was killed, crashed, or ended by os._exit)");
    }
  }
  if (now >= next_heartbeat_) {
    next_heartbeat_ = now + kHeartbeatInterval;
    control_.send_heartbeat();
  }
  const int silent = control_.silent_since(now - kSilenceLimit);
  if (silent >= 0) report(silent, "has not been heard of for 10 s");
}

// Tells rank 0, if it can still be reached, and gives up.
void Engine::report(int rank, const std::string& how) {
  UpMessage death;
  death.kind = Up::kDeath;
  death.subject = rank;
  death.text = how;
  send(std::move(death));
  DownMessage fatal;
  fatal.kind = Down::kFatal;
  fatal.status = Status::unknown("rank " + std::to_string(rank) + " " + how + "; the job cannot go on.");
  control_.send_to_node(fatal);
  die(fatal.status);
}

void Engine::die(const Status& status) {
  if (has_fatal()) return;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    fatal_ = status;
    if (closed_.ok()) closed_ = status;
  }
  has_fatal_.store(true, std::memory_order_release);
  // Transfers may still write into an execution's buffers: they live as long as the process.
  (void)execution_.release();
  for (Response& response : responses_) {
    for (auto& entry : response.entries) options_.complete(std::move(entry), status);
  }
  responses_.clear();
  executing_ = 0;
  while (auto entry = take_pending()) options_.complete(std::move(entry), status);
}

}  // namespace compat_hvd

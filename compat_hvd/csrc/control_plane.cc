#include "control_plane.h"

#include "wire.h"

namespace compat_hvd {
namespace {

std::string with_destination(const Destination& destination, const std::string& payload) {
  Encoder out;
  out.put(destination.kind);
  out.put(destination.id);
  return out.take() + payload;
}

constexpr size_t kDestinationBytes = sizeof(Destination::Kind) + sizeof(int32_t);

bool is_for(const Destination& destination, int rank, const ProcessSetTable& sets) {
  switch (destination.kind) {
    case Destination::Kind::kRank:
      return destination.id == rank;
    case Destination::Kind::kProcessSet:
      if (const ProcessSetPointer set = sets.find(destination.id)) return set->contains(rank);
      return false;
    case Destination::Kind::kAll:
      return true;
  }
  return false;
}

bool is(const std::string& frame, Up kind) { return !frame.empty() && static_cast<Up>(frame[0]) == kind; }
bool is(const std::string& frame, Down kind) { return !frame.empty() && static_cast<Down>(frame[0]) == kind; }

}  // namespace

ControlPlane::ControlPlane(const Topology& topology, const ProcessSetTable& sets, NodeMemory* memory, ByteMover* mover)
    : topology_(topology), sets_(sets) {
  const int me = topology.rank();
  if (!topology.is_leader()) {
    SegmentHeader& own = memory->of(me).header();
    above_ = std::make_unique<Channel>(std::make_unique<RingPipe>(&own.up, &own.down, memory, topology.leader()));
    return;
  }
  for (int rank : topology.ranks_of_node(topology.node())) {
    if (rank == me) continue;
    SegmentHeader& theirs = memory->of(rank).header();
    members_.emplace(rank, Channel(std::make_unique<RingPipe>(&theirs.down, &theirs.up, memory, rank)));
  }
  if (!topology.is_coordinator()) {
    above_ = std::make_unique<Channel>(std::make_unique<MoverPipe>(mover, 0));
    return;
  }
  for (int node = 1; node < topology.nodes(); ++node) {
    const int leader = topology.ranks_of_node(node).front();
    leaders_.emplace(leader, Channel(std::make_unique<MoverPipe>(mover, leader)));
    closed_[leader] = false;
  }
}

void ControlPlane::send_up(const UpMessage& message) {
  if (topology_.is_coordinator()) {
    own_up_.push_back(message.encode());
  } else {
    above_->send(message.encode());
  }
}

void ControlPlane::send_down(const Destination& destination, const DownMessage& message) {
  const std::string payload = message.encode();
  for (auto& [leader, channel] : leaders_) {
    for (int rank : topology_.ranks_of_node(topology_.node_of(leader))) {
      if (!is_for(destination, rank, sets_)) continue;
      channel.send(with_destination(destination, payload));
      break;
    }
  }
  route(destination, payload);
}

void ControlPlane::send_to_node(const DownMessage& message) {
  for (auto& [rank, channel] : members_) channel.send(message.encode());
}

void ControlPlane::route(const Destination& destination, const std::string& payload) {
  for (auto& [rank, channel] : members_) {
    if (is_for(destination, rank, sets_)) channel.send(payload);
  }
  if (is_for(destination, topology_.rank(), sets_)) own_down_.push_back(payload);
}

bool ControlPlane::take_from_node(const std::function<void(const UpMessage&)>& up) {
  bool moved = false;
  std::string frame;
  for (auto& [rank, channel] : members_) {
    while (channel.receive(&frame)) {
      moved = true;
      if (topology_.is_coordinator()) {
        up(UpMessage::decode(frame));
      } else {
        above_->send(frame);
      }
    }
  }
  return moved;
}

bool ControlPlane::take_from_leaders(const std::function<void(const UpMessage&)>& up) {
  bool moved = false;
  std::string frame;
  for (auto& [leader, channel] : leaders_) {
    bool& closed = closed_[leader];
    while (!closed && channel.receive(&frame)) {
      moved = true;
      heard_[leader] = now_;
      closed = is(frame, Up::kLast);
      up(UpMessage::decode(frame));
    }
  }
  return moved;
}

// Each frame is handled before the next is routed: it may change the process sets that routing depends on.
bool ControlPlane::take_from_above(const std::function<void(const DownMessage&)>& down) {
  bool moved = false;
  std::string frame;
  while (above_ && !above_closed_ && above_->receive(&frame)) {
    moved = true;
    if (topology_.is_leader()) {
      heard_[0] = now_;
      Decoder in(frame);
      const Destination::Kind kind = in.get<Destination::Kind>();
      const Destination destination{kind, in.get<int32_t>()};
      frame.erase(0, kDestinationBytes);
      route(destination, frame);
    } else {
      own_down_.push_back(frame);
    }
    above_closed_ = is(frame, Down::kAllGone);
    deliver(down);
  }
  return moved;
}

bool ControlPlane::deliver(const std::function<void(const DownMessage&)>& down) {
  bool moved = false;
  for (std::vector<std::string> frames; !own_down_.empty(); moved = true) {
    frames.swap(own_down_);
    for (const std::string& frame : frames) down(DownMessage::decode(frame));
    frames.clear();
  }
  return moved;
}

bool ControlPlane::step(int64_t now, const std::function<void(const UpMessage&)>& up,
                        const std::function<void(const DownMessage&)>& down) {
  now_ = now;
  bool moved = deliver(down);
  moved |= take_from_above(down);
  moved |= flush();
  moved |= take_from_node(up);
  moved |= take_from_leaders(up);
  for (std::vector<std::string> frames; !own_up_.empty();) {
    frames.swap(own_up_);
    for (const std::string& frame : frames) up(UpMessage::decode(frame));
    frames.clear();
    moved = true;
  }
  return flush() || moved;
}

bool ControlPlane::flush() {
  bool moved = false;
  for (auto& [rank, channel] : members_) moved |= channel.flush();
  for (auto& [leader, channel] : leaders_) moved |= channel.flush();
  if (above_) moved |= above_->flush();
  return moved;
}

bool ControlPlane::drained() {
  for (auto& [rank, channel] : members_) {
    if (!channel.drained()) return false;
  }
  for (auto& [leader, channel] : leaders_) {
    if (!channel.drained()) return false;
  }
  return (!above_ || above_->drained()) && own_up_.empty() && own_down_.empty();
}

void ControlPlane::send_heartbeat() {
  if (!crosses_nodes()) return;
  if (!topology_.is_coordinator()) {
    UpMessage message;
    message.kind = Up::kHeartbeat;
    message.rank = topology_.rank();
    return send_up(message);
  }
  DownMessage message;
  message.kind = Down::kHeartbeat;
  for (auto& [leader, channel] : leaders_) {
    channel.send(with_destination(Destination::rank(leader), message.encode()));
  }
}

int ControlPlane::silent_since(int64_t since) const {
  for (const auto& [leader, time] : heard_) {
    const auto closed = closed_.find(leader);
    const bool over = closed == closed_.end() ? above_closed_ : closed->second;
    if (!over && time < since) return leader;
  }
  return -1;
}

bool ControlPlane::links_closed() const {
  for (const auto& [leader, closed] : closed_) {
    if (!closed) return false;
  }
  return true;
}

}  // namespace compat_hvd

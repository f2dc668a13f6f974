// Carries messages between every rank and the coordinator: over shared rings within a node, between a node's leader and
// the coordinator by the byte mover. A leader forwards what is for its node before it acts on it itself.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "channel.h"
#include "message.h"
#include "topology.h"

namespace compat_hvd {

class ControlPlane {
 public:
  ControlPlane(const Topology& topology, const ProcessSetTable& sets, NodeMemory* memory, ByteMover* mover);

  // Queues a message of this rank for the coordinator.
  void send_up(const UpMessage& message);
  // Queues a message of the coordinator (rank 0 only).
  void send_down(const Destination& destination, const DownMessage& message);
  // On a leader: tells the other ranks of its node, for when rank 0 cannot be reached any more.
  void send_to_node(const DownMessage& message);
  // Moves what can be moved. `up` gets every rank's messages on rank 0, `down` gets those that are for this rank.
  // Returns true when anything moved.
  bool step(int64_t now, const std::function<void(const UpMessage&)>& up,
            const std::function<void(const DownMessage&)>& down);
  // True when everything queued has left this process.
  bool drained();
  // True when transfers between nodes may be under way, so that somebody must look at them now and then.
  bool crosses_nodes() const { return topology_.nodes() > 1 && topology_.is_leader(); }
  // Between leaders: tells the other side that this one lives.
  void send_heartbeat();
  // The leader (or rank 0) that has been silent since before `since`, −1 when there is none. Times are those given to
  // step.
  int silent_since(int64_t since) const;
  // On rank 0: true when no other node can send anything more.
  bool links_closed() const;

 private:
  bool take_from_node(const std::function<void(const UpMessage&)>& up);
  bool take_from_leaders(const std::function<void(const UpMessage&)>& up);
  bool take_from_above(const std::function<void(const DownMessage&)>& down);
  bool deliver(const std::function<void(const DownMessage&)>& down);
  void route(const Destination& destination, const std::string& payload);
  bool flush();

  const Topology& topology_;
  const ProcessSetTable& sets_;
  std::map<int, Channel> members_;  // on a leader: to the other ranks of its node
  std::map<int, Channel> leaders_;  // on rank 0: to the leaders of other nodes
  std::map<int, bool> closed_;      // on rank 0: leaders that have sent their last frame
  std::map<int, int64_t> heard_;    // between leaders: when something last arrived
  std::unique_ptr<Channel> above_;  // to the leader, or from a leader to rank 0
  bool above_closed_ = false;
  int64_t now_ = 0;
  std::vector<std::string> own_up_, own_down_;
};

}  // namespace compat_hvd

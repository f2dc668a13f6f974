// What ranks and the coordinator tell each other.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "collective.h"
#include "dtype.h"
#include "status.h"

namespace compat_hvd {

// What the members of a process set must agree on before a collective runs.
struct Request {
  std::string name;
  int32_t process_set = 0;
  Collective collective = Collective::kAllreduce;
  DataType dtype = DataType::kFloat32;
  std::vector<int64_t> shape;
  ReduceOp op = ReduceOp::kSum;
  double prescale = 1.0;
  double postscale = 1.0;
  int32_t root = -1;           // global rank
  int32_t group_member = 0;    // of a tensor in a group: its number, from 1; the name ends in "_<number>of<size>"
  int32_t group_size = 0;      // 0: in no group
  std::vector<int64_t> sizes;  // alltoall: rows for each member; add_process_set: ranks; remove_process_set: the id
  Status error;                // a fault found where it was submitted; the other members must learn of it

  int64_t elements() const;
  // What entries match by: the name, without the size of the group, so that groups of different sizes meet.
  std::string key() const { return group_size > 0 ? key_of_member(group_member) : name; }
  // The key of another tensor of the same group.
  std::string key_of_member(int member) const;
  // What may change from step to step without a new negotiation: the first dimension of an allgather, the splits of an
  // alltoall. Only the bytes of one row are fixed for these.
  std::vector<int64_t> variable_part() const;
  size_t row_bytes() const;
  size_t bytes() const { return static_cast<size_t>(elements()) * size_of(dtype); }
};

std::string shape_text(const std::vector<int64_t>& shape);

// ---- From a rank to the coordinator ----

enum class Up : uint8_t {
  kRequest,        // a full request
  kCachedRequest,  // the same request as last time, by its cache id
  kAcknowledge,    // only the sequence number
  kGoodbye,        // the rank ends normally and submits nothing more
  kFailure,        // the rank ends because of an uncaught exception
  kDeath,          // `subject` was found dead by its node's leader
  kUsage,          // the answer to kAskUsage
  kLast,           // a leader's final frame
  kHeartbeat,
};

struct UpMessage {
  Up kind = Up::kHeartbeat;
  int32_t rank = 0;
  uint64_t acknowledged = 0;  // the last response that this rank has seen
  uint64_t ticket = 0;        // identifies the entry at its rank
  Request request;
  uint32_t cache_id = 0;
  std::vector<int64_t> variable_part;
  int32_t subject = -1;
  uint64_t completed = 0;  // collectives completed by a rank that says goodbye
  int64_t usage = 0;       // nanoseconds of processor time beyond the worker's
  std::string text;

  std::string encode() const;
  static UpMessage decode(const std::string& frame);
};

// ---- From the coordinator to ranks ----

enum class Down : uint8_t {
  kExecute,   // run these entries together
  kFail,      // one entry of one rank fails
  kAllGone,   // every rank has said goodbye
  kAskUsage,  // how much processor time has this rank used?
  kFatal,     // the job cannot go on
  kHeartbeat,
};

struct ExecuteItem {
  uint32_t cache_id = 0;  // 0: not cached
  std::string name;       // empty when cache_id is already known to the members
  // Allgather: rows of each member. Alltoall: for each sender its rows for each member. Join: the last rank to join.
  // Process sets: the id. Members are in the order of the participants.
  std::vector<int64_t> sizes;
};

struct DownMessage {
  Down kind = Down::kHeartbeat;
  uint64_t sequence = 0;
  int32_t process_set = 0;
  std::vector<int32_t> participants;  // empty: all members; else some have joined and take no part
  std::vector<ExecuteItem> items;
  std::vector<uint32_t> revoked;  // cache ids that must not be used any more
  uint64_t ticket = 0;
  Status status;

  std::string encode() const;
  static DownMessage decode(const std::string& frame);
};

// Who a message of the coordinator is for.
struct Destination {
  enum class Kind : uint8_t { kRank, kProcessSet, kAll } kind = Kind::kAll;
  int32_t id = 0;

  static Destination rank(int id) { return {Kind::kRank, id}; }
  static Destination process_set(int id) { return {Kind::kProcessSet, id}; }
  static Destination all() { return {Kind::kAll, 0}; }
};

}  // namespace compat_hvd

// One response on its way through this rank: a state machine that never blocks.
#pragma once

#include <memory>
#include <vector>

#include "byte_mover.h"
#include "entry.h"
#include "slots.h"
#include "timeline.h"
#include "topology.h"

namespace compat_hvd {

// What a response says, with the entries of this rank. All entries are of one collective and fit together.
struct Response {
  uint64_t sequence = 0;
  ProcessSetPointer set;  // those who take part
  std::vector<std::unique_ptr<Entry>> entries;
  std::vector<std::vector<int64_t>> sizes;  // of each entry, see ExecuteItem
};

// What executions share: this rank's place in the world, the two planes, and where they say what they do.
struct DataPlane {
  const Topology* topology;
  Slots* slots;
  ByteMover* mover;
  Timeline* timeline;
};

class Execution {
 public:
  virtual ~Execution() = default;
  // Does what can be done now. Returns true when it did something.
  virtual bool step() = 0;
  virtual bool finished() const = 0;

  // Starts the execution of `response`, which must outlive it. Sets `error` and returns nullptr when an output cannot
  // be had.
  static std::unique_ptr<Execution> start(const DataPlane& plane, const Response& response, Status* error);
};

// The members of a response's set as this rank sees them.
struct View {
  View(const DataPlane& plane, const ProcessSet& set);

  int rank;
  const ProcessSet* set;
  int node = 0;             // position of this rank's node among set->by_node
  int index = 0;            // position of this rank among the members on its node
  std::vector<int> local;   // members on this node
  std::vector<int> others;  // the same without this rank
  int nodes() const { return static_cast<int>(set->by_node.size()); }
};

// The error of a rank that has no memory for its result of `rows` rows.
Status no_memory(const Request& request, int64_t rows);

// Tags of data messages; control messages use tag 0. MPI guarantees tags up to 32767 only. Two messages between the
// same two ranks that could be under way at the same time differ by far less than that.
inline int data_tag(uint64_t use) { return 1 + static_cast<int>(use % 32000); }

}  // namespace compat_hvd

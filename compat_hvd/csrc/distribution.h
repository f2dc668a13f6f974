// Allgather, broadcast and alltoall: streams of bytes, each from one origin to the other members, who all need the
// whole stream or, in an alltoall, a range of it each.
//
// Within a node the origin publishes its stream chunk by chunk in its slots. To every other node it sends the chunks to
// one *relay* there, which receives them straight into its own slots and publishes them to its node.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "execution.h"
#include "pieces.h"

namespace compat_hvd {

struct Range {
  size_t from, to;  // bytes of the stream
};

struct Stream {
  int origin;                // rank
  Pieces data;               // at the origin what it sends, elsewhere where it goes
  std::vector<Range> needs;  // by member; empty: everybody needs everything
  uint64_t first_use = 0;    // of the slots; filled in by distribute()

  // Whether the member at `index` needs some of the `bytes` from `from` on.
  bool needed_by(int index, size_t from, size_t bytes) const {
    return needs.empty() || (needs[index].from < from + bytes && from < needs[index].to);
  }
};

// Moves streams between the members of the response's set. Every member gives the same streams in the same order, with
// the same lengths and needs. `use` counts the uses of slots within the response: one distribution after the other
// begins where the one before it ended.
std::unique_ptr<Execution> distribute(const DataPlane& plane, const Response& response, std::vector<Stream> streams,
                                      uint64_t* use);

// Sets `error` when an output could not be allocated; the execution then still serves the other members.
std::unique_ptr<Execution> start_allgather(const DataPlane& plane, const Response& response, Status* error);
std::unique_ptr<Execution> start_alltoall(const DataPlane& plane, const Response& response, Status* error);
std::unique_ptr<Execution> start_broadcast(const DataPlane& plane, const Response& response);

}  // namespace compat_hvd

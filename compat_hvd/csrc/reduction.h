// Allreduce and reducescatter: chunk by chunk, so that what is read was just written and is still in cache.
//
// *Direct* (few members, one node): every member copies its chunk into its slot and reduces everybody's chunks into its
// own output. *Sliced* (otherwise): the first `lanes` members of each node reduce one slice of the chunk each, exchange
// it with the members of the same lane on the other nodes, and hand the finished slice to their node. Both reduce in
// the order of ranks, first within nodes, then over nodes: the bits depend on ranks and elements only.
//
// A reducescatter is an allreduce of which each member keeps its rows.
#pragma once

#include <memory>

#include "execution.h"

namespace compat_hvd {

// Sets `error` when an output could not be allocated; the execution then still serves the other members.
std::unique_ptr<Execution> start_reduction(const DataPlane& plane, const Response& response, Status* error);

}  // namespace compat_hvd

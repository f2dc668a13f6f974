// Allgather, broadcast and alltoall: streams of bytes, each from one origin to the other members, who all need the
// whole stream or, in an alltoall, a range of it each.
//
// Within a node the origin publishes its stream chunk by chunk in its slots. To every other node it sends the chunks to
// one *relay* there, which receives them straight into its own slots and publishes them to its node.
#pragma once

#include <memory>

#include "execution.h"

namespace compat_hvd {

// Sets `error` when an output could not be allocated; the execution then still serves the other members.
std::unique_ptr<Execution> start_allgather(const DataPlane& plane, const Response& response, Status* error);
std::unique_ptr<Execution> start_alltoall(const DataPlane& plane, const Response& response, Status* error);
std::unique_ptr<Execution> start_broadcast(const DataPlane& plane, const Response& response);

}  // namespace compat_hvd

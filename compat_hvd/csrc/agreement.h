// Do the requests of all members of a process set fit together?
#pragma once

#include <string>
#include <vector>

#include "negotiation.h"
#include "topology.h"

namespace compat_hvd {

// May `rank` submit this in `set`, which is nullptr when there is no such set?
Status membership(const Request& request, const ProcessSetPointer& set, int rank);

// Looks at what those who take part have submitted; the members that have not are those that have joined. Returns ok or
// an error that names the tensor and what each rank sent. `sets` are the process sets that exist already.
Status agreement(const Negotiation& n, const ProcessSetTable& sets);

// "rank 2" or "ranks 0, 1, 3".
std::string ranks_text(const std::vector<int>& ranks);

}  // namespace compat_hvd

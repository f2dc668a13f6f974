// Allreduce with Adasum (see adasum_kernels.h): a binary tree over the ranks, in which rank r meets first the one at
// distance 1, then the group at distance 2, then at 4, and so on. Dot products are those of whole tensors, each of a
// fused response on its own. Ranks that take no part are left out of the tree, which gives the same as zeros from them.
//
// Every member owns a part of each tensor. It receives that part of everybody's tensor, and climbs the tree with all
// others: at each level the members exchange the dot products of their parts, add them up in the order of ranks, and
// combine. Last, the finished parts go round. All three moves are distributions, which cross nodes by themselves.
//
// The parts of a tensor depend on its size and on the members only, not on what it is fused with: so do the bits.
// Memory: as much again as the fused tensors, for float16 and bfloat16 twice as much.
#pragma once

#include <memory>

#include "execution.h"

namespace compat_hvd {

std::unique_ptr<Execution> start_adasum(const DataPlane& plane, const Response& response);

}  // namespace compat_hvd

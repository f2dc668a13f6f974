// Which collectives travel together in one response.
#pragma once

#include <cstddef>
#include <deque>
#include <vector>

#include "negotiation.h"

namespace compat_hvd {

// Takes the negotiation at `position` out of `ready`, with all behind it that can be fused with it while the sum of
// their bytes stays within `threshold`.
std::vector<Negotiation*> take_group(std::deque<Negotiation*>* ready, size_t position, size_t threshold);

}  // namespace compat_hvd

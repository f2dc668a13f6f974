// Do the requests of all members of a process set fit together?
#pragma once

#include <functional>
#include <vector>

#include "message.h"

namespace compat_hvd {

// `request(i)` is the request of `ranks[i]`. Returns ok or an error that names the tensor and what each rank sent.
Status agreement(const std::vector<int>& ranks, const std::function<const Request&(int)>& request);

// "rank 2" or "ranks 0, 1, 3".
std::string ranks_text(const std::vector<int>& ranks);

}  // namespace compat_hvd

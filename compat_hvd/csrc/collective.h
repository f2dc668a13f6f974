// The collectives and reduce operations. The values of ReduceOp equal Horovod's.
#pragma once

#include <cstdint>

namespace compat_hvd {

enum class Collective : uint8_t {
  kAllreduce = 0,
  kAllgather = 1,
  kBroadcast = 2,
  kBarrier = 3,
  kAlltoall = 4,
  kReducescatter = 5,
  kJoin = 6,
  kAddProcessSet = 7,
  kRemoveProcessSet = 8,
};

enum class ReduceOp : int32_t { kAverage = 0, kSum = 1, kAdasum = 2, kMin = 3, kMax = 4, kProduct = 5 };

const char* name_of(Collective collective);
const char* name_of(ReduceOp op);

}  // namespace compat_hvd

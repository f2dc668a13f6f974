// Collectives for callers that wait: Python objects and changes of the process sets, without TensorFlow.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "entry.h"

namespace compat_hvd {

// Submits `entry` and waits for its done. Its results are copied to `results`.
Status run_blocking(std::unique_ptr<Entry> entry, std::vector<int64_t>* results = nullptr);

Status broadcast_bytes(const std::string& name, int process_set, int root, char* data, size_t size);

// Gathers `size` bytes of each member; `gathered` holds them one after the other, `sizes` how many each has sent.
Status allgather_bytes(const std::string& name, int process_set, const char* data, size_t size, std::string* gathered,
                       std::vector<int64_t>* sizes);

// Returns the id of the set in `results`; all ranks of the world take part.
Status change_process_sets(Collective collective, const std::vector<int64_t>& sizes, std::vector<int64_t>* results);

}  // namespace compat_hvd

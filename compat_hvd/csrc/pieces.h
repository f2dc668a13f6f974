// Several buffers seen as one sequence of bytes: how fused entries are packed and unpacked without a buffer of their
// own.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <vector>

namespace compat_hvd {

class Pieces {
 public:
  // `data` may be nullptr for a part that is to be dropped when it arrives.
  void add(char* data, size_t bytes) {
    if (bytes == 0) return;
    starts_.push_back(total_);
    data_.push_back(data);
    total_ += bytes;
  }
  size_t total() const { return total_; }

  // Calls visit(pointer, offset within the range, bytes) for each part of [from, from + bytes).
  template <typename Visit>
  void for_range(size_t from, size_t bytes, const Visit& visit) const {
    if (bytes == 0) return;
    size_t index = std::upper_bound(starts_.begin(), starts_.end(), from) - starts_.begin() - 1;
    for (size_t done = 0; done < bytes; ++index) {
      const size_t end = index + 1 < starts_.size() ? starts_[index + 1] : total_;
      const size_t at = from + done;
      const size_t count = std::min(bytes - done, end - at);
      visit(data_[index] ? data_[index] + (at - starts_[index]) : nullptr, done, count);
      done += count;
    }
  }
  void copy_out(size_t from, size_t bytes, char* to) const {
    for_range(from, bytes, [&](char* piece, size_t offset, size_t count) { std::memcpy(to + offset, piece, count); });
  }
  void copy_in(size_t from, size_t bytes, const char* source) const {
    for_range(from, bytes, [&](char* piece, size_t offset, size_t count) {
      if (piece) std::memcpy(piece, source + offset, count);
    });
  }

 private:
  std::vector<size_t> starts_;
  std::vector<char*> data_;
  size_t total_ = 0;
};

}  // namespace compat_hvd

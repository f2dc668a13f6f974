// The outcome of an operation. The codes equal TensorFlow's TF_Code, so that the adapter passes them on unchanged.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

namespace compat_hvd {

// No engine failure is ever Aborted, Unavailable or OutOfRange: tf.train.MonitoredSession takes those as a reason to
// recreate the session or as a clean end.
enum class Code : int32_t {
  kOk = 0,
  kUnknown = 2,
  kInvalidArgument = 3,
  kFailedPrecondition = 9,
};

struct Status {
  Code code = Code::kOk;
  std::string message;

  bool ok() const { return code == Code::kOk; }
  static Status unknown(std::string text) { return {Code::kUnknown, std::move(text)}; }
  static Status invalid_argument(std::string text) { return {Code::kInvalidArgument, std::move(text)}; }
  static Status failed_precondition(std::string text) { return {Code::kFailedPrecondition, std::move(text)}; }
};

}  // namespace compat_hvd

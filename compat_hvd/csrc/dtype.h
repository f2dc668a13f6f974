// Element types. The values equal TensorFlow's TF_DataType.
#pragma once

#include <cstddef>
#include <cstdint>

namespace compat_hvd {

enum class DataType : int32_t {
  kFloat32 = 1,
  kFloat64 = 2,
  kInt32 = 3,
  kUint8 = 4,
  kInt16 = 5,
  kInt8 = 6,
  kInt64 = 9,
  kBool = 10,
  kBfloat16 = 14,
  kUint16 = 17,
  kFloat16 = 19,
};

// Bytes of one element; 0 for a value outside the enumeration.
size_t size_of(DataType dtype);
const char* name_of(DataType dtype);

}  // namespace compat_hvd

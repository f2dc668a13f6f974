#include "reduce_kernels.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

namespace compat_hvd {
namespace {

// Elements worked on at a time, so that the accumulators stay in the first-level cache.
constexpr size_t kBlock = 1024;

uint32_t bits_of(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

float float_of(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

struct Half {
  uint16_t bits;
};
struct Bfloat {
  uint16_t bits;
};

// IEEE 754 binary16 → binary32: the exponent is rebiased by a multiplication, which also normalises subnormals.
float widen(Half half) {
  const uint32_t magnitude = static_cast<uint32_t>(half.bits & 0x7fffu) << 13;
  const float scaled = float_of(magnitude) * float_of(0x77800000u);              // 2^112
  const uint32_t special = (half.bits & 0x7c00u) == 0x7c00u ? 0x7f800000u : 0u;  // infinity, NaN
  return float_of(bits_of(scaled) | special | static_cast<uint32_t>(half.bits & 0x8000u) << 16);
}

// binary32 → binary16, round to nearest even. Subnormal results are rounded by adding a constant whose last place is
// theirs.
Half narrow_half(float value) {
  const uint32_t bits = bits_of(value);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  uint32_t result;
  if (magnitude >= 0x47800000u) {
    result = magnitude > 0x7f800000u ? 0x7e00u : 0x7c00u;
  } else if (magnitude < 0x38800000u) {
    result = bits_of(float_of(magnitude) + 0.5f) - bits_of(0.5f);
  } else {
    const uint32_t odd = (magnitude >> 13) & 1u;
    result = (magnitude - 0x38000000u + 0xfffu + odd) >> 13;
  }
  return {static_cast<uint16_t>(sign | result)};
}

float widen(Bfloat value) { return float_of(static_cast<uint32_t>(value.bits) << 16); }

Bfloat narrow_bfloat(float value) {
  const uint32_t bits = bits_of(value);
  const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const uint32_t quiet = (bits >> 16) | 0x40u;
  return {static_cast<uint16_t>((bits & 0x7fffffffu) > 0x7f800000u ? quiet : rounded)};
}

using Wide = __int128;
using UnsignedWide = unsigned __int128;

// Whether an accumulator holds integers, and the type to compute in where overflow wraps.
template <typename Acc>
constexpr bool is_integer = std::is_integral_v<Acc> || std::is_same_v<Acc, Wide>;
template <typename Acc>
using Wrapping = std::conditional_t<std::is_same_v<Acc, Wide>, UnsignedWide, uint64_t>;

// How an element type T is accumulated: integers in a type that an average over any number of ranks does not overflow.
template <typename T>
struct Traits {
  using Acc =
      std::conditional_t<std::is_same_v<T, int64_t>, Wide, std::conditional_t<std::is_integral_v<T>, int64_t, T>>;
  static Acc load(T value) { return static_cast<Acc>(value); }
  static T store(Acc value) { return static_cast<T>(value); }
};
template <>
struct Traits<Half> {
  using Acc = float;
  static float load(Half value) { return widen(value); }
  static Half store(float value) { return narrow_half(value); }
};
template <>
struct Traits<Bfloat> {
  using Acc = float;
  static float load(Bfloat value) { return widen(value); }
  static Bfloat store(float value) { return narrow_bfloat(value); }
};

// The value that storing it would leave; one that would overflow stays.
template <typename T>
typename Traits<T>::Acc as_stored(typename Traits<T>::Acc value) {
  if constexpr (std::is_same_v<T, Half> || std::is_same_v<T, Bfloat>) {
    const float stored = Traits<T>::load(Traits<T>::store(value));
    return std::isinf(stored) ? value : stored;
  } else {
    return value;
  }
}

int64_t truncate(double value) {
  if (!(value > -9.2e18)) return value < 0 ? std::numeric_limits<int64_t>::min() : 0;  // NaN → 0
  if (value > 9.2e18) return std::numeric_limits<int64_t>::max();
  return static_cast<int64_t>(value);
}

template <typename Acc>
Acc scaled(Acc value, double factor) {
  if constexpr (is_integer<Acc>) {
    return truncate(static_cast<double>(value) * factor);
  } else {
    return value * static_cast<Acc>(factor);
  }
}

struct Sum {
  template <typename Acc>
  static Acc apply(Acc a, Acc b) {
    if constexpr (is_integer<Acc>) {
      return static_cast<Acc>(static_cast<Wrapping<Acc>>(a) + static_cast<Wrapping<Acc>>(b));
    } else {
      return a + b;
    }
  }
};
struct Product {
  template <typename Acc>
  static Acc apply(Acc a, Acc b) {
    if constexpr (is_integer<Acc>) {
      return static_cast<Acc>(static_cast<Wrapping<Acc>>(a) * static_cast<Wrapping<Acc>>(b));
    } else {
      return a * b;
    }
  }
};
// A NaN of any source reaches the result of Min and Max.
struct Min {
  template <typename Acc>
  static Acc apply(Acc a, Acc b) {
    return (a < b || a != a) ? a : b;
  }
};
struct Max {
  template <typename Acc>
  static Acc apply(Acc a, Acc b) {
    return (a > b || a != a) ? a : b;
  }
};

template <typename T, typename Acc>
Acc load_scaled(T source, const Scaling& scaling) {
  const Acc value = scaled(static_cast<Acc>(Traits<T>::load(source)), scaling.prescale);
  if constexpr (std::is_same_v<Acc, typename Traits<T>::Acc>) {
    if (scaling.rounds_between()) return as_stored<T>(value);
  }
  return value;
}

template <typename T, typename Acc>
void load_block(const T* source, Acc* acc, size_t count, const Scaling& scaling) {
  if (scaling.prescale == 1.0) {
    for (size_t i = 0; i < count; ++i) acc[i] = Traits<T>::load(source[i]);
  } else {
    for (size_t i = 0; i < count; ++i) acc[i] = load_scaled<T, Acc>(source[i], scaling);
  }
}

template <typename T, typename Op, typename Acc>
void add_block(const T* source, Acc* acc, size_t count, const Scaling& scaling) {
  if (scaling.prescale == 1.0) {
    for (size_t i = 0; i < count; ++i) acc[i] = Op::apply(acc[i], static_cast<Acc>(Traits<T>::load(source[i])));
  } else {
    for (size_t i = 0; i < count; ++i) acc[i] = Op::apply(acc[i], load_scaled<T, Acc>(source[i], scaling));
  }
}

template <typename T, typename Acc = typename Traits<T>::Acc>
void finish_block(Acc* acc, size_t count, const Scaling& scaling) {
  if constexpr (is_integer<Acc>) {
    if (scaling.postscale != 1.0) {
      const double divisor = static_cast<double>(scaling.divisor);
      for (size_t i = 0; i < count; ++i) acc[i] = truncate(static_cast<double>(acc[i]) * scaling.postscale / divisor);
    } else if (scaling.divisor != 1) {
      for (size_t i = 0; i < count; ++i) acc[i] /= scaling.divisor;
    }
  } else {
    if (scaling.divisor != 1) {
      const Acc divisor = static_cast<Acc>(scaling.divisor);
      for (size_t i = 0; i < count; ++i) acc[i] /= divisor;
    }
    if (scaling.postscale != 1.0) {
      const Acc factor = static_cast<Acc>(scaling.postscale);
      const bool rounds = scaling.rounds_between();
      for (size_t i = 0; i < count; ++i) acc[i] = (rounds ? as_stored<T>(acc[i]) : acc[i]) * factor;
    }
  }
}

// Reduces one block of all sources into `acc`.
template <typename T, typename Op, typename Acc>
void reduce_block(const char* const* sources, int n, size_t from, size_t count, Acc* acc, const Scaling& scaling) {
  load_block(reinterpret_cast<const T*>(sources[0]) + from, acc, count, scaling);
  for (int k = 1; k < n; ++k) add_block<T, Op>(reinterpret_cast<const T*>(sources[k]) + from, acc, count, scaling);
}

template <typename T>
void store_block(const typename Traits<T>::Acc* acc, T* out, size_t count) {
  for (size_t i = 0; i < count; ++i) out[i] = Traits<T>::store(acc[i]);
}

enum class Stage { kToOutput, kToPartial, kCombine };

struct Arguments {
  Stage stage;
  const char* const* sources;
  int n;
  char* out;
  size_t count;
  Scaling scaling;
};

template <typename T, typename Op>
void run(const Arguments& a) {
  using Acc = typename Traits<T>::Acc;
  Acc block[kBlock];
  for (size_t from = 0; from < a.count; from += kBlock) {
    const size_t count = std::min(kBlock, a.count - from);
    if (a.stage == Stage::kToPartial) {
      reduce_block<T, Op>(a.sources, a.n, from, count, reinterpret_cast<Acc*>(a.out) + from, a.scaling);
      continue;
    }
    if (a.stage == Stage::kCombine) {
      reduce_block<Acc, Op>(a.sources, a.n, from, count, block, {});
    } else {
      reduce_block<T, Op>(a.sources, a.n, from, count, block, a.scaling);
    }
    finish_block<T>(block, count, a.scaling);
    store_block(block, reinterpret_cast<T*>(a.out) + from, count);
  }
}

template <typename T>
void run_for_type(ReduceOp op, const Arguments& a) {
  switch (op) {
    case ReduceOp::kAverage:
    case ReduceOp::kSum:
      return run<T, Sum>(a);
    case ReduceOp::kMin:
      return run<T, Min>(a);
    case ReduceOp::kMax:
      return run<T, Max>(a);
    case ReduceOp::kProduct:
      return run<T, Product>(a);
    case ReduceOp::kAdasum:
      return;  // no element-wise reduction, see adasum.h
  }
}

void dispatch(DataType dtype, ReduceOp op, const Arguments& a) {
  switch (dtype) {
    case DataType::kFloat32:
      return run_for_type<float>(op, a);
    case DataType::kFloat64:
      return run_for_type<double>(op, a);
    case DataType::kFloat16:
      return run_for_type<Half>(op, a);
    case DataType::kBfloat16:
      return run_for_type<Bfloat>(op, a);
    case DataType::kInt8:
      return run_for_type<int8_t>(op, a);
    case DataType::kUint8:
      return run_for_type<uint8_t>(op, a);
    case DataType::kInt32:
      return run_for_type<int32_t>(op, a);
    case DataType::kInt64:
      return run_for_type<int64_t>(op, a);
    case DataType::kInt16:
    case DataType::kUint16:
    case DataType::kBool:
      return;  // refused during negotiation
  }
}

}  // namespace

bool can_reduce(DataType dtype) {
  switch (dtype) {
    case DataType::kFloat32:
    case DataType::kFloat64:
    case DataType::kFloat16:
    case DataType::kBfloat16:
    case DataType::kInt8:
    case DataType::kUint8:
    case DataType::kInt32:
    case DataType::kInt64:
      return true;
    default:
      return false;
  }
}

size_t partial_size(DataType dtype) {
  switch (dtype) {
    case DataType::kFloat32:
    case DataType::kFloat16:
    case DataType::kBfloat16:
      return sizeof(float);
    case DataType::kInt64:
      return sizeof(Wide);
    default:
      return 8;
  }
}

void reduce_to_output(DataType dtype, ReduceOp op, const char* const* sources, int n, char* out, size_t count,
                      const Scaling& scaling) {
  dispatch(dtype, op, {Stage::kToOutput, sources, n, out, count, scaling});
}

void reduce_to_partial(DataType dtype, ReduceOp op, const char* const* sources, int n, char* partial, size_t count,
                       const Scaling& scaling) {
  dispatch(dtype, op, {Stage::kToPartial, sources, n, partial, count, scaling});
}

void combine_partials(DataType dtype, ReduceOp op, const char* const* partials, int n, char* out, size_t count,
                      const Scaling& scaling) {
  dispatch(dtype, op, {Stage::kCombine, partials, n, out, count, scaling});
}

}  // namespace compat_hvd

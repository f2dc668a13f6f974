#include "adasum_kernels.h"

namespace compat_hvd {
namespace {

// Sums kept side by side, which the compiler can hold in vector registers.
constexpr size_t kLanes = 8;

template <typename Acc>
DotProducts products_of(const Acc* a, const Acc* b, size_t count) {
  double ab[kLanes] = {}, aa[kLanes] = {}, bb[kLanes] = {};
  const auto add = [&](size_t lane, double x, double y) {
    ab[lane] += x * y;
    aa[lane] += x * x;
    bb[lane] += y * y;
  };
  const size_t even = count - count % kLanes;
  for (size_t i = 0; i < even; i += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) add(lane, a[i + lane], b[i + lane]);
  }
  for (size_t i = even; i < count; ++i) add(i - even, a[i], b[i]);
  DotProducts total;
  for (size_t lane = 0; lane < kLanes; ++lane) total.add({ab[lane], aa[lane], bb[lane]});
  return total;
}

template <typename Acc>
void add_to(Acc* a, const Acc* b, size_t count, double factor_of_a, double factor_of_b) {
  for (size_t i = 0; i < count; ++i) a[i] = static_cast<Acc>(factor_of_a * a[i] + factor_of_b * b[i]);
}

}  // namespace

bool can_adasum(DataType dtype) {
  switch (dtype) {
    case DataType::kFloat16:
    case DataType::kBfloat16:
    case DataType::kFloat32:
    case DataType::kFloat64:
      return true;
    default:
      return false;
  }
}

DotProducts dot_products(DataType dtype, const char* a, const char* b, size_t count) {
  if (dtype == DataType::kFloat64) {
    return products_of(reinterpret_cast<const double*>(a), reinterpret_cast<const double*>(b), count);
  }
  return products_of(reinterpret_cast<const float*>(a), reinterpret_cast<const float*>(b), count);
}

void adaptive_add(DataType dtype, char* a, const char* b, size_t count, const DotProducts& products) {
  const double of_a = products.factor_of_a(), of_b = products.factor_of_b();
  if (dtype == DataType::kFloat64) {
    return add_to(reinterpret_cast<double*>(a), reinterpret_cast<const double*>(b), count, of_a, of_b);
  }
  add_to(reinterpret_cast<float*>(a), reinterpret_cast<const float*>(b), count, of_a, of_b);
}

}  // namespace compat_hvd

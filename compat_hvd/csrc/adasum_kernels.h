// The arithmetic of Adasum, on the accumulators of reduce_kernels.h (double for float64, float for the shorter types).
//
// The adaptive sum of two gradients (Maleki et al., "Scaling Distributed Training with Adaptive Summation", 2020) is
//   (1 − a·b / (2 a·a)) a + (1 − a·b / (2 b·b)) b:
// the sum of what is orthogonal, the mean of what is parallel.
#pragma once

#include <cstddef>

#include "dtype.h"

namespace compat_hvd {

bool can_adasum(DataType dtype);

// Dot products of two vectors, or of parts of them, in double: the squares of float16 and float32 do not overflow.
struct DotProducts {
  double ab = 0, aa = 0, bb = 0;

  void add(const DotProducts& part) {
    ab += part.ab;
    aa += part.aa;
    bb += part.bb;
  }
  // What a and b are multiplied with. A vector of zeros leaves the other as it is.
  double factor_of_a() const { return aa == 0 ? 1.0 : 1.0 - ab / aa / 2; }
  double factor_of_b() const { return bb == 0 ? 1.0 : 1.0 - ab / bb / 2; }
};

// The same bits for the same vectors: the order of summation depends on `count` only.
DotProducts dot_products(DataType dtype, const char* a, const char* b, size_t count);

// a = factor_of_a a + factor_of_b b, computed in double and rounded once. `products` are those of the whole vectors.
void adaptive_add(DataType dtype, char* a, const char* b, size_t count, const DotProducts& products);

}  // namespace compat_hvd

// Element-wise reductions. The order of summation is the order of the sources given, for every element, whatever the
// chunking: the same sources give the same bits.
//
// float16 and bfloat16 accumulate in float32; integers accumulate in 64 bits and wrap to their type at
// the end, so that an average never overflows in the element type.
#pragma once

#include <cstddef>
#include <cstdint>

#include "collective.h"
#include "dtype.h"

namespace compat_hvd {

// result = reduce(prescale * source_0, prescale * source_1, …) / divisor * postscale; divisor is the number of members
// for an average and 1 otherwise. Integers: each scaling multiplies in double and truncates toward zero.
//
// float16 and bfloat16 round at the end and, unless it is an average, also after the prescaling and before the
// postscaling: then the result has the bits that tensors scaled by themselves would give. What overflows there only is
// not rounded.
struct Scaling {
  double prescale = 1.0;
  double postscale = 1.0;
  int64_t divisor = 1;

  bool rounds_between() const { return divisor == 1; }
};

bool can_reduce(DataType dtype);

// Bytes of one element of a partial result (the accumulator's type).
size_t partial_size(DataType dtype);

// Reduces `count` elements of `n` sources to the final result. `out` may equal a source when n is 1.
void reduce_to_output(DataType dtype, ReduceOp op, const char* const* sources, int n, char* out, size_t count,
                      const Scaling& scaling);

// Reduces `count` elements of `n` sources, prescaled, to a partial result that combine_partials finishes.
void reduce_to_partial(DataType dtype, ReduceOp op, const char* const* sources, int n, char* partial, size_t count,
                       const Scaling& scaling);

// Combines `n` partial results in the order given to the final result.
void combine_partials(DataType dtype, ReduceOp op, const char* const* partials, int n, char* out, size_t count,
                      const Scaling& scaling);

}  // namespace compat_hvd

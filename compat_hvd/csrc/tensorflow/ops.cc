// The operations: names and attributes equal Horovod's, so that a MetaGraph which an old job wrote imports and runs;
// attributes of our own have defaults.
//
// All are stateful: nothing folds, merges or prunes a collective.
#include <cstdio>
#include <initializer_list>
#include <memory>

#include "c_api_decls.h"

namespace {

constexpr char kReducible[] = "T: {half, bfloat16, float, double, uint8, int8, int32, int64}";
constexpr char kMovable[] = "T: {uint8, int8, uint16, int16, int32, int64, half, bfloat16, float, double, bool}";

class Shape {
 public:
  Shape() : handle_(TF_NewShapeHandle()) {}
  explicit Shape(TF_ShapeHandle* handle) : handle_(handle) {}
  ~Shape() { TF_DeleteShapeHandle(handle_); }
  Shape(const Shape&) = delete;
  TF_ShapeHandle* get() { return handle_; }

 private:
  TF_ShapeHandle* handle_;
};

void same_shape(TF_ShapeInferenceContext* context, TF_Status* status) {
  Shape shape;
  TF_ShapeInferenceContextGetInput(context, 0, shape.get(), status);
  if (TF_GetCode(status) == 0) TF_ShapeInferenceContextSetOutput(context, 0, shape.get(), status);
}

// The first dimension is the sum over ranks, which nobody knows yet.
void gathered_shape(TF_ShapeInferenceContext* context, TF_Status* status) {
  Shape shape, checked, rest, result;
  TF_ShapeInferenceContextGetInput(context, 0, shape.get(), status);
  if (TF_GetCode(status) != 0) return;
  if (!TF_ShapeInferenceContextRankKnown(context, shape.get()))
    return TF_ShapeInferenceContextSetUnknownShape(context, status);
  TF_ShapeInferenceContextWithRankAtLeast(context, shape.get(), 1, checked.get(), status);
  if (TF_GetCode(status) != 0) return;
  TF_ShapeInferenceContextSubshape(context, checked.get(), 1, INT64_MAX, rest.get(), status);
  if (TF_GetCode(status) != 0) return;
  Shape unknown(TF_ShapeInferenceContextVectorFromSize(context, static_cast<size_t>(-1)));
  TF_ShapeInferenceContextConcatenateShapes(context, unknown.get(), rest.get(), result.get(), status);
  if (TF_GetCode(status) == 0) TF_ShapeInferenceContextSetOutput(context, 0, result.get(), status);
}

void scalar_shape(TF_ShapeInferenceContext* context, TF_Status* status) {
  Shape shape(TF_ShapeInferenceContextScalar(context));
  TF_ShapeInferenceContextSetOutput(context, 0, shape.get(), status);
}

void no_shape(TF_ShapeInferenceContext*, TF_Status*) {}

struct Operation {
  const char* name;
  std::initializer_list<const char*> attributes;
  const char* input;
  const char* output;
  void (*shape)(TF_ShapeInferenceContext*, TF_Status*);
};

void define(const Operation& operation) {
  TF_OpDefinitionBuilder* builder = TF_NewOpDefinitionBuilder(operation.name);
  for (const char* attribute : operation.attributes) TF_OpDefinitionBuilderAddAttr(builder, attribute);
  if (operation.input) TF_OpDefinitionBuilderAddInput(builder, operation.input);
  if (operation.output) TF_OpDefinitionBuilderAddOutput(builder, operation.output);
  TF_OpDefinitionBuilderSetIsStateful(builder, true);
  TF_OpDefinitionBuilderSetShapeInferenceFunction(builder, operation.shape);
  TF_Status* status = TF_NewStatus();
  TF_RegisterOpDefinition(builder, status);
  if (TF_GetCode(status) != 0) std::fprintf(stderr, "compat_hvd: %s: %s\n", operation.name, TF_Message(status));
  TF_DeleteStatus(status);
}

constexpr char kScope[] = "ignore_name_scope: bool = false";
constexpr char kSet[] = "process_set_id: int = 0";
constexpr char kName[] = "tensor_name: string = ''";

__attribute__((constructor)) void define_all() {
  define({"HorovodAllreduce",
          {kReducible, "reduce_op: int", "prescale_factor: float", "postscale_factor: float", kScope, kSet, kName,
           "prescale_bits: int = 0", "postscale_bits: int = 0"},
          "tensor: T",
          "sum: T",
          same_shape});
  define({"HorovodAllgather", {kMovable, kScope, kSet, kName}, "tensor: T", "output: T", gathered_shape});
  define({"HorovodBroadcast", {kMovable, "root_rank: int", kScope, kSet, kName}, "tensor: T", "output: T", same_shape});
  define({"HorovodBarrier", {kSet, kName}, nullptr, nullptr, no_shape});
  define({"HorovodSize", {kSet}, nullptr, "size: int32", scalar_shape});
  define({"HorovodLocalSize", {}, nullptr, "local_size: int32", scalar_shape});
  define({"HorovodRank", {}, nullptr, "rank: int32", scalar_shape});
  define({"HorovodLocalRank", {}, nullptr, "local_rank: int32", scalar_shape});
  define({"HorovodProcessSetIncluded", {kSet}, nullptr, "included: int32", scalar_shape});
}

}  // namespace

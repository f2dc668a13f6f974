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
constexpr char kReducibles[] = "T: list({half, bfloat16, float, double, uint8, int8, int32, int64}) >= 1";
constexpr char kMovables[] =
    "T: list({uint8, int8, uint16, int16, int32, int64, half, bfloat16, float, double, bool}) >= 1";

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

void same_shapes(TF_ShapeInferenceContext* context, TF_Status* status) {
  const int64_t tensors = TF_ShapeInferenceContextNumInputs(context);
  for (int i = 0; i < tensors && TF_GetCode(status) == 0; ++i) {
    Shape shape;
    TF_ShapeInferenceContextGetInput(context, i, shape.get(), status);
    if (TF_GetCode(status) == 0) TF_ShapeInferenceContextSetOutput(context, i, shape.get(), status);
  }
}

// The first dimension depends on other ranks, or on which rank this is.
void other_rows(TF_ShapeInferenceContext* context, int tensor, TF_Status* status) {
  Shape shape, checked, rest, result;
  TF_ShapeInferenceContextGetInput(context, tensor, shape.get(), status);
  if (TF_GetCode(status) != 0) return;
  // An output whose shape is not set has an unknown one.
  if (!TF_ShapeInferenceContextRankKnown(context, shape.get())) return;
  TF_ShapeInferenceContextWithRankAtLeast(context, shape.get(), 1, checked.get(), status);
  if (TF_GetCode(status) != 0) return;
  TF_ShapeInferenceContextSubshape(context, checked.get(), 1, INT64_MAX, rest.get(), status);
  if (TF_GetCode(status) != 0) return;
  Shape unknown(TF_ShapeInferenceContextVectorFromSize(context, static_cast<size_t>(-1)));
  TF_ShapeInferenceContextConcatenateShapes(context, unknown.get(), rest.get(), result.get(), status);
  if (TF_GetCode(status) == 0) TF_ShapeInferenceContextSetOutput(context, tensor, result.get(), status);
}

void other_rows_of_all(TF_ShapeInferenceContext* context, TF_Status* status) {
  TF_ShapeInferenceContextSetUnknownShape(context, status);
  const int64_t tensors = TF_ShapeInferenceContextNumInputs(context);
  for (int i = 0; i < tensors && TF_GetCode(status) == 0; ++i) other_rows(context, i, status);
}

// Two outputs: the rows, and how many came from each member.
void alltoall_shape(TF_ShapeInferenceContext* context, TF_Status* status) {
  TF_ShapeInferenceContextSetUnknownShape(context, status);
  if (TF_GetCode(status) == 0) other_rows(context, 0, status);
  if (TF_GetCode(status) != 0) return;
  Shape unknown(TF_ShapeInferenceContextVectorFromSize(context, static_cast<size_t>(-1)));
  TF_ShapeInferenceContextSetOutput(context, 1, unknown.get(), status);
}

void scalar_shape(TF_ShapeInferenceContext* context, TF_Status* status) {
  Shape shape(TF_ShapeInferenceContextScalar(context));
  TF_ShapeInferenceContextSetOutput(context, 0, shape.get(), status);
}

void no_shape(TF_ShapeInferenceContext*, TF_Status*) {}

struct Operation {
  const char* name;
  std::initializer_list<const char*> attributes;
  std::initializer_list<const char*> inputs, outputs;
  void (*shape)(TF_ShapeInferenceContext*, TF_Status*);
};

void define(const Operation& operation) {
  TF_OpDefinitionBuilder* builder = TF_NewOpDefinitionBuilder(operation.name);
  for (const char* attribute : operation.attributes) TF_OpDefinitionBuilderAddAttr(builder, attribute);
  for (const char* input : operation.inputs) TF_OpDefinitionBuilderAddInput(builder, input);
  for (const char* output : operation.outputs) TF_OpDefinitionBuilderAddOutput(builder, output);
  TF_OpDefinitionBuilderSetIsStateful(builder, true);
  TF_OpDefinitionBuilderSetShapeInferenceFunction(builder, operation.shape);
  TF_Status* status = TF_NewStatus();
  TF_RegisterOpDefinition(builder, status);
  if (TF_GetCode(status) != 0) std::fprintf(stderr, "compat_hvd: %s: %s\n", operation.name, TF_Message(status));
  TF_DeleteStatus(status);
}

constexpr char kScope[] = "ignore_name_scope: bool = false";
constexpr char kSet[] = "process_set_id: int = 0";
constexpr char kCount[] = "num_tensors: int >= 1";
constexpr char kVariables[] = "num_variables: int";
constexpr char kVariableNames[] = "variable_names: list(string)";
constexpr char kOp[] = "reduce_op: int";
constexpr char kPrescale[] = "prescale_factor: float";
constexpr char kPostscale[] = "postscale_factor: float";
// Of our own: the name that ranks agree on, and the exact bits of factors that a float would round.
constexpr char kName[] = "tensor_name: string = ''";
constexpr char kPrescaleBits[] = "prescale_bits: int = 0";
constexpr char kPostscaleBits[] = "postscale_bits: int = 0";

__attribute__((constructor)) void define_all() {
  const auto reduction = [](const char* name, bool group, const char* input, const char* output, auto shape) {
    if (group) {
      define({name,
              {kReducible, kOp, kPrescale, kPostscale, kScope, kSet, kName, kPrescaleBits, kPostscaleBits, kCount},
              {input},
              {output},
              shape});
    } else {
      define({name,
              {kReducible, kOp, kPrescale, kPostscale, kScope, kSet, kName, kPrescaleBits, kPostscaleBits},
              {input},
              {output},
              shape});
    }
  };
  reduction("HorovodAllreduce", false, "tensor: T", "sum: T", same_shapes);
  reduction("HorovodGroupedAllreduce", true, "tensors: num_tensors*T", "sum: num_tensors*T", same_shapes);
  reduction("HorovodReducescatter", false, "tensor: T", "output: T", other_rows_of_all);
  reduction("HorovodGroupedReducescatter", true, "tensors: num_tensors*T", "outputs: num_tensors*T", other_rows_of_all);
  define({"HorovodAllgather", {kMovable, kScope, kSet, kName}, {"tensor: T"}, {"output: T"}, other_rows_of_all});
  define({"HorovodGroupedAllgather",
          {kMovable, kScope, kSet, kName, kCount},
          {"tensors: num_tensors*T"},
          {"outputs: num_tensors*T"},
          other_rows_of_all});
  // Of our own: groups of several dtypes.
  const auto mixed = [](const char* name, const char* output, auto shape) {
    define({name,
            {kReducibles, kOp, kPrescale, kPostscale, kScope, kSet, kName, kPrescaleBits, kPostscaleBits, kCount},
            {"tensors: T"},
            {output},
            shape});
  };
  mixed("CompatHvdGroupedAllreduce", "sum: T", same_shapes);
  mixed("CompatHvdGroupedReducescatter", "outputs: T", other_rows_of_all);
  define({"CompatHvdGroupedAllgather",
          {kMovables, kScope, kSet, kName, kCount},
          {"tensors: T"},
          {"outputs: T"},
          other_rows_of_all});
  define({"HorovodBroadcast",
          {kMovable, "root_rank: int", kScope, kSet, kName},
          {"tensor: T"},
          {"output: T"},
          same_shapes});
  // Of old graphs: nodes that Python replaces when it imports the graph.
  define({"HorovodBroadcastInplace",
          {kMovable, "root_rank: int", kSet, kVariables, kVariableNames},
          {"tensor_refs: Ref(num_variables * T)"},
          {"output_refs: Ref(num_variables * T)"},
          same_shapes});
  define({"HorovodBroadcastInplaceResource",
          {"root_rank: int", kSet, kVariables, kVariableNames},
          {"resources: num_variables * resource"},
          {},
          no_shape});
  define({"HorovodAlltoall",
          {kMovable, kScope, kSet, kName},
          {"tensor: T", "splits: int32"},
          {"output: T", "received_splits: int32"},
          alltoall_shape});
  define({"HorovodBarrier", {kSet, kName}, {}, {}, no_shape});
  define({"HorovodJoin", {}, {}, {"output: int32"}, scalar_shape});
  define({"HorovodSize", {kSet}, {}, {"size: int32"}, scalar_shape});
  define({"HorovodLocalSize", {}, {}, {"local_size: int32"}, scalar_shape});
  define({"HorovodRank", {}, {}, {"rank: int32"}, scalar_shape});
  define({"HorovodLocalRank", {}, {}, {"local_rank: int32"}, scalar_shape});
  define({"HorovodProcessSetIncluded", {kSet}, {}, {"included: int32"}, scalar_shape});
}

}  // namespace

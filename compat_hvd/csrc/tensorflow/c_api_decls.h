// The functions of TensorFlow's C API that the adapter calls, so that neither its headers nor TensorFlow are needed to
// build. They are exported by libtensorflow_framework.so.2 of every TensorFlow from 2.13 on.
#pragma once

#include <cstddef>
#include <cstdint>

extern "C" {

struct TF_Status;
struct TF_Tensor;
struct TF_KernelBuilder;
struct TF_OpDefinitionBuilder;
struct TF_OpKernelConstruction;
struct TF_OpKernelContext;
struct TF_ShapeHandle;
struct TF_ShapeInferenceContext;
struct TF_AsyncOpKernelDoneCallback;

typedef int TF_Code;
typedef int TF_DataType;
typedef unsigned char TF_Bool;
struct TF_StringView {
  const char* data;
  size_t len;
};

TF_Status* TF_NewStatus();
void TF_DeleteStatus(TF_Status*);
void TF_SetStatus(TF_Status*, TF_Code, const char* message);
TF_Code TF_GetCode(const TF_Status*);
const char* TF_Message(const TF_Status*);

void TF_DeleteTensor(TF_Tensor*);
TF_DataType TF_TensorType(const TF_Tensor*);
int TF_NumDims(const TF_Tensor*);
int64_t TF_Dim(const TF_Tensor*, int index);
size_t TF_TensorByteSize(const TF_Tensor*);
void* TF_TensorData(const TF_Tensor*);

TF_KernelBuilder* TF_NewKernelBuilder(const char* op, const char* device, void* (*create)(TF_OpKernelConstruction*),
                                      void (*compute)(void*, TF_OpKernelContext*), void (*destroy)(void*));
TF_KernelBuilder* TF_NewAsyncKernelBuilder(const char* op, const char* device,
                                           void* (*create)(TF_OpKernelConstruction*),
                                           void (*compute)(void*, TF_OpKernelContext*, TF_AsyncOpKernelDoneCallback*),
                                           void (*destroy)(void*));
void TF_KernelBuilder_HostMemory(TF_KernelBuilder*, const char* argument);
void TF_RegisterKernelBuilder(const char* name, TF_KernelBuilder*, TF_Status*);

void TF_OpKernelConstruction_GetAttrSize(TF_OpKernelConstruction*, const char* name, int32_t* list_size,
                                         int32_t* total_size, TF_Status*);
void TF_OpKernelConstruction_GetAttrInt64(TF_OpKernelConstruction*, const char* name, int64_t*, TF_Status*);
void TF_OpKernelConstruction_GetAttrFloat(TF_OpKernelConstruction*, const char* name, float*, TF_Status*);
void TF_OpKernelConstruction_GetAttrBool(TF_OpKernelConstruction*, const char* name, TF_Bool*, TF_Status*);
void TF_OpKernelConstruction_GetAttrString(TF_OpKernelConstruction*, const char* name, char*, size_t max_length,
                                           TF_Status*);
void TF_OpKernelConstruction_Failure(TF_OpKernelConstruction*, TF_Status*);

void TF_GetInput(TF_OpKernelContext*, int index, TF_Tensor**, TF_Status*);
TF_Tensor* TF_AllocateOutput(TF_OpKernelContext*, int index, TF_DataType, const int64_t* dims, int num_dims,
                             size_t bytes, TF_Status*);
TF_Tensor* TF_ForwardInputOrAllocateOutput(TF_OpKernelContext*, const int* candidates, int num_candidates, int output,
                                           const int64_t* dims, int num_dims, int* forwarded, TF_Status*);
void TF_OpKernelContext_Failure(TF_OpKernelContext*, TF_Status*);
TF_StringView TF_GetOpKernelName(TF_OpKernelContext*);
int64_t TF_GetIterId(TF_OpKernelContext*);

TF_OpDefinitionBuilder* TF_NewOpDefinitionBuilder(const char* name);
void TF_OpDefinitionBuilderAddAttr(TF_OpDefinitionBuilder*, const char* spec);
void TF_OpDefinitionBuilderAddInput(TF_OpDefinitionBuilder*, const char* spec);
void TF_OpDefinitionBuilderAddOutput(TF_OpDefinitionBuilder*, const char* spec);
void TF_OpDefinitionBuilderSetIsStateful(TF_OpDefinitionBuilder*, bool);
void TF_OpDefinitionBuilderSetShapeInferenceFunction(TF_OpDefinitionBuilder*,
                                                     void (*)(TF_ShapeInferenceContext*, TF_Status*));
void TF_RegisterOpDefinition(TF_OpDefinitionBuilder*, TF_Status*);

TF_ShapeHandle* TF_NewShapeHandle();
void TF_DeleteShapeHandle(TF_ShapeHandle*);
int64_t TF_ShapeInferenceContextNumInputs(TF_ShapeInferenceContext*);
void TF_ShapeInferenceContextGetInput(TF_ShapeInferenceContext*, int index, TF_ShapeHandle*, TF_Status*);
void TF_ShapeInferenceContextSetOutput(TF_ShapeInferenceContext*, int index, TF_ShapeHandle*, TF_Status*);
int TF_ShapeInferenceContextRankKnown(TF_ShapeInferenceContext*, TF_ShapeHandle*);
void TF_ShapeInferenceContextSetUnknownShape(TF_ShapeInferenceContext*, TF_Status*);
TF_ShapeHandle* TF_ShapeInferenceContextScalar(TF_ShapeInferenceContext*);
TF_ShapeHandle* TF_ShapeInferenceContextVectorFromSize(TF_ShapeInferenceContext*, size_t);
void TF_ShapeInferenceContextWithRankAtLeast(TF_ShapeInferenceContext*, TF_ShapeHandle*, int64_t rank,
                                             TF_ShapeHandle* result, TF_Status*);
void TF_ShapeInferenceContextSubshape(TF_ShapeInferenceContext*, TF_ShapeHandle*, int64_t start, int64_t end,
                                      TF_ShapeHandle* result, TF_Status*);
void TF_ShapeInferenceContextConcatenateShapes(TF_ShapeInferenceContext*, TF_ShapeHandle* first, TF_ShapeHandle* second,
                                               TF_ShapeHandle* result, TF_Status*);

}  // extern "C"

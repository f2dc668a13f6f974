#include "adapter.h"

#include <cstring>

#include "../runtime.h"

namespace compat_hvd {

Status not_initialized() { return Status::failed_precondition("Horovod has not been initialized; use hvd.init()."); }

void AttributeReader::check(TfStatus* status) {
  if (!status->ok()) TF_OpKernelConstruction_Failure(construction_, status->get());
}

int64_t AttributeReader::integer(const char* name) {
  TfStatus status;
  int64_t value = 0;
  TF_OpKernelConstruction_GetAttrInt64(construction_, name, &value, status.get());
  check(&status);
  return value;
}

bool AttributeReader::boolean(const char* name) {
  TfStatus status;
  TF_Bool value = 0;
  TF_OpKernelConstruction_GetAttrBool(construction_, name, &value, status.get());
  check(&status);
  return value != 0;
}

std::string AttributeReader::text(const char* name) {
  TfStatus status;
  int32_t list_size = 0, size = 0;
  TF_OpKernelConstruction_GetAttrSize(construction_, name, &list_size, &size, status.get());
  if (!status.ok() || size <= 0) return check(&status), std::string();
  std::string value(static_cast<size_t>(size), '\0');
  TF_OpKernelConstruction_GetAttrString(construction_, name, value.data(), value.size(), status.get());
  check(&status);
  return value;
}

double AttributeReader::factor(const char* name, const char* bits) {
  const int64_t exact = integer(bits);
  double value;
  if (exact != 0) {
    std::memcpy(&value, &exact, sizeof value);
    return value;
  }
  TfStatus status;
  float single = 1.0f;
  TF_OpKernelConstruction_GetAttrFloat(construction_, name, &single, status.get());
  check(&status);
  return single;
}

// Iterations of a while loop may run in parallel: each is a collective of its own.
std::string KernelRun::name(const Attributes& attributes) const {
  std::string name = attributes.tensor_name;
  if (name.empty()) {
    const TF_StringView node = TF_GetOpKernelName(context_);
    name.assign(node.data, node.len);
    if (attributes.ignore_name_scope) name = name.substr(name.rfind('/') + 1);
  }
  const int64_t iteration = TF_GetIterId(context_);
  return iteration > 0 ? name + '#' + std::to_string(iteration) : name;
}

void KernelRun::describe(const Attributes& attributes, Entry* entry) const {
  entry->request.name = name(attributes);
  entry->request.process_set = static_cast<int32_t>(attributes.process_set_id);
}

bool KernelRun::begin(const Attributes& attributes, bool forward, Entry* entry) {
  describe(attributes, entry);
  TfStatus status;
  TF_Tensor* input = nullptr;
  TF_GetInput(context_, 0, &input, status.get());
  if (!status.ok()) return finish(Status::unknown(status.message())), false;
  input_.reset(input);
  entry->request.dtype = static_cast<DataType>(TF_TensorType(input));
  for (int i = 0; i < TF_NumDims(input); ++i) entry->request.shape.push_back(TF_Dim(input, i));
  if (forward) {
    // The input is forwarded only while nobody holds a TF_Tensor of it.
    input_.reset();
    const int candidate = 0;
    int forwarded = -1;
    const std::vector<int64_t>& shape = entry->request.shape;
    output_.reset(TF_ForwardInputOrAllocateOutput(context_, &candidate, 1, 0, shape.data(),
                                                  static_cast<int>(shape.size()), &forwarded, status.get()));
    if (!status.ok()) return finish(Status::unknown(status.message())), false;
    TF_GetInput(context_, 0, &input, status.get());
    if (!status.ok()) return finish(Status::unknown(status.message())), false;
    input_.reset(input);
    entry->output = static_cast<char*>(TF_TensorData(output_.get()));
  }
  entry->input = static_cast<const char*>(TF_TensorData(input_.get()));
  return true;
}

char* KernelRun::allocate(int64_t first_dimension, const Request& request) {
  std::vector<int64_t> shape = request.shape;
  shape[0] = first_dimension;
  size_t bytes = size_of(request.dtype);
  for (int64_t dimension : shape) bytes *= static_cast<size_t>(dimension);
  TfStatus status;
  output_.reset(TF_AllocateOutput(context_, 0, static_cast<TF_DataType>(request.dtype), shape.data(),
                                  static_cast<int>(shape.size()), bytes, status.get()));
  return status.ok() && output_ ? static_cast<char*>(TF_TensorData(output_.get())) : nullptr;
}

void KernelRun::finish(const Status& status) {
  input_.reset();
  output_.reset();
  if (!status.ok()) {
    TfStatus failure(status);
    TF_OpKernelContext_Failure(context_, failure.get());
  }
  std::function<void()> done;
  done.swap(done_);
  done();
}

void KernelRun::submit(std::unique_ptr<Entry> entry) {
  auto runtime = Runtime::current();
  if (!runtime) return finish(not_initialized());
  auto self = shared_from_this();
  entry->done = [self](const Status& status) { self->finish(status); };
  runtime->submit(std::move(entry));
}

}  // namespace compat_hvd

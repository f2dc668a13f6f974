#include "adapter.h"

#include <cstring>

#include "../runtime.h"

namespace compat_hvd {

namespace {

// TensorFlow has no class of its own for what cannot complete; this tells our UnknownErrors from everybody else's.
constexpr char kInternalError[] = "HorovodInternalError: ";

}  // namespace

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
std::string KernelRun::name(const Attributes& attributes, int position) const {
  std::string name = attributes.tensor_name;
  if (name.empty()) {
    const TF_StringView node = TF_GetOpKernelName(context_);
    name.assign(node.data, node.len);
    if (attributes.ignore_name_scope) name = name.substr(name.rfind('/') + 1);
  }
  if (attributes.grouped) {
    name += '_' + std::to_string(position + 1) + "of" + std::to_string(tensors_);
  }
  const int64_t iteration = TF_GetIterId(context_);
  return iteration > 0 ? name + '#' + std::to_string(iteration) : name;
}

std::unique_ptr<Entry> KernelRun::entry(const Attributes& attributes, Collective collective, int position) const {
  auto entry = std::make_unique<Entry>();
  Request& request = entry->request;
  request.name = name(attributes, position);
  request.collective = collective;
  request.process_set = static_cast<int32_t>(attributes.process_set_id);
  request.op = static_cast<ReduceOp>(attributes.reduce_op);
  request.prescale = attributes.prescale;
  request.postscale = attributes.postscale;
  request.root = static_cast<int32_t>(attributes.root_rank);
  if (attributes.grouped) {
    request.group_member = position + 1;
    request.group_size = tensors_;
  }
  return entry;
}

void KernelRun::take_input(Entry* entry, int position) {
  TfStatus status;
  TF_Tensor* input = nullptr;
  TF_GetInput(context_, position, &input, status.get());
  inputs_[position].reset(input);
  if (!status.ok()) {
    entry->request.error = Status::unknown(status.message());
    return;
  }
  entry->input = static_cast<const char*>(TF_TensorData(input));
  entry->request.dtype = static_cast<DataType>(TF_TensorType(input));
  entry->request.shape.clear();
  for (int i = 0; i < TF_NumDims(input); ++i) entry->request.shape.push_back(TF_Dim(input, i));
}

void KernelRun::add_tensors(Entry* entry, int position) {
  take_input(entry, position);
  if (!entry->request.error.ok()) return;
  // The input is forwarded only while nobody holds a TF_Tensor of it.
  inputs_[position].reset();
  TfStatus status;
  int forwarded = -1;
  const std::vector<int64_t>& shape = entry->request.shape;
  outputs_[position].reset(TF_ForwardInputOrAllocateOutput(context_, &position, 1, position, shape.data(),
                                                           static_cast<int>(shape.size()), &forwarded, status.get()));
  if (!status.ok()) {
    entry->request.error = Status::unknown("no output for '" + entry->request.name + "': " + status.message());
    return;
  }
  entry->output = static_cast<char*>(TF_TensorData(outputs_[position].get()));
  take_input(entry, position);
}

void KernelRun::add_input(Entry* entry, int position) {
  take_input(entry, position);
  // The entry owns this function, and its done keeps the run.
  entry->allocate = [this, position, entry](int64_t rows) { return allocate(position, rows, entry->request); };
}

void KernelRun::read_sizes(Entry* entry, int input) {
  TfStatus status;
  TF_Tensor* raw = nullptr;
  TF_GetInput(context_, input, &raw, status.get());
  Tensor sizes(raw);
  const std::string what = "alltoall of tensor '" + entry->request.name + "': ";
  if (!status.ok()) {
    entry->request.error = Status::unknown(status.message());
  } else if (TF_NumDims(raw) != 1) {
    entry->request.error = Status::invalid_argument(what + "alltoall expects a 1D splits tensor");
  } else {
    const auto* values = static_cast<const int32_t*>(TF_TensorData(raw));
    entry->request.sizes.assign(values, values + TF_Dim(raw, 0));
  }
}

char* KernelRun::allocate(int position, int64_t first_dimension, const Request& request) {
  std::vector<int64_t> shape = request.shape;
  shape[0] = first_dimension;
  const size_t bytes = static_cast<size_t>(first_dimension) * request.row_bytes();
  TfStatus status;
  outputs_[position].reset(TF_AllocateOutput(context_, position, static_cast<TF_DataType>(request.dtype), shape.data(),
                                             static_cast<int>(shape.size()), bytes, status.get()));
  return status.ok() && outputs_[position] ? static_cast<char*>(TF_TensorData(outputs_[position].get())) : nullptr;
}

void KernelRun::output_integers(int output, const std::vector<int64_t>& values, bool scalar) {
  const int64_t shape[] = {static_cast<int64_t>(values.size())};
  TfStatus status;
  Tensor tensor(TF_AllocateOutput(context_, output, static_cast<TF_DataType>(DataType::kInt32), shape, scalar ? 0 : 1,
                                  values.size() * sizeof(int32_t), status.get()));
  if (!status.ok()) return TF_OpKernelContext_Failure(context_, status.get());
  auto* to = static_cast<int32_t*>(TF_TensorData(tensor.get()));
  for (int64_t value : values) *to++ = static_cast<int32_t>(value);
}

void KernelRun::complete(int position, const Status& status, const std::vector<int64_t>& results) {
  statuses_[position] = status;
  if (status.ok() && results_) results_(results);
  if (unfinished_.fetch_sub(1, std::memory_order_acq_rel) > 1) return;
  for (const Status& one : statuses_) {
    if (!one.ok()) return finish(one);
  }
  finish({});
}

void KernelRun::finish(const Status& status) {
  inputs_.clear();
  outputs_.clear();
  if (!status.ok()) {
    TfStatus failure(status.code == Code::kUnknown ? Status::unknown(kInternalError + status.message) : status);
    TF_OpKernelContext_Failure(context_, failure.get());
  }
  std::function<void()> done;
  done.swap(done_);
  done();
}

void KernelRun::submit(std::vector<std::unique_ptr<Entry>> entries) {
  auto runtime = Runtime::current();
  if (!runtime) return finish(not_initialized());
  if (entries.empty()) return finish({});
  auto self = shared_from_this();
  for (int i = 0; i < static_cast<int>(entries.size()); ++i) {
    Entry* entry = entries[i].get();
    entry->done = [self, i, entry](const Status& status) { self->complete(i, status, entry->results); };
    runtime->submit(std::move(entries[i]));
  }
}

void KernelRun::submit(std::unique_ptr<Entry> entry) {
  std::vector<std::unique_ptr<Entry>> entries;
  entries.push_back(std::move(entry));
  submit(std::move(entries));
}

}  // namespace compat_hvd

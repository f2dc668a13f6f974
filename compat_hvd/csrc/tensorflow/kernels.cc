// The kernels. Each is registered for GPU as well, with all arguments in host memory, so that TensorFlow stages the
// copies.
#include <cstdio>
#include <initializer_list>

#include "../runtime.h"
#include "adapter.h"

namespace compat_hvd {
namespace {

using Done = TF_AsyncOpKernelDoneCallback*;

template <typename Read>
void* create(TF_OpKernelConstruction* construction, const Read& read) {
  auto* attributes = new Attributes;
  AttributeReader reader(construction);
  read(&reader, attributes);
  return attributes;
}

void read_common(AttributeReader* reader, Attributes* attributes) {
  attributes->process_set_id = reader->integer("process_set_id");
  attributes->tensor_name = reader->text("tensor_name");
}

void read_named(AttributeReader* reader, Attributes* attributes) {
  read_common(reader, attributes);
  attributes->ignore_name_scope = reader->boolean("ignore_name_scope");
}

void destroy(void* attributes) { delete static_cast<Attributes*>(attributes); }

// ---- Collectives ----

void* create_allreduce(TF_OpKernelConstruction* construction) {
  return create(construction, [](AttributeReader* reader, Attributes* attributes) {
    read_named(reader, attributes);
    attributes->reduce_op = reader->integer("reduce_op");
    attributes->prescale = reader->factor("prescale_factor", "prescale_bits");
    attributes->postscale = reader->factor("postscale_factor", "postscale_bits");
  });
}

void allreduce(void* kernel, TF_OpKernelContext* context, Done done) {
  const auto& attributes = *static_cast<Attributes*>(kernel);
  auto run = std::make_shared<KernelRun>(context, done);
  auto entry = std::make_unique<Entry>();
  if (!run->begin(attributes, true, entry.get())) return;
  entry->request.collective = Collective::kAllreduce;
  entry->request.op = static_cast<ReduceOp>(attributes.reduce_op);
  entry->request.prescale = attributes.prescale;
  entry->request.postscale = attributes.postscale;
  run->submit(std::move(entry));
}

void* create_allgather(TF_OpKernelConstruction* construction) { return create(construction, read_named); }

void allgather(void* kernel, TF_OpKernelContext* context, Done done) {
  auto run = std::make_shared<KernelRun>(context, done);
  auto entry = std::make_unique<Entry>();
  if (!run->begin(*static_cast<Attributes*>(kernel), false, entry.get())) return;
  entry->request.collective = Collective::kAllgather;
  Entry* raw = entry.get();
  // The entry owns this function, and done keeps the run.
  entry->allocate = [run = run.get(), raw](int64_t rows) { return run->allocate(rows, raw->request); };
  run->submit(std::move(entry));
}

void* create_broadcast(TF_OpKernelConstruction* construction) {
  return create(construction, [](AttributeReader* reader, Attributes* attributes) {
    read_named(reader, attributes);
    attributes->root_rank = reader->integer("root_rank");
  });
}

void broadcast(void* kernel, TF_OpKernelContext* context, Done done) {
  const auto& attributes = *static_cast<Attributes*>(kernel);
  auto run = std::make_shared<KernelRun>(context, done);
  auto entry = std::make_unique<Entry>();
  if (!run->begin(attributes, true, entry.get())) return;
  entry->request.collective = Collective::kBroadcast;
  entry->request.root = static_cast<int32_t>(attributes.root_rank);
  run->submit(std::move(entry));
}

void* create_barrier(TF_OpKernelConstruction* construction) { return create(construction, read_common); }

void barrier(void* kernel, TF_OpKernelContext* context, Done done) {
  auto run = std::make_shared<KernelRun>(context, done);
  auto entry = std::make_unique<Entry>();
  run->describe(*static_cast<Attributes*>(kernel), entry.get());
  entry->request.collective = Collective::kBarrier;
  run->submit(std::move(entry));
}

// ---- Identity ----

void* create_identity(TF_OpKernelConstruction*) { return new Attributes; }

void* create_identity_of_set(TF_OpKernelConstruction* construction) {
  return create(construction, [](AttributeReader* reader, Attributes* attributes) {
    attributes->process_set_id = reader->integer("process_set_id");
  });
}

void output_integer(TF_OpKernelContext* context, const Status& status, int32_t value) {
  TfStatus result(status);
  if (status.ok()) {
    Tensor output(TF_AllocateOutput(context, 0, static_cast<TF_DataType>(DataType::kInt32), nullptr, 0, sizeof value,
                                    result.get()));
    if (result.ok()) *static_cast<int32_t*>(TF_TensorData(output.get())) = value;
  }
  if (!result.ok()) TF_OpKernelContext_Failure(context, result.get());
}

template <typename Value>
void identity(TF_OpKernelContext* context, const Value& value) {
  auto runtime = Runtime::current();
  output_integer(context, runtime ? Status() : not_initialized(), runtime ? value(*runtime) : 0);
}

void rank(void*, TF_OpKernelContext* context) {
  identity(context, [](const Runtime& runtime) { return runtime.config().rank; });
}

void local_rank(void*, TF_OpKernelContext* context) {
  identity(context, [](const Runtime& runtime) { return runtime.config().local_rank; });
}

void local_size(void*, TF_OpKernelContext* context) {
  identity(context, [](const Runtime& runtime) { return runtime.config().local_size; });
}

void size(void* kernel, TF_OpKernelContext* context) {
  auto runtime = Runtime::current();
  if (!runtime) return output_integer(context, not_initialized(), 0);
  const int id = static_cast<int>(static_cast<Attributes*>(kernel)->process_set_id);
  const ProcessSetPointer set = runtime->engine().process_sets().find(id);
  const Status status =
      set ? Status() : Status::invalid_argument("process set " + std::to_string(id) + " does not exist.");
  output_integer(context, status, set ? set->size() : 0);
}

// Horovod's numbers: 1 and 0, −1 before init, −3 for an unknown set.
void included(void* kernel, TF_OpKernelContext* context) {
  auto runtime = Runtime::current();
  if (!runtime) return output_integer(context, Status(), -1);
  const ProcessSetPointer set =
      runtime->engine().process_sets().find(static_cast<int>(static_cast<Attributes*>(kernel)->process_set_id));
  output_integer(context, Status(), set ? set->contains(runtime->config().rank) : -3);
}

// ---- Registration ----

void register_kernel(const char* op, TF_KernelBuilder* builder) {
  TfStatus status;
  TF_RegisterKernelBuilder(op, builder, status.get());
  if (!status.ok()) std::fprintf(stderr, "compat_hvd: kernel of %s: %s\n", op, status.message().c_str());
}

using Create = void* (*)(TF_OpKernelConstruction*);

void collective_kernel(const char* op, Create create_function, void (*compute)(void*, TF_OpKernelContext*, Done),
                       std::initializer_list<const char*> arguments) {
  register_kernel(op, TF_NewAsyncKernelBuilder(op, "CPU", create_function, compute, destroy));
  TF_KernelBuilder* gpu = TF_NewAsyncKernelBuilder(op, "GPU", create_function, compute, destroy);
  for (const char* argument : arguments) TF_KernelBuilder_HostMemory(gpu, argument);
  register_kernel(op, gpu);
}

void identity_kernel(const char* op, Create create_function, void (*compute)(void*, TF_OpKernelContext*),
                     const char* output) {
  register_kernel(op, TF_NewKernelBuilder(op, "CPU", create_function, compute, destroy));
  TF_KernelBuilder* gpu = TF_NewKernelBuilder(op, "GPU", create_function, compute, destroy);
  TF_KernelBuilder_HostMemory(gpu, output);
  register_kernel(op, gpu);
}

__attribute__((constructor)) void register_all() {
  collective_kernel("HorovodAllreduce", create_allreduce, allreduce, {"tensor", "sum"});
  collective_kernel("HorovodAllgather", create_allgather, allgather, {"tensor", "output"});
  collective_kernel("HorovodBroadcast", create_broadcast, broadcast, {"tensor", "output"});
  collective_kernel("HorovodBarrier", create_barrier, barrier, {});
  identity_kernel("HorovodSize", create_identity_of_set, size, "size");
  identity_kernel("HorovodLocalSize", create_identity, local_size, "local_size");
  identity_kernel("HorovodRank", create_identity, rank, "rank");
  identity_kernel("HorovodLocalRank", create_identity, local_rank, "local_rank");
  identity_kernel("HorovodProcessSetIncluded", create_identity_of_set, included, "included");
}

}  // namespace
}  // namespace compat_hvd

// The kernels. Each is registered for GPU as well, with all arguments in host memory, so that TensorFlow stages the
// copies.
#include <cstdio>
#include <initializer_list>

#include "../runtime.h"
#include "adapter.h"

namespace compat_hvd {
namespace {

using Done = TF_AsyncOpKernelDoneCallback*;

void read_common(AttributeReader* reader, Attributes* attributes) {
  attributes->process_set_id = reader->integer("process_set_id");
  attributes->tensor_name = reader->text("tensor_name");
}

void read_named(AttributeReader* reader, Attributes* attributes) {
  read_common(reader, attributes);
  attributes->ignore_name_scope = reader->boolean("ignore_name_scope");
}

void destroy(void* attributes) { delete static_cast<Attributes*>(attributes); }

void read_reduction(AttributeReader* reader, Attributes* attributes) {
  read_named(reader, attributes);
  attributes->reduce_op = reader->integer("reduce_op");
  attributes->prescale = reader->factor("prescale_factor", "prescale_bits");
  attributes->postscale = reader->factor("postscale_factor", "postscale_bits");
}

void read_broadcast(AttributeReader* reader, Attributes* attributes) {
  read_named(reader, attributes);
  attributes->root_rank = reader->integer("root_rank");
}

template <void (*read)(AttributeReader*, Attributes*)>
void read_group(AttributeReader* reader, Attributes* attributes) {
  read(reader, attributes);
  attributes->grouped = true;
  attributes->num_tensors = reader->integer("num_tensors");
}

template <void (*read)(AttributeReader*, Attributes*)>
void* create(TF_OpKernelConstruction* construction) {
  auto* attributes = new Attributes;
  AttributeReader reader(construction);
  read(&reader, attributes);
  return attributes;
}

// ---- Collectives ----

// One or, with num_tensors, several tensors. `in_place` tells that outputs have the shapes of the inputs.
template <Collective collective, bool in_place>
void run_tensors(void* kernel, TF_OpKernelContext* context, Done done) {
  const auto& attributes = *static_cast<Attributes*>(kernel);
  const int tensors = static_cast<int>(attributes.num_tensors);
  auto run = std::make_shared<KernelRun>(context, done, tensors);
  std::vector<std::unique_ptr<Entry>> entries;
  for (int i = 0; i < tensors; ++i) {
    entries.push_back(run->entry(attributes, collective, i));
    if (in_place) {
      run->add_tensors(entries.back().get(), i);
    } else {
      run->add_input(entries.back().get(), i);
    }
  }
  run->submit(std::move(entries));
}

void run_alltoall(void* kernel, TF_OpKernelContext* context, Done done) {
  auto run = std::make_shared<KernelRun>(context, done);
  auto entry = run->entry(*static_cast<Attributes*>(kernel), Collective::kAlltoall);
  run->add_input(entry.get());
  run->read_sizes(entry.get(), 1);
  run->on_results([run = run.get()](const std::vector<int64_t>& rows) { run->output_integers(1, rows, false); });
  run->submit(std::move(entry));
}

void run_barrier(void* kernel, TF_OpKernelContext* context, Done done) {
  auto run = std::make_shared<KernelRun>(context, done);
  run->submit(run->entry(*static_cast<Attributes*>(kernel), Collective::kBarrier));
}

void run_join(void* kernel, TF_OpKernelContext* context, Done done) {
  auto run = std::make_shared<KernelRun>(context, done);
  auto entry = run->entry(*static_cast<Attributes*>(kernel), Collective::kJoin);
  entry->request.name = "join.noname";
  run->on_results([run = run.get()](const std::vector<int64_t>& last) { run->output_integers(0, last, true); });
  run->submit(std::move(entry));
}

void read_nothing(AttributeReader*, Attributes*) {}

// Reached only by a node that was not replaced on import.
void run_in_place(void*, TF_OpKernelContext* context) {
  const TF_StringView node = TF_GetOpKernelName(context);
  TfStatus failure(Status::failed_precondition(
      "'" + std::string(node.data, node.len) +
      "' broadcasts variables in place, which TensorFlow's C interface does not allow. Import its graph after 'import "
      "compat_hvd.tensorflow' so that it is replaced, or run hvd.broadcast_global_variables(root_rank) instead."));
  TF_OpKernelContext_Failure(context, failure.get());
}

// ---- Identity ----

void read_set(AttributeReader* reader, Attributes* attributes) {
  attributes->process_set_id = reader->integer("process_set_id");
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

void blocking_kernel(const char* op, Create create_function, void (*compute)(void*, TF_OpKernelContext*),
                     std::initializer_list<const char*> arguments) {
  register_kernel(op, TF_NewKernelBuilder(op, "CPU", create_function, compute, destroy));
  TF_KernelBuilder* gpu = TF_NewKernelBuilder(op, "GPU", create_function, compute, destroy);
  for (const char* argument : arguments) TF_KernelBuilder_HostMemory(gpu, argument);
  register_kernel(op, gpu);
}

__attribute__((constructor)) void register_all() {
  using C = Collective;
  collective_kernel("HorovodAllreduce", create<read_reduction>, run_tensors<C::kAllreduce, true>, {"tensor", "sum"});
  collective_kernel("HorovodGroupedAllreduce", create<read_group<read_reduction>>, run_tensors<C::kAllreduce, true>,
                    {"tensors", "sum"});
  collective_kernel("HorovodAllgather", create<read_named>, run_tensors<C::kAllgather, false>, {"tensor", "output"});
  collective_kernel("HorovodGroupedAllgather", create<read_group<read_named>>, run_tensors<C::kAllgather, false>,
                    {"tensors", "outputs"});
  collective_kernel("HorovodReducescatter", create<read_reduction>, run_tensors<C::kReducescatter, false>,
                    {"tensor", "output"});
  collective_kernel("HorovodGroupedReducescatter", create<read_group<read_reduction>>,
                    run_tensors<C::kReducescatter, false>, {"tensors", "outputs"});
  collective_kernel("CompatHvdGroupedAllreduce", create<read_group<read_reduction>>, run_tensors<C::kAllreduce, true>,
                    {"tensors", "sum"});
  collective_kernel("CompatHvdGroupedAllgather", create<read_group<read_named>>, run_tensors<C::kAllgather, false>,
                    {"tensors", "outputs"});
  collective_kernel("CompatHvdGroupedReducescatter", create<read_group<read_reduction>>,
                    run_tensors<C::kReducescatter, false>, {"tensors", "outputs"});
  collective_kernel("HorovodBroadcast", create<read_broadcast>, run_tensors<C::kBroadcast, true>, {"tensor", "output"});
  collective_kernel("HorovodAlltoall", create<read_named>, run_alltoall,
                    {"tensor", "splits", "output", "received_splits"});
  blocking_kernel("HorovodBroadcastInplace", create<read_nothing>, run_in_place, {});
  blocking_kernel("HorovodBroadcastInplaceResource", create<read_nothing>, run_in_place, {"resources"});
  collective_kernel("HorovodBarrier", create<read_common>, run_barrier, {});
  collective_kernel("HorovodJoin", create<read_nothing>, run_join, {"output"});
  blocking_kernel("HorovodSize", create<read_set>, size, {"size"});
  blocking_kernel("HorovodLocalSize", create<read_nothing>, local_size, {"local_size"});
  blocking_kernel("HorovodRank", create<read_nothing>, rank, {"rank"});
  blocking_kernel("HorovodLocalRank", create<read_nothing>, local_rank, {"local_rank"});
  blocking_kernel("HorovodProcessSetIncluded", create<read_set>, included, {"included"});
}

}  // namespace
}  // namespace compat_hvd

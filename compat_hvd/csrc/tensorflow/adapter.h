// Between TensorFlow's C API and the engine: scoped handles, attributes, and the completion of an asynchronous kernel.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "../entry.h"
#include "c_api_decls.h"

namespace compat_hvd {

struct TensorDeleter {
  void operator()(TF_Tensor* tensor) const { TF_DeleteTensor(tensor); }
};
using Tensor = std::unique_ptr<TF_Tensor, TensorDeleter>;

class TfStatus {
 public:
  TfStatus() : status_(TF_NewStatus()) {}
  explicit TfStatus(const Status& status) : TfStatus() {
    TF_SetStatus(status_, static_cast<TF_Code>(status.code), status.message.c_str());
  }
  ~TfStatus() { TF_DeleteStatus(status_); }
  TfStatus(const TfStatus&) = delete;
  TF_Status* get() { return status_; }
  bool ok() const { return TF_GetCode(status_) == 0; }
  std::string message() const { return TF_Message(status_); }

 private:
  TF_Status* status_;
};

// What a kernel reads from its node when it is made.
struct Attributes {
  int64_t reduce_op = 1, root_rank = -1, process_set_id = 0, num_tensors = 1;
  double prescale = 1.0, postscale = 1.0;
  bool ignore_name_scope = false, grouped = false;
  std::string tensor_name;
};

class AttributeReader {
 public:
  explicit AttributeReader(TF_OpKernelConstruction* construction) : construction_(construction) {}
  int64_t integer(const char* name);
  bool boolean(const char* name);
  std::string text(const char* name);
  // A factor: the exact double in `bits` unless that is 0, else the attribute of type float.
  double factor(const char* name, const char* bits);

 private:
  void check(TfStatus* status);
  TF_OpKernelConstruction* construction_;
};

// One run of an asynchronous kernel, of one tensor or of a group of them. It keeps what the run holds until the last
// entry is done; the first error by position is that of the run.
class KernelRun : public std::enable_shared_from_this<KernelRun> {
 public:
  using Results = std::function<void(const std::vector<int64_t>&)>;

  // Takes `done` over: it points at a std::function on the caller's stack, which is gone when the kernel function
  // returns.
  KernelRun(TF_OpKernelContext* context, TF_AsyncOpKernelDoneCallback* done, int tensors = 1)
      : context_(context),
        done_(std::move(*reinterpret_cast<std::function<void()>*>(done))),
        tensors_(tensors),
        inputs_(tensors),
        outputs_(tensors),
        statuses_(tensors),
        unfinished_(tensors) {}

  // The entry of the tensor at `position`, without a tensor. A fault becomes the entry's error, so that the other ranks
  // learn of it too.
  std::unique_ptr<Entry> entry(const Attributes& attributes, Collective collective, int position = 0) const;
  // Adds the input with its dtype and shape, and an output of the same shape.
  void add_tensors(Entry* entry, int position = 0);
  // Adds the input; the output is allocated when its first dimension is known.
  void add_input(Entry* entry, int position = 0);
  // Reads a second input, a list of int32.
  void read_sizes(Entry* entry, int input);
  // Called with the entry's results when it has ended well.
  void on_results(Results results) { results_ = std::move(results); }
  void output_integers(int output, const std::vector<int64_t>& values, bool scalar);
  // Submits the entries, one for each tensor, to the engine of this process.
  void submit(std::vector<std::unique_ptr<Entry>> entries);
  void submit(std::unique_ptr<Entry> entry);

 private:
  std::string name(const Attributes& attributes, int position) const;
  void take_input(Entry* entry, int position);
  char* allocate(int position, int64_t first_dimension, const Request& request);
  void complete(int position, const Status& status, const std::vector<int64_t>& results);
  void finish(const Status& status);

  TF_OpKernelContext* context_;
  std::function<void()> done_;
  int tensors_;
  std::vector<Tensor> inputs_, outputs_;
  std::vector<Status> statuses_;
  std::atomic<int> unfinished_;
  Results results_;
};

Status not_initialized();

}  // namespace compat_hvd

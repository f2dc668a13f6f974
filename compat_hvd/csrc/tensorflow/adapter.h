// Between TensorFlow's C API and the engine: scoped handles, attributes, and the completion of an asynchronous kernel.
#pragma once

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
  int64_t reduce_op = 1, root_rank = -1, process_set_id = 0;
  double prescale = 1.0, postscale = 1.0;
  bool ignore_name_scope = false;
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

// One run of an asynchronous kernel. `finish` must be called exactly once; the object keeps what the run holds until
// then.
class KernelRun : public std::enable_shared_from_this<KernelRun> {
 public:
  // Takes `done` over: it points at a std::function on the caller's stack, which is gone when the kernel function
  // returns.
  KernelRun(TF_OpKernelContext* context, TF_AsyncOpKernelDoneCallback* done)
      : context_(context), done_(std::move(*reinterpret_cast<std::function<void()>*>(done))) {}

  // Fills in what identifies the entry.
  void describe(const Attributes& attributes, Entry* entry) const;
  // Also fills in dtype and shape, takes the input and, with `forward`, an output of the same shape. False when that
  // failed: the run is finished then.
  bool begin(const Attributes& attributes, bool forward, Entry* entry);
  // An entry whose output is allocated when its first dimension is known.
  char* allocate(int64_t first_dimension, const Request& request);
  void finish(const Status& status);
  // Submits the entry to the engine of this process.
  void submit(std::unique_ptr<Entry> entry);

 private:
  std::string name(const Attributes& attributes) const;

  TF_OpKernelContext* context_;
  std::function<void()> done_;
  Tensor input_, output_;
};

Status not_initialized();

}  // namespace compat_hvd

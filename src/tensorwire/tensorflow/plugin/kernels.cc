// SPDX-License-Identifier: Apache-2.0
#define EIGEN_USE_THREADS

#include "kernels.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "allocator.h"
#include "core.h"
#include "in_place.h"
#include "tensorflow/core/framework/kernel_def_builder.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/types.h"
#include "tensorflow/core/kernels/assign_op.h"
#include "tensorflow/core/kernels/inplace_ops_functor.h"

namespace tensorwire {

namespace tf = ::tensorflow;

namespace {

// Of TensorFlow's operations only Assign and TemporaryVariable give a reference variable memory.
class Assign final : public tf::AssignOp {
 public:
  using AssignOp::AssignOp;

  void Compute(tf::OpKernelContext* context) override {
    // With a second reference to it, the variable does not take the value's own buffer, which may
    // be on loan, or become so.
    const tf::Tensor value = context->input(1);
    const OutsideArena outside;
    AssignOp::Compute(context);
  }

  void Copy(tf::OpKernelContext* context, tf::Tensor* to, const tf::Tensor& from) override {
    const auto bytes = from.tensor_data();
    if (bytes.empty()) return;
    context->eigen_cpu_device().memcpy(const_cast<char*>(to->tensor_data().data()), bytes.data(),
                                       bytes.size());
  }
};

// A variable for one step. What it held is the output of its end: memory outside the arena still.
class Temporary final : public tf::ResourceBase {
 public:
  std::string DebugString() const override { return "a temporary variable"; }
  tf::mutex mutex;
  tf::Tensor value;
};

// Iterations of a loop that run side by side have one each.
std::string temporary_name(const std::string& name, const tf::FrameAndIter& at) {
  if (at.frame_id == tf::kIllegalFrameId || at.iter_id == tf::kIllegalIterId) return name;
  return absl::StrCat(name, "/frame:", at.frame_id, "/iter:", at.iter_id);
}

class TemporaryVariable final : public tf::OpKernel {
 public:
  explicit TemporaryVariable(tf::OpKernelConstruction* construction) : OpKernel(construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("shape", &shape_));
    OP_REQUIRES_OK(construction, construction->GetAttr("dtype", &dtype_));
    OP_REQUIRES_OK(construction, construction->GetAttr("var_name", &name_));
    if (name_.empty()) name_ = name();
  }

  void Compute(tf::OpKernelContext* context) override {
    tf::core::RefCountPtr<Temporary> made(new Temporary);
    {
      const OutsideArena outside;
      OP_REQUIRES_OK(context, context->allocate_temp(dtype_, shape_, &made->value));
    }
    // The container has a reference of its own, until the step or the variable ends.
    made->Ref();
    OP_REQUIRES_OK(context, context->step_container()->Create(
                                context->resource_manager(),
                                temporary_name(name_, context->frame_iter()), made.get()));
    context->set_output_ref(0, &made->mutex, &made->value);
  }

 private:
  tf::TensorShape shape_;
  tf::DataType dtype_;
  std::string name_;
};

class DestroyTemporaryVariable final : public tf::OpKernel {
 public:
  explicit DestroyTemporaryVariable(tf::OpKernelConstruction* construction)
      : OpKernel(construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("var_name", &name_));
    OP_REQUIRES(construction, !name_.empty(),
                absl::InvalidArgumentError("Missing var_name attribute"));
  }

  void Compute(tf::OpKernelContext* context) override {
    context->set_output(0, context->mutable_input(0, false));
    OP_REQUIRES_OK(context,
                   context->step_container()->Delete<Temporary>(
                       context->resource_manager(), temporary_name(name_, context->frame_iter())));
  }

 private:
  std::string name_;
};

// The output is the input, written to at the rows `i`.
template <tf::functor::InplaceOpType Kind>
class InPlace final : public tf::OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(tf::OpKernelContext* context) override {
    const tf::Tensor& x = context->input(0);
    const tf::Tensor& i = context->input(1);
    const tf::Tensor& v = context->input(2);
    OP_REQUIRES(
        context, tf::TensorShapeUtils::IsVector(i.shape()),
        absl::InvalidArgumentError(absl::StrCat("i must be a vector. ", i.shape().DebugString())));
    bool rows = x.dims() == v.dims() && v.dims() > 0 && i.dim_size(0) == v.dim_size(0);
    for (int at = 1; rows && at < x.dims(); ++at) rows = x.dim_size(at) == v.dim_size(at);
    OP_REQUIRES(context, rows,
                absl::InvalidArgumentError(absl::StrCat(
                    "v must have a row of x for each element of i: x ", x.shape().DebugString(),
                    ", i ", i.shape().DebugString(), ", v ", v.shape().DebugString())));
    tf::Tensor y = x;
    if (x.NumElements() > 0 && v.NumElements() > 0) {
      // What was lent before there was this kernel may have readers yet.
      if (Loan::any() && tf::DataTypeCanUseMemcpy(x.dtype()) &&
          core().arena_holds(x.data(), x.TotalBytes())) {
        const OutsideArena outside;
        OP_REQUIRES_OK(context, context->allocate_temp(x.dtype(), x.shape(), &y));
        core().copy(y.data(), x.data(), x.TotalBytes());
      }
      OP_REQUIRES_OK(
          context,
          tf::functor::DoInplace(context->eigen_device<Eigen::ThreadPoolDevice>(), Kind, i, v, &y));
    }
    context->set_output(0, y);
  }

 private:
  const InPlaceWriter writer_;
};

template <class Kernel>
tf::OpKernel* make(tf::OpKernelConstruction* construction) {
  return new Kernel(construction);
}

// Of kernels for the same operation TensorFlow takes the one of the highest priority.
template <class Kernel>
void add(tf::KernelDefBuilder& definition, const char* name) {
  tf::kernel_factory::OpKernelRegistrar(definition.Device(tf::DEVICE_CPU).Priority(1).Build(), name,
                                        make<Kernel>);
}

template <class Kernel>
void add(const char* name) {
  tf::KernelDefBuilder definition(name);
  add<Kernel>(definition, name);
}

}  // namespace

void register_kernels() {
  std::vector<tf::DataType> copyable;
  for (int type = 1; type < tf::kDataTypeRefOffset; ++type) {
    const auto each = static_cast<tf::DataType>(type);
    if (tf::DataType_IsValid(type) && tf::DataTypeCanUseMemcpy(each)) copyable.push_back(each);
  }
  // Strings and the like are serialised when they are sent.
  tf::KernelDefBuilder assign("Assign");
  add<Assign>(assign.TypeConstraint("T", copyable), "Assign");
  add<TemporaryVariable>("TemporaryVariable");
  add<DestroyTemporaryVariable>("DestroyTemporaryVariable");
  add<InPlace<tf::functor::I_UPDATE>>("InplaceUpdate");
  add<InPlace<tf::functor::I_ADD>>("InplaceAdd");
  add<InPlace<tf::functor::I_SUB>>("InplaceSub");
}

}  // namespace tensorwire

// SPDX-License-Identifier: Apache-2.0
#include "sent_tensor.h"

#include "allocator.h"
#include "settings.h"
#include "statistics.h"
#include "traced.h"
#include "transports.h"

namespace tensorwire {

namespace tf = ::tensorflow;

namespace {

bool in_arena(const tf::Tensor& tensor) {
  return core().arena_holds(tensor.tensor_data().data(), tensor.TotalBytes());
}

// `by_lending`: the link lends. `written`: TensorFlow may write to it whoever else refers to it.
void count_sent(size_t size, bool by_lending, bool lent, bool written) {
  Statistics& to = statistics();
  const auto add = [size](Counter& tensors, Counter& bytes) {
    count(tensors);
    count(bytes, size);
  };
  if (lent) return add(to.served_lent, to.served_lent_bytes);
  if (size < kSmall) return add(to.served_small, to.served_small_bytes);
  if (!by_lending) return add(to.served_pushed, to.served_pushed_bytes);
  add(to.served_copied, to.served_copied_bytes);
  if (written) add(to.served_mutable, to.served_mutable_bytes);
}

}  // namespace

bool lends(const tw_server_call* call) {
  const Transport* const by = find_transport(core().call_transport(call));
  return by && by->lends;
}

bool SentTensor::copies(const tf::Tensor& tensor, bool by_lending) {
  return by_lending && (InPlaceWriter::any() || !in_arena(tensor));
}

bool SentTensor::take(const tf::Tensor& tensor, bool by_lending) {
  tensor_ = tensor;
  const bool lendable = by_lending && in_arena(tensor);
  const bool lending = lendable && loan_.begin();
  if (lendable && !lending) {
    tensor_ = tf::Tensor(arena_allocator(), tensor.dtype(), tensor.shape());
    if (!tensor_.IsInitialized()) return false;
    core().copy(tensor_.data(), tensor.data(), tensor.TotalBytes());
  }
  count_sent(tensor_.TotalBytes(), by_lending, lending, lendable || in_reference_block(tensor_));
  if (settings().traced) trace_sent(tensor);
  return true;
}

tw_segment SentTensor::bytes() const {
  const auto data = tensor_.tensor_data();
  return {data.data(), data.size()};
}

void count_sent_small(const tf::Tensor& tensor) {
  count_sent(tensor.TotalBytes(), false, false, false);
  if (settings().traced) trace_sent(tensor);
}

void count_sent_buffer(const tf::Tensor& tensor, bool by_lending) {
  count_sent(tensor.TotalBytes(), by_lending, by_lending && in_arena(tensor), false);
  if (settings().traced) trace_sent(tensor);
}

}  // namespace tensorwire

// SPDX-License-Identifier: Apache-2.0
#include "served.h"

#include <string>

#include "completion.h"
#include "data_server.h"
#include "request.h"
#include "sent_tensor.h"
#include "statistics.h"
#include "tensorflow/core/framework/tensor.pb.h"
#include "wire.h"

namespace tensorwire {

namespace tf = ::tensorflow;

namespace {

// What is lent to one answer; the last of its segments to be let go of destroys it. A tensor's
// reference goes on the thread that hears of it, so that a variable's next update need not copy.
struct Lent {
  explicit Lent(int segments) : segments(segments) {}
  std::atomic<int> segments;
  std::string head;
  std::string serialized;
  SentTensor tensor;

  static void release(void* context) {
    auto* const lent = static_cast<Lent*>(context);
    if (lent->segments.fetch_sub(1) == 1) delete lent;
  }
};

std::atomic<size_t> g_waiting{0};

}  // namespace

Served::Served(DataServer* server, tw_server_call* call, int64_t step)
    : server_(server), call_(call), step_(step) {
  g_waiting.fetch_add(1, std::memory_order_relaxed);
}

Served::~Served() { core().call_release(call_); }

bool Served::copies(const tf::Tensor& tensor) const {
  return tf::DataTypeCanUseMemcpy(tensor.dtype()) && SentTensor::copies(tensor, lends(call_));
}

void Served::settle() {
  if (settled_.exchange(true)) return;
  g_waiting.fetch_sub(1, std::memory_order_relaxed);
  server_->forget(id_);
}

// That the call has ended meanwhile is no news to whoever answers.
void Served::finish(const absl::Status& status, tw_payload payload) {
  answered_.store(true);
  settle();
  const StatusPairs pairs(status);
  const std::string details =
      wire::encode_details({status.message().data(), status.message().size()});
  core().call_finish(call_, static_cast<int>(status.code()), details.data(), details.size(),
                     pairs.get(), payload, nullptr, nullptr);
}

void Served::answer(const absl::Status& status) { finish(status, kNoPayload); }

void Served::answer(const tf::Tensor& tensor, bool dead) {
  auto* const lent = new Lent(2);
  TensorHead head;
  head.dead = dead;
  tw_segment body;
  if (tf::DataTypeCanUseMemcpy(tensor.dtype())) {
    head.dtype = tensor.dtype();
    head.shape = tensor.shape();
    if (!lent->tensor.take(tensor, lends(call_))) {
      delete lent;
      return answer(absl::ResourceExhaustedError("no memory for a copy of a tensor to send"));
    }
    body = lent->tensor.bytes();
  } else {
    // It was taken from its rendezvous, so it has to travel this way, whatever it is.
    head.form = wire::Form::kProto;
    tf::TensorProto proto;
    tensor.AsProtoTensorContent(&proto);
    if (!proto.SerializeToString(&lent->serialized)) {
      delete lent;
      return answer(absl::InvalidArgumentError("a tensor of 2 GiB or more cannot be serialised"));
    }
    body = {lent->serialized.data(), lent->serialized.size()};
    count(statistics().served_serialized);
  }
  lent->head = write_head(head);
  const tw_segment segments[]{{lent->head.data(), lent->head.size()}, body};
  const tw_owner owners[]{{Lent::release, lent}, {Lent::release, lent}};
  finish(absl::OkStatus(), {segments, 2, owners});
}

void Served::answer_pushed() {
  auto* const lent = new Lent(1);
  TensorHead head;
  head.form = wire::Form::kPushed;
  lent->head = write_head(head);
  const tw_segment segments[]{{lent->head.data(), lent->head.size()}, {lent->head.data(), 0}};
  const tw_owner owners[]{{Lent::release, lent}, {[](void*) {}, nullptr}};
  finish(absl::OkStatus(), {segments, 2, owners});
}

void Served::answer(tf::BufRendezvous::Hook* hook) {
  const auto data = hook->prod_value->tensor_data();
  const tw_segment segment{data.data(), data.size()};
  // Its receiver keeps a copy.
  count_sent_buffer(*hook->prod_value, lends(call_));
  // The producer goes on with its algorithm there and then, which is nothing for a core thread.
  const tw_owner owner{
      [](void* context) {
        run_soon([context] {
          tf::BufRendezvous::DoneWithHook(static_cast<tf::BufRendezvous::Hook*>(context));
        });
      },
      hook};
  finish(absl::OkStatus(), {&segment, 1, &owner});
}

size_t requests_waiting() { return g_waiting.load(std::memory_order_relaxed); }

}  // namespace tensorwire

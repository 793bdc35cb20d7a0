// SPDX-License-Identifier: Apache-2.0
#include "served.h"

#include <string>

#include "allocator.h"
#include "completion.h"
#include "data_server.h"
#include "in_place.h"
#include "request.h"
#include "settings.h"
#include "statistics.h"
#include "tensorflow/core/framework/tensor.pb.h"
#include "traced.h"
#include "transports.h"

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
  tf::Tensor tensor;
  Loan loan;

  static void release(void* context) {
    auto* const lent = static_cast<Lent*>(context);
    if (lent->segments.fetch_sub(1) == 1) delete lent;
  }
};

std::atomic<size_t> g_waiting{0};

// Whether the link that a call came on lends what lies in the arena.
bool lends(tw_server_call* call) {
  const Transport* const by = find_transport(core().call_transport(call));
  return by && by->lends;
}

bool in_arena(const tf::Tensor& tensor) {
  return core().arena_holds(tensor.tensor_data().data(), tensor.TotalBytes());
}

// `by_lending`: the link lends. `written`: TensorFlow may write to it whoever else refers to it.
void count_served(size_t size, bool by_lending, bool lent, bool written) {
  Statistics& to = statistics();
  const auto add = [size](std::atomic<uint64_t>& tensors, std::atomic<uint64_t>& bytes) {
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

Served::Served(DataServer* server, tw_server_call* call, int64_t step)
    : server_(server), call_(call), step_(step) {
  g_waiting.fetch_add(1, std::memory_order_relaxed);
}

Served::~Served() { core().call_release(call_); }

bool Served::copies(const tf::Tensor& tensor) const {
  return tf::DataTypeCanUseMemcpy(tensor.dtype()) && lends(call_) &&
         (InPlaceWriter::any() || !in_arena(tensor));
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
  // Details are cut where the runtime would refuse them.
  const std::string details(status.message().substr(0, 4000));
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
    lent->tensor = tensor;
    const bool by_lending = lends(call_), lendable = by_lending && in_arena(tensor);
    const bool lending = lendable && lent->loan.begin();
    if (lendable && !lending) {
      lent->tensor = tf::Tensor(arena_allocator(), tensor.dtype(), tensor.shape());
      if (!lent->tensor.IsInitialized()) {
        delete lent;
        return answer(absl::ResourceExhaustedError("no memory for a copy of a tensor to send"));
      }
      core().copy(lent->tensor.data(), tensor.data(), tensor.TotalBytes());
    }
    const auto data = lent->tensor.tensor_data();
    body = {data.data(), data.size()};
    count_served(body.size, by_lending, lending, lendable || in_reference_block(lent->tensor));
    if (settings().traced) trace_sent(tensor);
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

void Served::answer(tf::BufRendezvous::Hook* hook) {
  const auto data = hook->prod_value->tensor_data();
  const tw_segment segment{data.data(), data.size()};
  const bool by_lending = lends(call_);
  // Its receiver keeps a copy.
  count_served(segment.size, by_lending, by_lending && in_arena(*hook->prod_value), false);
  if (settings().traced) trace_sent(*hook->prod_value);
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

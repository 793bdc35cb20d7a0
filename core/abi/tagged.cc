// SPDX-License-Identifier: Apache-2.0
// The C ABI: tagged messages at either end of a link.
#include "abi/abi.h"
#include "tagged/port.h"

using namespace tw;
using namespace tw::abi;

struct tw_receive final : RefCounted {
  explicit tw_receive(Ref<TaggedPort> on) : port(std::move(on)) {}
  const Ref<TaggedPort> port;
  Ref<TaggedReceive> receive;
};

static_assert(TW_MAX_TAG == TaggedPort::kMaxTag);

int tw_peer_send(tw_peer* peer, uint64_t tag, tw_payload payload, const tw_wait* wait,
                 tw_status* status) try {
  const Wait until = wait_of(wait);
  Outbox outbox(payload);
  if (of(peer)->link().inherited()) return inherited(status, "link");
  if (payload.keeper)
    return report(status, Code::kInvalidArgument, "a tagged message is kept by its owners only");
  return report(status, of(peer)->tagged().send(tag, outbox.segments(), until));
} catch (const std::bad_alloc&) {
  return no_memory(status);
}

int tw_peer_receive(tw_peer* peer, uint64_t tag, void* into, size_t size, const tw_owner* owner,
                    tw_events* queue, uint64_t token, tw_receive** out, tw_status* status) try {
  Ref<PostedBuffer> memory;
  if (into) {
    if (!owner || !owner->release)
      return report(status, Code::kInvalidArgument, "memory to receive into needs an owner");
    memory = make_ref<PostedBuffer>(static_cast<std::byte*>(into), size, lent_by(*owner));
  }
  if (of(peer)->link().inherited()) return inherited(status, "link");
  Notice told = notice_of(queue, token);
  auto handle = make_ref<tw_receive>(Ref<TaggedPort>::share(&of(peer)->tagged()));
  auto begun = of(peer)->tagged().receive(tag, std::move(memory), std::move(told));
  if (!begun) return report(status, begun.status());
  handle->receive = std::move(*begun);
  *out = handle.leak();
  return TW_OK;
} catch (const std::bad_alloc&) {
  return no_memory(status);
}

int tw_receive_wait(tw_receive* receive, const tw_wait* wait, tw_message** message,
                    tw_status* status) try {
  *message = nullptr;
  if (receive->port->link().inherited()) return inherited(status, "receive");
  const Ended ended = receive->port->wait(*receive->receive, wait_of(wait));
  if (ended != Ended::kDone) return report(status, ended, "the message has not come yet");
  if (const Status& how = receive->receive->status(); !how.ok()) return report(status, how);
  auto out = make_ref<tw_message>();
  if (receive->receive->take(out->message)) *message = out.leak();
  return TW_OK;
} catch (const std::bad_alloc&) {
  return no_memory(status);
}
int tw_receive_ended(const tw_receive* receive) {
  return receive->receive->ended() || receive->port->link().inherited();
}
int tw_receive_cancel(tw_receive* receive) try {
  return !receive->port->link().inherited() && receive->port->cancel(*receive->receive);
} catch (const std::bad_alloc&) {
  return none(0);
}
void tw_receive_release(tw_receive* receive) {
  if (!receive->port->link().inherited()) receive->release();
}

// SPDX-License-Identifier: Apache-2.0
// The C ABI: peers, and calls that need no handle.
#include "abi/abi.h"

using namespace tw;
using namespace tw::abi;

tw_peer* tw_call_process(const tw_call* call) {
  return handle(Ref<CallPort>::share(&of(call)->port()));
}
tw_peer* tw_peer_share(tw_peer* peer) { return handle(Ref<CallPort>::share(of(peer))); }
void tw_peer_release(tw_peer* peer) {
  if (!of(peer)->link().inherited()) of(peer)->release();
}

const char* tw_peer_transport(const tw_peer* peer) { return of(peer)->link().transport(); }
const char* tw_peer_address(const tw_peer* peer) { return of(peer)->link().peer().address.c_str(); }
const char* tw_peer_caller(const tw_peer* peer) { return of(peer)->link().peer().caller.c_str(); }
const char* tw_peer_agent(const tw_peer* peer) { return of(peer)->link().peer().agent.c_str(); }
int32_t tw_peer_pid(const tw_peer* peer) { return of(peer)->link().peer().pid; }
int tw_peer_alive(const tw_peer* peer) {
  return of(peer)->link().alive() && !of(peer)->link().inherited();
}
void tw_peer_death(const tw_peer* peer, tw_status* why) try {
  if (of(peer)->link().inherited())
    inherited(why, "link");
  else
    report(why, of(peer)->link().death());
} catch (const std::bad_alloc&) {
  no_memory(why);
}
uint64_t tw_peer_trace(const tw_peer* peer, tw_visit_event visit, void* context) try {
  if (of(peer)->link().inherited()) return 0;
  const Trace::Record record = of(peer)->link().trace();
  visit_trace(record, visit, context);
  return record.total;
} catch (const std::bad_alloc&) {
  return none<uint64_t>();
}
void tw_peer_close(tw_peer* peer) {
  if (!of(peer)->link().inherited()) of(peer)->close();
}
int tw_peer_notify_gone(tw_peer* peer, tw_events* queue, uint64_t token) try {
  Ref<EventQueue> to = Ref<EventQueue>::share(of(queue));
  if (of(peer)->link().inherited())
    to->push(token);
  else
    of(peer)->notify_gone(std::move(to), token);
  return 1;
} catch (const std::bad_alloc&) {
  return none(0);
}

namespace {

Beginning beginning_of(std::string_view method, const Pairs& metadata, Outbox& outbox,
                       const tw_payload& payload, int flags) {
  return {method,
          metadata.entries(),
          payload.segments != nullptr,
          outbox.segments(),
          outbox.keeper(),
          (flags & TW_HALF_CLOSE) != 0,
          (flags & TW_UNTIL_READ) != 0,
          {}};
}

std::vector<Ref<PostedBuffer>> places_of(std::span<const tw_place> places) {
  std::vector<Ref<PostedBuffer>> buffers;
  buffers.reserve(places.size());
  for (const tw_place& place : places)
    buffers.push_back(
        place.data ? make_ref<PostedBuffer>(static_cast<std::byte*>(place.data), place.size, Hold{})
                   : nullptr);
  return buffers;
}

}  // namespace

int tw_peer_start(tw_peer* peer, const char* method, size_t method_size, tw_pairs metadata,
                  tw_payload payload, int flags, const tw_wait* wait, tw_client_call** out,
                  tw_status* status) try {
  const Wait until = wait_of(wait);
  Outbox outbox(payload);
  if (of(peer)->link().inherited()) return inherited(status, "link");
  const Pairs pairs(metadata);
  Ref<ClientCall> call;
  const auto begun = start(
      *of(peer), beginning_of({method, method_size}, pairs, outbox, payload, flags), until, call);
  const int result = report(status, begun);
  if (result == TW_OK) *out = handle(std::move(call));
  return result;
} catch (const std::bad_alloc&) {
  return no_memory(status);
}

int tw_peer_unary_into(tw_peer* peer, const char* method, size_t method_size, tw_pairs metadata,
                       tw_payload payload, const tw_place* places, size_t count,
                       const tw_wait* wait, tw_reply* reply, tw_status* status) try {
  const Wait until = wait_of(wait);
  Outbox outbox(payload);
  if (of(peer)->link().inherited()) return inherited(status, "link");
  const Pairs pairs(metadata);
  const auto wanted = places_of({places, count});
  Ref<ClientCall> call;
  Beginning beginning = beginning_of({method, method_size}, pairs, outbox, payload, TW_HALF_CLOSE);
  beginning.places = wanted;
  const auto done = unary(*of(peer), beginning, until, call);
  if (const int result = report(status, done); result != TW_OK) return result;
  reply->message = take(*call);
  reply->initial = handle(call->initial());
  const Outcome& outcome = call->outcome();
  reply->trailing = handle(outcome.trailing);
  if (outcome.code == Code::kOk && outcome.details.empty()) return TW_OK;
  const int code = report(status, outcome.code, outcome.details);
  if (status && status->details != outcome.details) reply->cut = handle(std::move(call));
  return code;
} catch (const std::bad_alloc&) {
  return no_memory(status);
}

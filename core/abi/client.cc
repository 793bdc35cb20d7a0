// SPDX-License-Identifier: Apache-2.0
// The C ABI: links, and calls that need no handle.
#include "abi/abi.h"

using namespace tw;
using namespace tw::abi;

int tw_connect(const tw_invitation* invitation, int64_t timeout_ns, tw_link** out,
               tw_status* status) try {
  auto runtime = Runtime::get();
  if (!runtime) return report(status, runtime.status());
  meet::Invitation in;
  in.address = invitation->address;
  std::memcpy(in.session.data(), invitation->session, in.session.size());
  in.secret = meet::Secret(
      std::span<const uint8_t, meet::Secret::kSize>(invitation->secret, meet::Secret::kSize));
  std::memcpy(in.instance.data(), invitation->instance, in.instance.size());
  auto hello = wire::decode_hello(
      {static_cast<const std::byte*>(invitation->hello), invitation->hello_size});
  if (!hello) return report(status, hello.status());
  in.hello = *hello;
  auto connected = meet::connect(**runtime, in, deadline_after(timeout_ns));
  if (!connected) return report(status, connected.status());
  const uint64_t limit = invitation->max_message < 0
                             ? (*runtime)->settings().max_message_bytes
                             : static_cast<uint64_t>(invitation->max_message);
  auto port = ClientPort::create(**runtime, std::move(connected->transport),
                                 std::move(connected->peer), limit);
  if (!port) return report(status, port.status());
  *out = reinterpret_cast<tw_link*>(port->leak());
  return TW_OK;
} catch (const std::bad_alloc&) {
  return no_memory(status);
}

const char* tw_link_transport(const tw_link* link) { return of(link)->link().transport(); }
const char* tw_link_peer(const tw_link* link) { return of(link)->link().peer().address.c_str(); }
int tw_link_alive(const tw_link* link) {
  return of(link)->link().alive() && !of(link)->link().inherited();
}
void tw_link_death(const tw_link* link, tw_status* why) try {
  if (of(link)->link().inherited())
    inherited(why, "link");
  else
    report(why, of(link)->link().death());
} catch (const std::bad_alloc&) {
  no_memory(why);
}
uint64_t tw_link_trace(const tw_link* link, tw_visit_event visit, void* context) try {
  if (of(link)->link().inherited()) return 0;
  const Trace::Record record = of(link)->link().trace();
  visit_trace(record, visit, context);
  return record.total;
} catch (const std::bad_alloc&) {
  return none<uint64_t>();
}
void tw_link_close(tw_link* link) {
  if (of(link)->link().inherited()) return;
  of(link)->link().surely(
      [&] { of(link)->link().close({Code::kCancelled, "the channel was closed"}); });
}
void tw_link_release(tw_link* link) {
  if (of(link)->link().inherited()) return;
  of(link)->link().surely([&] { of(link)->abandon(); });
  of(link)->release();
}

namespace {

Beginning beginning_of(std::string_view method, const Pairs& metadata, Outbox& outbox,
                       const tw_payload& payload, int flags) {
  return {
      method,          metadata.entries(),           payload.segments != nullptr, outbox.segments(),
      outbox.keeper(), (flags & TW_HALF_CLOSE) != 0, (flags & TW_UNTIL_READ) != 0};
}

}  // namespace

int tw_link_start(tw_link* link, const char* method, size_t method_size, tw_pairs metadata,
                  tw_payload payload, int flags, const tw_wait* wait, tw_client_call** out,
                  tw_status* status) try {
  const Wait until = wait_of(wait);
  Outbox outbox(payload);
  if (of(link)->link().inherited()) return inherited(status, "channel");
  const Pairs pairs(metadata);
  Ref<ClientCall> call;
  const auto begun = start(
      *of(link), beginning_of({method, method_size}, pairs, outbox, payload, flags), until, call);
  const int result = report(status, begun);
  if (result == TW_OK) *out = handle(std::move(call));
  return result;
} catch (const std::bad_alloc&) {
  return no_memory(status);
}

int tw_link_unary(tw_link* link, const char* method, size_t method_size, tw_pairs metadata,
                  tw_payload payload, const tw_wait* wait, tw_reply* reply, tw_status* status) try {
  const Wait until = wait_of(wait);
  Outbox outbox(payload);
  if (of(link)->link().inherited()) return inherited(status, "channel");
  const Pairs pairs(metadata);
  Ref<ClientCall> call;
  const auto done =
      unary(*of(link), beginning_of({method, method_size}, pairs, outbox, payload, TW_HALF_CLOSE),
            until, call);
  if (const int result = report(status, done); result != TW_OK) return result;
  reply->message = take(*call);
  reply->initial = handle(call->initial());
  const Outcome& outcome = call->outcome();
  reply->trailing = handle(outcome.trailing);
  if (outcome.code == Code::kOk && outcome.details.empty()) return TW_OK;
  return report(status, outcome.code, outcome.details);
} catch (const std::bad_alloc&) {
  return no_memory(status);
}

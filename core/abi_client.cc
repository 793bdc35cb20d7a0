// SPDX-License-Identifier: Apache-2.0
// The C ABI: links, and calls that need no handle.
#include <exception>

#include "abi.h"

using namespace tw;
using namespace tw::abi;

int tw_connect(const tw_invitation* invitation, int64_t timeout_ns, tw_link** out,
               tw_status* status) try {
  auto runtime = Runtime::get();
  if (!runtime) return report(status, runtime.status());
  link::Invitation in;
  in.address = invitation->address;
  std::memcpy(in.session.data(), invitation->session, in.session.size());
  in.secret = link::Secret(
      std::span<const uint8_t, link::Secret::kSize>(invitation->secret, link::Secret::kSize));
  std::memcpy(in.instance.data(), invitation->instance, in.instance.size());
  auto hello = wire::decode_hello(
      {static_cast<const std::byte*>(invitation->hello), invitation->hello_size});
  if (!hello) return report(status, hello.status());
  in.hello = *hello;
  auto connected = link::connect(**runtime, in, deadline_after(timeout_ns));
  if (!connected) return report(status, connected.status());
  const uint64_t limit = invitation->max_message < 0
                             ? (*runtime)->settings().max_message_bytes
                             : static_cast<uint64_t>(invitation->max_message);
  auto link = ClientLink::create(**runtime, std::move(connected->transport),
                                 std::move(connected->peer), limit);
  if (!link) return report(status, link.status());
  *out = reinterpret_cast<tw_link*>(link->leak());
  return TW_OK;
} catch (const std::bad_alloc&) {
  return no_memory(status);
}

const char* tw_link_transport(const tw_link* link) { return of(link)->transport(); }
const char* tw_link_peer(const tw_link* link) { return of(link)->peer().address.c_str(); }
int tw_link_alive(const tw_link* link) { return of(link)->alive() && !of(link)->inherited(); }
void tw_link_death(const tw_link* link, tw_status* why) try {
  if (of(link)->inherited())
    inherited(why, "link");
  else
    report(why, of(link)->death());
} catch (const std::bad_alloc&) {
  no_memory(why);
}
void tw_link_stats(tw_link* link, tw_visit_fact visit, void* context) try {
  visit_stats(*of(link), of(link)->stats(), visit, context);
} catch (const std::bad_alloc&) {
  const Shortage shortage;
}
uint64_t tw_link_trace(const tw_link* link, tw_visit_event visit, void* context) try {
  if (of(link)->inherited()) return 0;
  const Trace::Record record = of(link)->trace();
  visit_trace(record, visit, context);
  return record.total;
} catch (const std::bad_alloc&) {
  return none<uint64_t>();
}
void tw_link_close(tw_link* link) {
  if (of(link)->inherited()) return;
  of(link)->surely([&] { of(link)->close({Code::kCancelled, "the channel was closed"}); });
}
void tw_link_release(tw_link* link) {
  if (of(link)->inherited()) return;
  of(link)->surely([&] { of(link)->abandon(); });
  of(link)->release();
}

namespace {

// When memory runs out in the middle of a call: it ends, and the caller's memory is its own again.
class Abandoning {
 public:
  Abandoning(const Ref<ClientCall>& call, const Ref<Outgoing>& outgoing)
      : call_(call), outgoing_(outgoing) {}
  ~Abandoning() {
    if (!call_ || std::uncaught_exceptions() == unwinding_) return;
    const Shortage shortage;
    call_->cancel(Code::kResourceExhausted, {});
    (void)let_go(*call_, outgoing_);
  }

 private:
  const Ref<ClientCall>& call_;
  const Ref<Outgoing>& outgoing_;
  const int unwinding_ = std::uncaught_exceptions();
};

// Makes the call and sends its beginning.
int start(ClientLink& link, std::string_view method, tw_pairs metadata, Outbox& outbox,
          bool has_payload, int flags, bool driving, Nanos deadline, Ref<ClientCall>& call,
          Ref<Outgoing>& outgoing, tw_status* status) {
  if (link.inherited()) return inherited(status, "channel");
  auto made = link.new_call(deadline, (flags & TW_UNTIL_READ) != 0);
  if (!made) return report(status, made.status());
  call = std::move(*made);
  call->stage(outbox.segments());
  auto begun = call->begin(method, Pairs(metadata).entries(), outbox.segments(), has_payload,
                           (flags & TW_HALF_CLOSE) != 0, driving);
  if (!begun) {
    call->cancel(begun.status().code(), "");
    return report(status, begun.status());
  }
  outgoing = std::move(*begun);
  return TW_OK;
}

}  // namespace

int tw_link_start(tw_link* link, const char* method, size_t method_size, tw_pairs metadata,
                  tw_payload payload, int flags, const tw_wait* wait, tw_call** out,
                  tw_status* status) try {
  const Nanos deadline = deadline_of(wait);
  Outbox outbox(payload);
  Ref<ClientCall> call;
  Ref<Outgoing> outgoing;
  const Abandoning abandoning(call, outgoing);
  const int result =
      start(*of(link), {method, method_size}, metadata, outbox, payload.segments != nullptr, flags,
            false, deadline, call, outgoing, status);
  if (result != TW_OK) return result;
  if (payload.keeper) {
    if (Status left = call->see_off(outgoing, outbox.segments(), outbox.keeper()); !left.ok()) {
      call->cancel(left.code(), left.details());
      return report(status, left);
    }
  } else {
    switch (await_sent(*call, outgoing, wait, deadline)) {
      case Ended::kDone:
        break;
      case Ended::kTimeout:
        call->cancel(Code::kDeadlineExceeded, "Deadline Exceeded");
        break;
      case Ended::kInterrupted:
        call->cancel(Code::kCancelled, "interrupted");
        return TW_INTERRUPTED;
    }
  }
  if (Status watched = call->watch_deadline(); !watched.ok()) {
    call->cancel(watched.code(), watched.details());
    return report(status, watched);
  }
  *out = handle(std::move(call));
  return TW_OK;
} catch (const std::bad_alloc&) {
  return no_memory(status);
}

int tw_link_unary(tw_link* link, const char* method, size_t method_size, tw_pairs metadata,
                  tw_payload payload, const tw_wait* wait, tw_reply* reply, tw_status* status) try {
  const Nanos deadline = deadline_of(wait);
  Outbox outbox(payload);
  Ref<ClientCall> call;
  Ref<Outgoing> outgoing;
  const Abandoning abandoning(call, outgoing);
  const int result =
      start(*of(link), {method, method_size}, metadata, outbox, payload.segments != nullptr,
            TW_HALF_CLOSE, true, deadline, call, outgoing, status);
  if (result != TW_OK) return result;
  const Ended ended =
      wait_through(wait, deadline, [&](Nanos slice) { return call->wait_ended(slice); });
  if (ended == Ended::kInterrupted) call->cancel(Code::kCancelled, "interrupted");
  if (ended == Ended::kTimeout) call->cancel(Code::kDeadlineExceeded, "Deadline Exceeded");
  (void)let_go(*call, outgoing);
  if (ended == Ended::kInterrupted) return TW_INTERRUPTED;
  // Another thread may still be writing the outcome down.
  while (!call->ended()) (void)call->wait_ended(kForever);
  reply->message = take(*call);
  reply->initial = handle(call->initial());
  const Outcome& outcome = call->outcome();
  reply->trailing = handle(outcome.trailing);
  if (outcome.code == Code::kOk && outcome.details.empty()) return TW_OK;
  return report(status, outcome.code, outcome.details);
} catch (const std::bad_alloc&) {
  return no_memory(status);
}

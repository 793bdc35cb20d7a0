// SPDX-License-Identifier: Apache-2.0
#include "call/blocking.h"

#include <exception>
#include <optional>
#include <utility>

#include "base/shortage.h"
#include "call/trial.h"
#include "link/staging.h"

namespace tw {
namespace {

// A message of a stream up to this size may wait for company.
constexpr size_t kDeferBytes = 1024;

// Makes the caller's memory its own again, whatever became of the call. True when the message was
// given up, and the peer will not see it.
bool let_go(Call& call, const Ref<Outgoing>& outgoing) {
  return outgoing && outgoing->borrowed() && call.withdraw(outgoing);
}

// Until the caller's memory has been sent. Otherwise the peer will not see the message.
Ended await_sent(Call& call, const Ref<Outgoing>& outgoing, const Wait& wait) {
  if (!outgoing) return Ended::kDone;
  const Ended ended =
      wait_through(wait, [&](Nanos until) { return call.wait_sent(*outgoing, until); });
  return let_go(call, outgoing) ? ended : Ended::kDone;
}

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
  Abandoning(const Abandoning&) = delete;
  Abandoning& operator=(const Abandoning&) = delete;

 private:
  const Ref<ClientCall>& call_;
  const Ref<Outgoing>& outgoing_;
  const int unwinding_ = std::uncaught_exceptions();
};

// The places of a call are its caller's memory again, whatever became of the call.
class Withdrawing {
 public:
  explicit Withdrawing(std::span<const Ref<PostedBuffer>> places) : places_(places) {}
  ~Withdrawing() {
    for (const Ref<PostedBuffer>& place : places_)
      if (place) place->withdraw();
  }
  Withdrawing(const Withdrawing&) = delete;
  Withdrawing& operator=(const Withdrawing&) = delete;

 private:
  const std::span<const Ref<PostedBuffer>> places_;
};

// Makes the call and sends its beginning.
Status begin(CallPort& port, const Beginning& beginning, bool end, bool driving, Nanos deadline,
             Ref<ClientCall>& call, Ref<Outgoing>& outgoing) {
  auto made = port.new_call(deadline, beginning.until_read);
  if (!made) return made.status();
  call = std::move(*made);
  call->land(beginning.places);
  stage(port.link(), beginning.segments);
  auto begun = call->begin(beginning.method, beginning.metadata, beginning.segments,
                           beginning.payload, end, driving);
  if (!begun) {
    call->cancel(begun.status().code(), "");
    return begun.status();
  }
  outgoing = std::move(*begun);
  return {};
}

// False: interrupted.
Result<bool> in_time(Ended ended) {
  if (ended == Ended::kTimeout) return Status{Code::kDeadlineExceeded, kDeadlineDetails};
  return ended == Ended::kDone;
}

template <class Send>
Result<bool> send_in_stream(Call& call, std::span<OutSegment> segments, Wait wait, Send&& send) {
  wait.deadline = std::min(wait.deadline, call.deadline());
  size_t bytes = 0;
  for (const OutSegment& segment : segments) bytes += segment.size;
  std::optional<Result<Ref<Outgoing>>> sent;
  for (bool staged = false; !sent;) {
    if (!call.sendable()) {  // mostly it is, and then nobody needs to know what time it is
      auto done =
          in_time(wait_through(wait, [&](Nanos until) { return call.wait_sendable(until); }));
      if (!done || !*done) return done;
    }
    if (call.over()) return Status{Code::kCancelled, "the call has ended"};
    if (!std::exchange(staged, true)) stage(call.link(), segments);
    const MutexLock turn(call.turn());
    // Another thread may have taken the room.
    if (call.sendable()) sent = send(bytes <= kDeferBytes && call.in_burst());
  }
  if (!*sent)
    return Status{call.over() ? Code::kCancelled : sent->status().code(), sent->status().details()};
  return in_time(await_sent(call, **sent, wait));
}

}  // namespace

Result<bool> start(CallPort& port, const Beginning& beginning, const Wait& wait,
                   Ref<ClientCall>& call) {
  Ref<Outgoing> outgoing;
  const Abandoning abandoning(call, outgoing);
  if (Status status = begin(port, beginning, beginning.end, false, wait.deadline, call, outgoing);
      !status.ok())
    return status;
  const auto cancelled = [&](const Status& why) {
    call->cancel(why.code(), why.details());
    return why;
  };
  if (beginning.keeper.how != Keeper::How::kWait) {
    if (Status left = call->see_off(outgoing, beginning.segments, beginning.keeper); !left.ok())
      return cancelled(left);
  } else {
    const Ended ended = await_sent(*call, outgoing, wait);
    if (ended == Ended::kTimeout) call->cancel(Code::kDeadlineExceeded, kDeadlineDetails);
    if (ended == Ended::kInterrupted) {
      call->cancel(Code::kCancelled, "interrupted");
      return false;
    }
  }
  if (Status watched = call->watch_deadline(); !watched.ok()) return cancelled(watched);
  return true;
}

Result<bool> unary(CallPort& port, const Beginning& beginning, const Wait& wait,
                   Ref<ClientCall>& call) {
  const Withdrawing withdrawing(beginning.places);
  Ref<Outgoing> outgoing;
  const Abandoning abandoning(call, outgoing);
  Trial trial(port.link(), beginning.segments);
  if (Status status = begin(port, beginning, true, true, wait.deadline, call, outgoing);
      !status.ok())
    return status;
  const Ended ended = wait_ended(*call, wait);
  if (ended == Ended::kInterrupted) call->cancel(Code::kCancelled, "interrupted");
  if (ended == Ended::kTimeout) call->cancel(Code::kDeadlineExceeded, kDeadlineDetails);
  (void)let_go(*call, outgoing);
  if (ended == Ended::kInterrupted) return false;
  // Another thread may still be writing the outcome down.
  while (!call->ended()) (void)call->wait_ended(kForever);
  trial.ended(*call);
  return true;
}

Result<bool> send(ClientCall& call, std::span<OutSegment> segments, bool end, const Wait& wait) {
  return send_in_stream(call, segments, wait,
                        [&](bool defer) { return call.send_message(segments, end, defer); });
}

Result<bool> send(ServerCall& call, std::span<OutSegment> segments, const Wait& wait) {
  return send_in_stream(call, segments, wait,
                        [&](bool defer) { return call.send_message(segments, defer); });
}

Ended await_message(Call& call, InMessage& message, const Wait& wait) {
  for (;;) {
    // Asked first: then all messages that came before are here.
    const bool over = call.input_over();
    if (call.take(message)) return Ended::kDone;
    if (over) return Ended::kClosed;
    // Another thread may take what this one has been woken for.
    const Ended ended = wait_through(wait, [&](Nanos until) { return call.wait_message(until); });
    if (ended != Ended::kDone) return ended;
  }
}

bool finish(ServerCall& call, Code code, std::string_view details,
            std::span<const wire::MetadataEntry> trailing, bool payload,
            std::span<OutSegment> segments, const Keeper& keeper, Ref<ServerCall>* next) {
  stage(call.link(), segments);
  Status checked = wire::check_metadata(trailing);
  if (checked.ok()) checked = wire::check_details(details);
  if (!checked.ok()) {
    code = checked.code();
    details = checked.details();
    trailing = {};
    payload = false;
  }
  if (!payload) segments = {};
  return next ? call.finish_and_poll(code, details, trailing, payload, segments, keeper, *next)
              : call.finish(code, details, trailing, payload, segments, keeper);
}

}  // namespace tw

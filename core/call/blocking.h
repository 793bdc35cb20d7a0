// SPDX-License-Identifier: Apache-2.0
// Calls as they are made by who blocks on them: begun, sent, waited for. Whatever becomes of a
// call, the memory that was lent to it is the caller's again on return, or its keeper's.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "call/client.h"
#include "call/server.h"
#include "engine/blocking.h"
#include "engine/waiting.h"

namespace tw {

// How a call begins.
struct Beginning {
  std::string_view method;
  std::span<const wire::MetadataEntry> metadata;
  bool payload = false;  // with a first message, which is `segments`
  std::span<OutSegment> segments;
  Keeper keeper;
  bool end = false;                           // it is the last one
  bool until_read = false;                    // see CallPort::new_call()
  std::span<const Ref<PostedBuffer>> places;  // see ClientCall::land()
};

// All of these: true: done; false: interrupted, and the call, where it has begun, is cancelled.
// std::bad_alloc: it is cancelled, too.

// Begins a call, which others wait for, and returns once its first message has been sent or left
// to its keeper. `call` ends at the deadline even if nobody waits for it. A status: it has not
// begun.
Result<bool> start(CallPort& port, const Beginning& beginning, const Wait& wait,
                   Ref<ClientCall>& call);

// Makes a call with one message each way, and waits for its end, at the latest at the deadline: its
// outcome says how. `end` is implied. From the return on nobody stores in `places`, whatever comes
// of it. A status: it has not begun.
Result<bool> unary(CallPort& port, const Beginning& beginning, const Wait& wait,
                   Ref<ClientCall>& call);

// One more message of a stream, once the peer has credit for it. DEADLINE_EXCEEDED: the peer will
// not see the message. CANCELLED: the call has ended.
Result<bool> send(ClientCall& call, std::span<OutSegment> segments, bool end, const Wait& wait);
Result<bool> send(ServerCall& call, std::span<OutSegment> segments, const Wait& wait);

// Finishes a call; details or metadata that gRPC does not allow make it end with an error instead.
// `next`: where the next call of the same link goes, see ServerCall::finish_and_poll(); null: none
// is wanted. False: the call had ended, nothing was sent.
bool finish(ServerCall& call, Code code, std::string_view details,
            std::span<const wire::MetadataEntry> trailing, bool payload,
            std::span<OutSegment> segments, const Keeper& keeper, Ref<ServerCall>* next);

// Takes the peer's next message; kClosed: none comes any more. Several threads may wait: each
// message goes to one of them. One that is there is taken without a look at the clock: a stream is
// read at full speed. std::bad_alloc leaves it where it is.
Ended await_message(Call& call, InMessage& message, const Wait& wait);

// Waits of who looks at a call. Timeout: not yet.
inline Ended wait_ended(Call& call, const Wait& wait) {
  if (call.ended()) return Ended::kDone;
  return wait_through(wait, [&](Nanos until) { return call.wait_ended(until); });
}
inline Ended wait_initial(ClientCall& call, const Wait& wait) {
  return wait_through(wait, [&](Nanos until) { return call.wait_initial(until); });
}

// As Server::next().
inline Ended await_calls(Server& server, std::vector<Ref<ServerCall>>& calls, size_t room,
                         const Wait& wait) {
  return wait_through(wait, [&](Nanos until) { return server.next(calls, room, until); });
}

}  // namespace tw

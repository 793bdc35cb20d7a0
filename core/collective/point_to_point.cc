// SPDX-License-Identifier: Apache-2.0
#include "collective/point_to_point.h"

#include <utility>

#include "base/text.h"

namespace tw::collective {

Status blame(const Members& members, int rank, const Status& otherwise) {
  Status why = members.failure();
  if (why.ok()) why = members.standing(rank);
  return why.ok() ? otherwise : why;
}

Result<InMessage> await_message(Members& members, int rank, TaggedReceive& receive,
                                const Wait& wait, const std::function<Status()>& look) {
  TaggedPort& port = members.tagged(rank);
  Status seen;
  Status waited = wait_in_slices(members, wait, [&](Nanos until) {
    (void)port.wait(receive, Wait{until, nullptr, nullptr});
    if (receive.ended() || !look) return receive.ended();
    seen = look();
    return !seen.ok();
  });
  if (waited.ok()) waited = seen;
  if (!waited.ok() && (port.cancel(receive) || receive.status().code() == Code::kCancelled)) {
    if (waited.code() == Code::kDeadlineExceeded)
      return Status{waited.code(),
                    text({"no message has come from ", members.name(rank), " in time"})};
    return waited;
  }
  if (!receive.status().ok()) return blame(members, rank, receive.status());
  InMessage message;
  (void)receive.take(message);
  if (!message.status.ok()) return message.status;
  return message;
}

Result<InMessage> next_message(Members& members, int rank, uint64_t tag, const Wait& wait) {
  auto asked = members.tagged(rank).receive(tag);
  if (!asked) return asked.status();
  return await_message(members, rank, **asked, wait);
}

Status send_message(Members& members, int rank, uint64_t tag, std::span<OutSegment> segments,
                    const Wait& wait) {
  const auto sent = members.tagged(rank).send(tag, segments, wait);
  if (sent) return *sent ? Status() : Status{Code::kCancelled, "the wait was interrupted"};
  if (sent.status().code() == Code::kDeadlineExceeded)
    return {Code::kDeadlineExceeded,
            text({members.name(rank), " has not taken a message in time"})};
  return blame(members, rank, sent.status());
}

}  // namespace tw::collective

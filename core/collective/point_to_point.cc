// SPDX-License-Identifier: Apache-2.0
#include "collective/point_to_point.h"

#include <optional>
#include <utility>

#include "base/text.h"

namespace tw::collective {

namespace {

Status nothing_seen(const Look& look) { return look ? look() : Status(); }

}  // namespace

Status blame(const Members& members, int rank, const Status& otherwise) {
  Status why = members.failure();
  if (why.ok()) why = members.standing();
  if (why.ok()) why = members.standing(rank);
  return why.ok() ? otherwise : why;
}

Result<InMessage> taken(TaggedReceive& receive) {
  InMessage message;
  if (!receive.take(message))
    return receive.status().ok()
               ? Status{Code::kInternal, "a message was taken before, or is yet to come"}
               : receive.status();
  if (!message.status.ok()) return message.status;
  return message;
}

Result<InMessage> await_message(Members& members, int rank, TaggedReceive& receive,
                                const Wait& wait, const Look& look) {
  TaggedPort& port = *members.tagged(rank);
  Status waited = wait_and_look(
      members, wait,
      [&](Nanos until) {
        (void)port.wait(receive, Wait{until, nullptr, nullptr});
        return receive.ended();
      },
      [&] { return nothing_seen(look); });
  if (!waited.ok() && (port.cancel(receive) || receive.status().code() == Code::kCancelled)) {
    if (waited.code() == Code::kDeadlineExceeded)
      return Status{waited.code(),
                    text({"no message has come from ", members.name(rank), " in time"})};
    return waited;
  }
  if (!receive.status().ok()) return blame(members, rank, receive.status());
  return taken(receive);
}

Result<InMessage> next_message(Members& members, int rank, uint64_t tag, const Wait& wait) {
  const auto port = members.reach(rank, wait);
  if (!port) return port.status();
  auto asked = (*port)->receive(tag);
  if (!asked) return asked.status();
  return await_message(members, rank, **asked, wait);
}

Result<TaggedSend> begin_message(Members& members, int rank, uint64_t tag,
                                 std::span<OutSegment> segments, const Wait& wait,
                                 const Look& look) {
  const auto port = members.reach(rank, wait);
  if (!port) return port.status();
  std::optional<TaggedSend> begun;
  Status why;
  Status waited = wait_and_look(
      members, wait,
      [&](Nanos until) {
        auto send = (*port)->begin(tag, segments, Wait{until, nullptr, nullptr});
        if (send) {
          begun = std::move(*send);
          return begun.has_value();
        }
        if (send.status().code() == Code::kDeadlineExceeded) return false;
        why = send.status();
        return true;
      },
      [&] { return nothing_seen(look); }, rank);
  if (!waited.ok()) return waited;
  if (!why.ok()) return blame(members, rank, why);
  return std::move(*begun);
}

Status await_departure(Members& members, int rank, TaggedSend& send, const Wait& wait,
                       const Look& look) {
  return wait_and_look(
      members, wait,
      [&](Nanos until) {
        (void)members.tagged(rank)->wait(send, Wait{until, nullptr, nullptr});
        return send.ended();
      },
      [&] { return nothing_seen(look); }, rank);
}

Status send_message(Members& members, int rank, uint64_t tag, std::span<OutSegment> segments,
                    const Wait& wait) {
  const auto late = [&](const Status& why) {
    if (why.code() != Code::kDeadlineExceeded) return why;
    return Status{why.code(), text({members.name(rank), " has not taken a message in time"})};
  };
  auto begun = begin_message(members, rank, tag, segments, wait);
  if (!begun) return late(begun.status());
  if (begun->copied()) return {};
  const Status left = await_departure(members, rank, *begun, wait);
  // All of it is on its way by now, or the link is lost, which frees what it has not sent.
  if (!left.ok() && members.tagged(rank)->withdraw(*begun)) return late(left);
  return members.link(rank).lost() ? blame(members, rank, members.link(rank).death()) : Status();
}

}  // namespace tw::collective

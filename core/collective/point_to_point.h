// SPDX-License-Identifier: Apache-2.0
// One message from one rank to another.
#pragma once

#include <functional>
#include <span>

#include "collective/members.h"
#include "message/message.h"

namespace tw::collective {

// Up to here tags are the user's; those behind it are the group's own.
inline constexpr uint64_t kMaxTag = (uint64_t{1} << 62) - 1;
inline constexpr uint64_t kStageTag = kMaxTag + 1;
inline constexpr uint64_t kNeighboursTag = kMaxTag + 2;
inline constexpr uint64_t kStepTag = kMaxTag + 3;  // and one more for each lane of Messages
inline constexpr uint64_t kAddressesTag = kMaxTag + 5;

// Asked again and again while a wait lasts; an error ends it.
using Look = std::function<Status()>;

// Errors as those of Fabric. Returns when the memory is the caller's own again.
Status send_message(Members& members, int rank, uint64_t tag, std::span<OutSegment> segments,
                    const Wait& wait);
// The same in two steps, whose memory is the caller's own again after the second one, or once the
// message is withdrawn. DEADLINE_EXCEEDED without text: the caller knows what is late.
Result<TaggedSend> begin_message(Members& members, int rank, uint64_t tag,
                                 std::span<OutSegment> segments, const Wait& wait,
                                 const Look& look = {});
Status await_departure(Members& members, int rank, TaggedSend& send, const Wait& wait,
                       const Look& look = {});
// The rank's next message with this tag.
Result<InMessage> next_message(Members& members, int rank, uint64_t tag, const Wait& wait);
// That of a receive which was asked for before, of a rank that there is a link with.
Result<InMessage> await_message(Members& members, int rank, TaggedReceive& receive,
                                const Wait& wait, const Look& look = {});

// What a receive that has ended came to.
Result<InMessage> taken(TaggedReceive& receive);

// Why something on the link to a rank has failed: because the rank is gone, if it is.
Status blame(const Members& members, int rank, const Status& otherwise);

}  // namespace tw::collective

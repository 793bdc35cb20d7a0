// SPDX-License-Identifier: Apache-2.0
#include "collective/messages.h"

#include "base/text.h"

namespace tw::collective {

Messages::Messages(const Team& team, uint64_t sequence, const Pending& now, Algorithm algorithm,
                   Look look)
    : team_(team),
      sequence_(sequence),
      now_(now),
      algorithm_(algorithm),
      look_(std::move(look)),
      traffic_(static_cast<size_t>(team.size()) * kLanes) {}

Messages::~Messages() {
  for (int rank = 0; rank < team_.size(); ++rank)
    for (int lane = 0; lane < kLanes; ++lane) {
      Traffic& all = traffic(rank, lane);
      for (TaggedSend& send : all.leaving) (void)port(rank).withdraw(send);
      for (const auto& receive : all.expected) (void)port(rank).cancel(*receive);
    }
}

Status Messages::expect(int from, int lane) {
  const auto port = reach(from);
  if (!port) return port.status();
  auto asked = (*port)->receive(kStepTag + static_cast<uint64_t>(lane));
  if (!asked) return asked.status();
  traffic(from, lane).expected.push_back(std::move(*asked));
  return {};
}

Status Messages::depart(int to, Traffic& all, size_t most) {
  while (!all.leaving.empty() && (all.leaving.size() > most || all.leaving.front().ended())) {
    TaggedSend& first = all.leaving.front();
    Status left = await_departure(team_.members(), team_.in_group(to), first, now_.wait, asked());
    if (left.code() == Code::kDeadlineExceeded)
      return {left.code(),
              text({team_.name(to), " has not taken its part of ", now_.call.text(), " in time"})};
    if (!left.ok()) return left;
    all.leaving.pop_front();
  }
  return {};
}

Status Messages::send(int to, std::span<const std::byte> data, uint64_t total, int lane) {
  Traffic& all = traffic(to, lane);
  if (Status status = depart(to, all, kLeaving); !status.ok()) return status;
  const auto header = encode_step({sequence_, total, now_.call, algorithm_});
  OutSegment segments[2];
  segments[0].data = header.data();
  segments[0].size = header.size();
  segments[0].bulk = false;  // whatever the settings say, it is copied before send() returns
  segments[1].data = data.data();
  segments[1].size = data.size();
  auto begun = begin_message(team_.members(), team_.in_group(to),
                             kStepTag + static_cast<uint64_t>(lane), segments, now_.wait, asked());
  if (!begun) {
    if (begun.status().code() != Code::kDeadlineExceeded) return begun.status();
    return team_.late(to, now_.call.text());
  }
  if (!begun->ended()) all.leaving.push_back(std::move(*begun));
  return {};
}

Status Messages::compare(int in_group, const StepHeader& theirs) const {
  const Members& members = team_.members();
  const int self = members.rank();
  if (theirs.call != now_.call) return members.disagreement(now_.call, in_group, theirs.call);
  if (theirs.sequence != sequence_)
    return {Code::kAborted, text({members.name(self), " called ", now_.call.text(),
                                  " as operation ", sequence_, " of the group, and ",
                                  members.name(in_group), " as operation ", theirs.sequence})};
  if (theirs.algorithm != algorithm_)
    return {Code::kAborted,
            text({now_.call.text(), " goes by ", name_of(algorithm_), " for ", members.name(self),
                  ", and by ", name_of(theirs.algorithm), " for ", members.name(in_group),
                  ": do they run different versions?"})};
  return {};
}

Status Messages::disagreement() const {
  if (look_)
    if (Status status = look_(); !status.ok()) return status;
  const Members& members = team_.members();
  std::array<std::byte, kStepHeaderSize> header;
  for (int rank = 0; rank < members.size(); ++rank)
    for (uint64_t lane = 0; lane < kLanes; ++lane) {
      const TaggedPort* const there = members.tagged(rank);
      if (!there || !there->peek(kStepTag + lane, header)) continue;
      const auto theirs = decode_step(header);
      // One of a later operation may come early.
      if (!theirs || theirs->sequence != sequence_) continue;
      if (Status status = compare(rank, *theirs); !status.ok()) return status;
    }
  return members.disagreement();
}

Status Messages::check(int from, const InMessage& message, size_t size, uint64_t total) const {
  const auto& segments = message.segments;
  if (segments.size() != 2)
    return {Code::kInternal, text({team_.name(from), " has sent a message of ", segments.size(),
                                   " segments in an operation"})};
  const auto theirs = decode_step({segments[0].data, segments[0].size});
  if (!theirs) return theirs.status();
  if (Status status = compare(team_.in_group(from), *theirs); !status.ok()) return status;
  if (theirs->total != total || segments[1].size != size)
    return {Code::kAborted, text({team_.name(from), " gives ", theirs->total, " bytes to ",
                                  team_.name(team_.rank()), ", which takes ", total})};
  return {};
}

Result<Received> Messages::receive(int from, size_t size, uint64_t total, int lane) {
  Traffic& all = traffic(from, lane);
  if (all.expected.empty())
    if (Status status = expect(from, lane); !status.ok()) return status;
  const Ref<TaggedReceive> first = std::move(all.expected.front());
  all.expected.pop_front();
  auto message = await_message(team_.members(), team_.in_group(from), *first, now_.wait, asked());
  if (!message) {
    if (message.status().code() != Code::kDeadlineExceeded) return message.status();
    return team_.late(from, now_.call.text());
  }
  if (Status status = check(from, *message, size, total); !status.ok()) return status;
  return Received(std::move(*message));
}

std::byte* Messages::room(size_t size) {
  return rooms_.emplace_back(std::make_unique_for_overwrite<std::byte[]>(size)).get();
}

Status Messages::finish() {
  for (int rank = 0; rank < team_.size(); ++rank)
    for (int lane = 0; lane < kLanes; ++lane)
      if (Status status = depart(rank, traffic(rank, lane), 0); !status.ok()) return status;
  return {};
}

}  // namespace tw::collective

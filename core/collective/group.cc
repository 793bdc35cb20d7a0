// SPDX-License-Identifier: Apache-2.0
#include "collective/group.h"

#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "base/text.h"
#include "collective/reduction.h"
#include "collective/shared_fabric.h"
#include "link/link.h"

namespace tw::collective {
namespace {

// The next message of a rank.
Result<InMessage> next_message(Members& members, int rank, uint64_t tag, const Wait& wait) {
  TaggedPort& port = members.tagged(rank);
  auto asked = port.receive(tag);
  if (!asked) return asked.status();
  TaggedReceive& receive = **asked;
  Status waited = wait_in_slices(members, wait, [&](Nanos until) {
    (void)port.wait(receive, Wait{until, nullptr, nullptr});
    return receive.ended();
  });
  if (!waited.ok() && (port.cancel(receive) || receive.status().code() == Code::kCancelled)) {
    if (waited.code() == Code::kDeadlineExceeded)
      return Status{waited.code(),
                    text({"no message has come from ", members.name(rank), " in time"})};
    return waited;
  }
  if (!receive.status().ok()) {
    const Status why = members.standing(rank);
    return why.ok() ? receive.status() : why;
  }
  InMessage message;
  (void)receive.take(message);
  if (!message.status.ok()) return message.status;
  return message;
}

Status send_message(Members& members, int rank, uint64_t tag, std::span<OutSegment> segments,
                    const Wait& wait) {
  const auto sent = members.tagged(rank).send(tag, segments, wait);
  if (sent) return *sent ? Status() : Status{Code::kCancelled, "the wait was interrupted"};
  if (sent.status().code() == Code::kDeadlineExceeded)
    return {Code::kDeadlineExceeded,
            text({members.name(rank), " has not taken a message in time"})};
  const Status why = members.standing(rank);
  return why.ok() ? sent.status() : why;
}

}  // namespace

Result<Ref<Group>> Group::make(Store& store, const Seat& seat, const Wait& wait) {
  auto runtime = Runtime::get();
  if (!runtime) return runtime.status();
  auto members = join(**runtime, store, seat, wait);
  if (!members) return members.status();
  auto group = Ref<Group>::adopt(new Group(std::move(*members)));
  if (seat.size > 1)
    if (Status status = group->choose_fabric(**runtime, wait); !status.ok()) {
      group->members_->fail(status);
      return status;
    }
  return group;
}

// Each rank hands its stage to all. A link that carries no memory hands over a copy instead: its
// rank runs on another host. All have to be able to map all.
Status Group::choose_fabric(Runtime& runtime, const Wait& wait) {
  constexpr uint64_t kStages = kOwnTags, kVerdicts = kOwnTags + 1;
  auto own = OwnStage::make(runtime.arena());
  for (int i = 0; i < size(); ++i) {
    if (i == rank()) continue;
    OutSegment segment;
    if (own) segment = own->announcement();
    if (Status status = send_message(*members_, i, kStages, {&segment, own ? 1u : 0u}, wait);
        !status.ok())
      return status;
  }
  std::vector<std::optional<PeerStage>> stages(static_cast<size_t>(size()));
  std::byte shared{own.ok() ? uint8_t{1} : uint8_t{0}};
  for (int i = 0; i < size(); ++i) {
    if (i == rank()) continue;
    auto message = next_message(*members_, i, kStages, wait);
    if (!message) return message.status();
    auto mapped = PeerStage::map(std::move(*message));
    if (mapped)
      stages[static_cast<size_t>(i)].emplace(std::move(*mapped));
    else
      shared = std::byte{0};
  }
  for (int i = 0; i < size(); ++i) {
    if (i == rank()) continue;
    OutSegment verdict;
    verdict.data = &shared;
    verdict.size = 1;
    if (Status status = send_message(*members_, i, kVerdicts, {&verdict, 1}, wait); !status.ok())
      return status;
  }
  bool all = shared != std::byte{0};
  for (int i = 0; i < size(); ++i) {
    if (i == rank()) continue;
    auto message = next_message(*members_, i, kVerdicts, wait);
    if (!message) return message.status();
    all = all && message->segments.size() == 1 && message->segments[0].size == 1 &&
          message->segments[0].data[0] != std::byte{0};
  }
  if (!all)
    return {Code::kUnimplemented,
            "the ranks do not all run on one host, with shared memory between them"};
  auto made = std::make_unique<SharedFabric>(*members_, std::move(*own), std::move(stages),
                                             runtime.settings().spin);
  fabric_name_ = made->name();
  fabric_ = std::move(made);
  return {};
}

void Group::abort(std::string_view why) {
  members_->fail({Code::kCancelled, text({members_->name(rank()), " gave the group up: ", why})});
}

Status Group::check_rank(int rank) const {
  if (rank >= 0 && rank < size()) return {};
  return {Code::kInvalidArgument,
          text({"there is no rank ", rank, " in a group of ", size(), " ranks"})};
}

Status Group::check(const CollectiveCall& call) const {
  if (Status status = check_rank(call.root); !status.ok()) return status;
  const bool reduces = call.kind == CollectiveKind::kAllReduce ||
                       call.kind == CollectiveKind::kReduce ||
                       call.kind == CollectiveKind::kReduceScatter;
  if (reduces && !reducible(call.type, call.op))
    return {Code::kInvalidArgument,
            text({"there is no ", name_of(call.op), " of ", name_of(call.type)})};
  if (call.count > (uint64_t{1} << 48))
    return {Code::kInvalidArgument, text({"arrays have up to 2^48 elements, not ", call.count})};
  return {};
}

// A rank that has failed says so: nothing is begun with it.
Status Group::usable() {
  Status why = members_->failure();
  if (!why.ok()) return why;
  why = members_->standing();
  if (!why.ok()) members_->fail(why);
  return why;
}

Status Group::alone(const CollectiveCall& call, const std::byte* in, std::byte* out) const {
  const bool reduces = call.kind == CollectiveKind::kAllReduce ||
                       call.kind == CollectiveKind::kReduce ||
                       call.kind == CollectiveKind::kReduceScatter;
  if (reduces)
    tw::reduce(call.type, call.op, {&in, 1}, out, nullptr, call.count, 1);
  else if (out && in && out != in)
    std::memcpy(out, in, call.bytes());
  return {};
}

Status Group::run(const CollectiveCall& call, const std::byte* in, std::byte* out,
                  const Wait& wait) {
  if (Status status = check(call); !status.ok()) return status;
  const MutexLock turn(turn_);
  if (Status status = usable(); !status.ok()) return status;
  if (!fabric_) return alone(call, in, out);
  switch (call.kind) {
    case CollectiveKind::kBarrier:
      return fabric_->barrier(call, wait);
    case CollectiveKind::kAllReduce:
      return fabric_->all_reduce(call, in, out, wait);
    case CollectiveKind::kReduce:
      return fabric_->reduce(call, in, out, wait);
    case CollectiveKind::kBroadcast:
      return fabric_->broadcast(call, out, wait);
    case CollectiveKind::kAllGather:
      return fabric_->all_gather(call, in, out, wait);
    case CollectiveKind::kReduceScatter:
      return fabric_->reduce_scatter(call, in, out, wait);
    case CollectiveKind::kGather:
      return fabric_->gather(call, in, out, wait);
    case CollectiveKind::kScatter:
      return fabric_->scatter(call, in, out, wait);
    case CollectiveKind::kAllToAll:
      break;
  }
  return {Code::kInvalidArgument, "not an operation"};
}

Status Group::all_to_all(const CollectiveCall& call, const std::byte* in,
                         std::span<const Fabric::Run> gives, std::byte* out,
                         std::span<const Fabric::Run> takes, const Wait& wait) {
  if (Status status = check(call); !status.ok()) return status;
  const MutexLock turn(turn_);
  if (Status status = usable(); !status.ok()) return status;
  if (fabric_) return fabric_->all_to_all(call, in, gives, out, takes, wait);
  if (gives[0].size != takes[0].size)
    return {Code::kInvalidArgument,
            text({"this rank gives itself ", gives[0].size, " bytes, and takes ", takes[0].size})};
  if (gives[0].size != 0) std::memcpy(out + takes[0].offset, in + gives[0].offset, gives[0].size);
  return {};
}

Status Group::send(int rank, uint64_t tag, std::span<const std::byte> data, const Wait& wait) {
  if (Status status = check_rank(rank); !status.ok()) return status;
  if (rank == this->rank() || tag > kMaxTag)
    return {Code::kInvalidArgument, "a message goes to another rank, with a tag below 2^62"};
  if (Status status = usable(); !status.ok()) return status;
  OutSegment segment;
  segment.data = data.data();
  segment.size = data.size();
  return send_message(*members_, rank, tag, {&segment, 1}, wait);
}

Status Group::receive(int rank, uint64_t tag, std::span<std::byte> into, const Wait& wait) {
  if (Status status = check_rank(rank); !status.ok()) return status;
  if (rank == this->rank() || tag > kMaxTag)
    return {Code::kInvalidArgument, "a message comes from another rank, with a tag below 2^62"};
  if (Status status = members_->failure(); !status.ok()) return status;
  auto message = next_message(*members_, rank, tag, wait);
  if (!message) return message.status();
  if (message->payload_bytes != into.size())
    return {Code::kOutOfRange, text({"a message of ", message->payload_bytes, " bytes came from ",
                                     members_->name(rank), " for memory of ", into.size()})};
  size_t at = 0;
  for (const InSegment& segment : message->segments) {
    if (segment.size != 0) std::memcpy(into.data() + at, segment.data, segment.size);
    at += segment.size;
  }
  return {};
}

}  // namespace tw::collective

// SPDX-License-Identifier: Apache-2.0
#include "collective/device_operations.h"

#include <algorithm>
#include <cstring>

#include "base/text.h"

namespace tw::collective {
namespace {

// What an operation moves on this rank, in runs of call.bytes() each: one, one for each rank, or
// none.
struct MovedRuns {
  size_t in = 0, out = 0;
  size_t most = 0;  // of in and out together on any rank, so that all cut alike
  bool in_place = false;
};
MovedRuns shape_of(const CollectiveCall& call, int rank, int size) {
  const auto ranks = static_cast<size_t>(size);
  const bool root = rank == call.root;
  switch (call.kind) {
    case CollectiveKind::kAllReduce:
      return {1, 1, 1, true};
    case CollectiveKind::kReduce:
      return {1, root, 1, true};
    case CollectiveKind::kBroadcast:
      return {root, !root, 1, true};
    case CollectiveKind::kAllGather:
      return {1, ranks, 1 + ranks, false};
    case CollectiveKind::kGather:
      return {1, root ? ranks : 0, 1 + ranks, false};
    case CollectiveKind::kScatter:
      return {root ? ranks : 0, 1, 1 + ranks, false};
    case CollectiveKind::kReduceScatter:
      return {ranks, 1, 1 + ranks, false};
    case CollectiveKind::kBarrier:
    case CollectiveKind::kAllToAll:
      break;
  }
  return {};
}

StagedPieces::Runs runs_of(size_t count, size_t bytes) {
  StagedPieces::Runs runs;
  for (size_t i = 0; i < count; ++i) runs.push_back({i * bytes, bytes});
  return runs;
}

CollectiveCall call_of(CollectiveKind kind, DataType type, ReduceOp op, uint64_t count) {
  return {kind, type, op, 0, count};
}

}  // namespace

Result<std::unique_ptr<DeviceOperations>> DeviceOperations::make(device::Driver& driver, int device,
                                                                 const Members& members,
                                                                 bool in_place) {
  auto queue = DeviceQueue::make(driver, device);
  if (!queue) return queue.status();
  return std::unique_ptr<DeviceOperations>(
      new DeviceOperations(driver, device, members, in_place, std::move(*queue)));
}

// The host waits, so that what is queued here never waits for a stream of the user's, which may
// never get on.
Status DeviceOperations::ready(const DevicePlace& place, const Wait& wait) {
  const auto idle = driver_.idle(device_, place.stream);
  if (!idle) return idle.status();
  if (*idle) return {};
  Status status = queue_.mark(place.stream);
  return status.ok() ? queue_.await(members_, wait) : status;
}

Status DeviceOperations::copy(const DevicePlace& place, const std::byte* in, std::byte* out,
                              size_t bytes, const Wait& wait) {
  Status status = ready(place, wait);
  if (!status.ok() || in == nullptr || out == nullptr || in == out) return status;
  status = queue_.copy(out, in, bytes);
  if (status.ok()) status = queue_.mark();
  if (status.ok()) status = queue_.await(members_, wait);
  if (!status.ok()) queue_.settle();
  return status;
}

Result<std::vector<DeviceOffer>> DeviceOperations::exchange(Fabric& fabric, const DeviceOffer& mine,
                                                            const Wait& wait) {
  const auto sent = encode_offer(mine);
  const auto ranks = static_cast<size_t>(members_.size());
  std::vector<std::byte> all(ranks * sent.size());
  const CollectiveCall gather =
      call_of(CollectiveKind::kAllGather, DataType::kUint8, ReduceOp::kSum, sent.size());
  if (Status status = fabric.run(gather, sent.data(), all.data(), wait); !status.ok())
    return status;
  std::vector<DeviceOffer> offers;
  for (size_t i = 0; i < ranks; ++i) {
    const auto offer = decode_offer(std::span(all).subspan(i * sent.size(), sent.size()));
    if (!offer) return offer.status();
    if (offer->call != mine.call)
      return Status{Code::kAborted,
                    text({members_.name(members_.rank()), " called ", mine.call.text(), ", but ",
                          members_.name(static_cast<int>(i)), " called ", offer->call.text()})};
    offers.push_back(*offer);
  }
  return offers;
}

bool DeviceOperations::in_place(const CollectiveCall& call) const {
  const int others = members_.size() - 1;
  const bool alone =
      call.kind == CollectiveKind::kReduce || call.kind == CollectiveKind::kGather ||
      ((call.kind == CollectiveKind::kBroadcast || call.kind == CollectiveKind::kScatter) &&
       others == 1);
  return in_place_ && call.bytes() >= (alone ? kInPlaceAloneBytes : kInPlaceBytes);
}

Result<bool> DeviceOperations::try_in_place(Fabric& fabric, const CollectiveCall& call,
                                            const std::byte* in, std::byte* out, const Wait& wait) {
  const bool wanted = in_place(call);
  if (wanted) ++tried_;
  PeerArrays peers(device_, reduction_, queue_, exported_, peers_, members_, call, in, out, tried_);
  const auto offers = exchange(fabric, wanted ? peers.offer() : DeviceOffer{call, {}, {}, 0}, wait);
  if (!offers) return offers.status();
  if (!wanted || !peers.all_offered(*offers)) return false;
  const bool opened = peers.open(*offers).ok();
  const auto mine = std::byte{opened};
  std::byte all{};
  const CollectiveCall agree =
      call_of(CollectiveKind::kAllReduce, DataType::kUint8, ReduceOp::kMin, 1);
  Status status = fabric.run(agree, &mine, &all, wait);
  in_place_ = all == std::byte{1};
  if (status.ok() && in_place_) status = peers.run(fabric, wait);
  peers.close();
  if (!in_place_) peers_.close();
  // From here on owners may write and free.
  if (status.ok() && in_place_) status = fabric.run({}, nullptr, nullptr, wait);
  if (!status.ok()) return status;
  return in_place_;
}

Status DeviceOperations::stage(Fabric& fabric, const CollectiveCall& call, const std::byte* in,
                               std::byte* out, const Wait& wait) {
  const MovedRuns shape = shape_of(call, members_.rank(), members_.size());
  const size_t bytes = StagedPieces::piece_bytes(shape.most), share = call.bytes();
  const std::byte* const from = call.kind == CollectiveKind::kBroadcast ? out : in;
  const uint64_t pieces = std::max<uint64_t>(1, (share + bytes - 1) / bytes);
  way_ = Way::kDeviceStaged;
  return staged_.run(
      {from, runs_of(shape.in, share)}, {out, runs_of(shape.out, share)}, pieces, bytes,
      shape.in_place,
      [&](uint64_t piece, const StagedPieces::OnHost& memory) {
        CollectiveCall part = call;
        part.count = std::min(share - piece * bytes, bytes) / size_of(call.type);
        const bool writes = shape.out != 0 || call.kind == CollectiveKind::kBroadcast;
        return fabric.run(part, shape.in == 0 ? nullptr : memory.in, writes ? memory.out : nullptr,
                          wait);
      },
      wait);
}

Status DeviceOperations::run(Fabric& fabric, const DevicePlace& place, const CollectiveCall& call,
                             const std::byte* in, std::byte* out, const Wait& wait) {
  if (Status status = ready(place, wait); !status.ok()) return status;
  const size_t most = shape_of(call, members_.rank(), members_.size()).most;
  const bool several = call.bytes() > StagedPieces::piece_bytes(most);
  if (several || in_place(call)) {
    const auto done = try_in_place(fabric, call, in, out, wait);
    if (!done) return done.status();
    if (*done) {
      way_ = Way::kDeviceInPlace;
      return {};
    }
  }
  return stage(fabric, call, in, out, wait);
}

Status DeviceOperations::all_to_all(Fabric& fabric, const DevicePlace& place,
                                    const CollectiveCall& call, const std::byte* in,
                                    std::span<const Fabric::Run> gives, std::byte* out,
                                    std::span<const Fabric::Run> takes, const Wait& wait) {
  if (Status status = ready(place, wait); !status.ok()) return status;
  const size_t bytes = StagedPieces::piece_bytes(gives.size() + takes.size());
  uint64_t pieces = 1;
  for (const auto& runs : {gives, takes})
    for (const Fabric::Run& run : runs) pieces = std::max(pieces, (run.size + bytes - 1) / bytes);
  // Each pair has sizes of its own: the largest of all says how often all go on.
  const CollectiveCall agree =
      call_of(CollectiveKind::kAllReduce, DataType::kUint64, ReduceOp::kMax, 1);
  auto* const agreed = reinterpret_cast<std::byte*>(&pieces);
  if (Status status = fabric.run(agree, agreed, agreed, wait); !status.ok()) return status;
  way_ = Way::kDeviceStaged;
  return staged_.run(
      {in, {gives.begin(), gives.end()}}, {out, {takes.begin(), takes.end()}}, pieces, bytes, false,
      [&](uint64_t, const StagedPieces::OnHost& memory) {
        return fabric.all_to_all(call, memory.in, memory.gives, memory.out, memory.takes, wait);
      },
      wait);
}

}  // namespace tw::collective

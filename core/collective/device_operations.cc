// SPDX-License-Identifier: Apache-2.0
#include "collective/device_operations.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/text.h"

namespace tw::collective {
namespace {

// Of the sizes of shares; never 0. By FNV-1a.
uint64_t digest_of(std::span<const Fabric::Run> shares) {
  uint64_t digest = 14695981039346656037u;
  for (const Fabric::Run& share : shares)
    for (size_t byte = 0; byte < sizeof share.size; ++byte)
      digest = (digest ^ (share.size >> 8 * byte & 0xff)) * 1099511628211u;
  return digest | 1;
}

// From the beginning of the array, in whole elements.
bool lie_side_by_side(std::span<const Fabric::Run> runs, size_t width) {
  size_t end = 0;
  return std::ranges::all_of(runs, [&](const Fabric::Run& run) {
    return run.size % width == 0 && std::exchange(end, run.offset + run.size) == run.offset;
  });
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

Status DeviceOperations::alone(const DevicePlace& place, const CollectiveCall& call,
                               const std::byte* in, std::byte* out, const Wait& wait,
                               double factor) try {
  Status status = ready(place, wait);
  if (!status.ok() || in == nullptr || out == nullptr) return status;
  if (factor != 1) return staged_.scale(call, in, out, wait, factor);
  if (in == out) return status;
  status = queue_.copy(out, in, call.bytes());
  if (status.ok()) status = queue_.mark();
  if (status.ok()) status = queue_.await(members_, wait);
  if (!status.ok()) queue_.settle();
  return status;
} catch (...) {
  queue_.settle();
  throw;
}

// Ranks that call something else than this operation of uneven shares are told so by the host's,
// but for those in which only the root has something for, or from, the others.
Status DeviceOperations::gather(Fabric& fabric, const CollectiveCall& call,
                                std::span<const std::byte> mine, std::byte* all, const Wait& wait) {
  const size_t size = mine.size();
  if (call.count != CollectiveCall::kUneven || has_root(call.kind))
    return fabric.run(call_of(CollectiveKind::kAllGather, DataType::kUint8, ReduceOp::kSum, size),
                      mine.data(), all, wait);
  const auto ranks = static_cast<size_t>(members_.size());
  const std::vector<Fabric::Run> gives(ranks, {0, size});
  std::vector<Fabric::Run> takes(ranks);
  for (size_t i = 0; i < ranks; ++i) takes[i] = {i * size, size};
  return fabric.all_to_all(call, mine.data(), gives, all, takes, wait);
}

Result<std::vector<DeviceOffer>> DeviceOperations::hear_all(Fabric& fabric, const DeviceOffer& mine,
                                                            const Wait& wait) {
  const auto sent = encode_offer(mine);
  const auto ranks = static_cast<size_t>(members_.size());
  std::vector<std::byte> all(ranks * sent.size());
  if (Status status = gather(fabric, mine.call, sent, all.data(), wait); !status.ok())
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
  if (is_adasum(call)) return false;  // no kernel has it
  const int others = members_.size() - 1;
  const bool alone =
      call.kind == CollectiveKind::kReduce || call.kind == CollectiveKind::kGather ||
      ((call.kind == CollectiveKind::kBroadcast || call.kind == CollectiveKind::kScatter) &&
       others == 1);
  return in_place_ && call.bytes() >= (alone ? kInPlaceAloneBytes : kInPlaceBytes);
}

PeerArrays DeviceOperations::peer_arrays(const DeviceCall& mine) {
  return {device_, reduction_, queue_, exported_, peers_, members_, mine, ++tried_};
}

Result<bool> DeviceOperations::read_in_place(Fabric& fabric, PeerArrays& peers,
                                             const std::vector<DeviceOffer>& offers,
                                             const Wait& wait) {
  if (!peers.all_offered(offers)) return false;
  const bool opened = peers.open(offers).ok();
  const auto mine = std::byte{opened};
  std::byte all{};
  const CollectiveCall agree =
      call_of(CollectiveKind::kAllReduce, DataType::kUint8, ReduceOp::kMin, 1);
  Status status = fabric.run(agree, &mine, &all, wait);
  in_place_ = all == std::byte{1};
  try {
    if (status.ok() && in_place_) status = peers.run(fabric, wait);
  } catch (...) {
    peers.close();  // without memory, too, copies are on their way
    throw;
  }
  peers.close();
  if (!in_place_) peers_.close();
  // From here on owners may write and free.
  if (status.ok() && in_place_) status = fabric.run({}, nullptr, nullptr, wait);
  if (!status.ok()) return status;
  return in_place_;
}

Status DeviceOperations::run(Fabric& fabric, const DevicePlace& place, const CollectiveCall& call,
                             const std::byte* in, std::byte* out, const Wait& wait, double factor) {
  if (Status status = ready(place, wait); !status.ok()) return status;
  if (in_place(call)) {
    PeerArrays peers = peer_arrays({call, in, out, factor, {}});
    const auto offers = hear_all(fabric, peers.offer(), wait);
    if (!offers) return offers.status();
    const auto done = read_in_place(fabric, peers, *offers, wait);
    if (!done) return done.status();
    if (*done) {
      way_ = Way::kDeviceInPlace;
      return {};
    }
  } else if (staged_.several(call)) {
    // Pieces of operations that differ could be the same at first.
    DeviceOffer nothing;
    nothing.call = call;
    if (const auto offers = hear_all(fabric, nothing, wait); !offers) return offers.status();
  }
  way_ = Way::kDeviceStaged;
  return staged_.run(fabric, call, in, out, wait, factor);
}

Status DeviceOperations::exchange(Fabric& fabric, const DevicePlace& place,
                                  const CollectiveCall& call, const std::byte* in,
                                  std::span<const Fabric::Run> gives, std::byte* out,
                                  std::span<const Fabric::Run> takes, const Wait& wait,
                                  double factor) {
  if (Status status = ready(place, wait); !status.ok()) return status;
  const size_t self = static_cast<size_t>(members_.rank());
  DeviceOffer mine;
  mine.call = call;
  for (const auto& runs : {gives, takes})
    for (const Fabric::Run& run : runs) mine.longest = std::max(mine.longest, uint64_t{run.size});
  // Shares that all ranks know, and others find in an array as this rank does.
  std::span<const Fabric::Run> shares;
  if (call.kind == CollectiveKind::kAllGather && gives[self].size == takes[self].size)
    shares = takes;
  if (call.kind == CollectiveKind::kReduceScatter && lie_side_by_side(gives, size_of(call.type)))
    shares = gives;
  std::optional<PeerArrays> peers;
  if (in_place_ && mine.longest >= kInPlaceBytes && !shares.empty() && !is_adasum(call)) {
    const size_t begin = call.kind == CollectiveKind::kAllGather ? gives[self].offset : 0;
    peers.emplace(peer_arrays({call, in + begin, out, factor, shares}));
    DeviceOffer offer = peers->offer();
    offer.longest = mine.longest;
    offer.shares = digest_of(shares);
    mine = offer;
  }
  const auto offers = hear_all(fabric, mine, wait);
  if (!offers) return offers.status();
  const auto alike = [&](const DeviceOffer& offer) { return offer.shares == mine.shares; };
  if (peers && std::ranges::all_of(*offers, alike)) {
    const auto done = read_in_place(fabric, *peers, *offers, wait);
    if (!done) return done.status();
    if (*done) {
      way_ = Way::kDeviceInPlace;
      return {};
    }
  }
  uint64_t longest = 0;
  for (const DeviceOffer& offer : *offers) longest = std::max(longest, offer.longest);
  way_ = Way::kDeviceStaged;
  return staged_.exchange(fabric, call, in, gives, out, takes, longest, wait, factor);
}

}  // namespace tw::collective

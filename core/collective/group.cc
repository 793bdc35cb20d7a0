// SPDX-License-Identifier: Apache-2.0
#include "collective/group.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "base/text.h"
#include "collective/hierarchical_fabric.h"
#include "collective/reduction.h"
#include "link/link.h"
#include "process/all_settings.h"

namespace tw::collective {
namespace {

// What a rank says of another.
constexpr uint8_t kMaps = 1, kReads = 2;

// What TENSORWIRE_ALLREDUCE says.
Result<Algorithm> forced_algorithm(Runtime& runtime) {
  const auto said = read_anew(runtime.kinds(), "TENSORWIRE_ALLREDUCE");
  if (!said) return said.status();
  for (size_t i = 1; i < kAlgorithms; ++i)
    if (*said == name_of(static_cast<Algorithm>(i))) return static_cast<Algorithm>(i);
  return Algorithm::kNone;
}

// The ranks of each host: those that can all map each other's memory. The same for all who know
// who `maps` whom.
std::vector<std::vector<int>> hosts_of(const std::vector<std::vector<bool>>& maps) {
  std::vector<std::vector<int>> hosts;
  for (size_t i = 0; i < maps.size(); ++i) {
    const auto host = std::ranges::find_if(hosts, [&](const std::vector<int>& ranks) {
      return std::ranges::all_of(ranks, [&](int rank) {
        const auto j = static_cast<size_t>(rank);
        return maps[i][j] && maps[j][i];
      });
    });
    if (host != hosts.end())
      host->push_back(static_cast<int>(i));
    else
      hosts.push_back({static_cast<int>(i)});
  }
  return hosts;
}

}  // namespace

Result<Ref<Group>> Group::make(Store& store, const Seat& seat, const Wait& wait) {
  auto runtime = Runtime::get();
  if (!runtime) return runtime.status();
  auto members = join(**runtime, store, seat, wait);
  if (!members) return members.status();
  auto group = Ref<Group>::adopt(new Group(std::move(*members)));
  if (seat.size > 1)
    if (Status status = group->choose_fabric(**runtime, seat, wait); !status.ok()) {
      group->members_->fail(status);
      return status;
    }
  return group;
}

// Each rank hands its stage to all whose links carry memory; the others run on other hosts.
Status Group::choose_fabric(Runtime& runtime, const Seat& seat, const Wait& wait) {
  auto forced = forced_algorithm(runtime);
  if (!forced) return forced.status();
  if (seat.algorithm != Algorithm::kNone) forced = seat.algorithm;
  auto host_id = read_anew(runtime.kinds(), "TENSORWIRE_HOST_ID");
  if (!host_id) return host_id.status();
  if (!seat.host_id.empty()) host_id = seat.host_id;
  auto own = OwnStage::make(runtime.arena(), seat.reads_memory);
  const auto others = [&](auto&& each) -> Status {
    for (int i = 0; i < size(); ++i)
      if (i != rank())
        if (Status status = each(i); !status.ok()) return status;
    return {};
  };
  const auto ranks = static_cast<size_t>(size()), self = static_cast<size_t>(rank());
  Status status = others([&](int i) {
    OutSegment segments[2];
    segments[0].data = reinterpret_cast<const std::byte*>(host_id->data());
    segments[0].size = host_id->size();
    // Elsewhere it would go as a copy, which is of no use.
    const bool maps = own && members_->link(i).profile().bulk == Bulk::kMap;
    if (maps) segments[1] = own->announcement();
    return send_message(*members_, i, kStageTag, {segments, maps ? 2u : 1u}, wait);
  });
  if (!status.ok()) return status;
  std::vector<std::optional<PeerStage>> stages(ranks);
  std::vector<std::optional<PeerMemory>> memories(ranks);
  std::vector<std::vector<bool>> maps(ranks, std::vector<bool>(ranks)), reads = maps;
  status = others([&](int i) {
    auto message = next_message(*members_, i, kStageTag, wait);
    if (!message) return message.status();
    auto mapped = PeerStage::map(std::move(*message), *host_id);
    if (!mapped || !own) return Status();
    stages[static_cast<size_t>(i)].emplace(std::move(*mapped));
    maps[self][static_cast<size_t>(i)] = true;
    if (auto reached = PeerMemory::open(stages[static_cast<size_t>(i)]->board().mark)) {
      memories[static_cast<size_t>(i)].emplace(std::move(*reached));
      reads[self][static_cast<size_t>(i)] = true;
    }
    return Status();
  });
  if (!status.ok()) return status;

  // What this rank was told to do, and then a byte for each rank: whether it maps that one's stage,
  // and whether it reads that one's memory.
  std::vector<std::byte> mine{static_cast<std::byte>(*forced)};
  for (size_t i = 0; i < ranks; ++i)
    mine.push_back(std::byte{
        static_cast<uint8_t>((maps[self][i] ? kMaps : 0) | (reads[self][i] ? kReads : 0))});
  status = others([&](int i) {
    OutSegment segment;
    segment.data = mine.data();
    segment.size = mine.size();
    return send_message(*members_, i, kNeighboursTag, {&segment, 1}, wait);
  });
  if (!status.ok()) return status;
  status = others([&](int i) -> Status {
    auto message = next_message(*members_, i, kNeighboursTag, wait);
    if (!message) return message.status();
    if (message->segments.size() != 1 || message->segments[0].size != mine.size())
      return {Code::kInternal, text({members_->name(i), " has sent no list of ", ranks, " ranks"})};
    const std::byte* const theirs = message->segments[0].data;
    if (theirs[0] != mine[0])
      return {Code::kFailedPrecondition,
              text({members_->name(i), " was started with another TENSORWIRE_ALLREDUCE than ",
                    members_->name(rank())})};
    for (size_t j = 0; j < ranks; ++j) {
      const auto said = std::to_integer<uint8_t>(theirs[1 + j]);
      maps[static_cast<size_t>(i)][j] = (said & kMaps) != 0;
      reads[static_cast<size_t>(i)][j] = (said & kReads) != 0;
    }
    return {};
  });
  if (!status.ok()) return status;
  const auto hosts = hosts_of(maps);
  // They all read each other, or none does: who gives an array knows whether it is read.
  const bool all_read = std::ranges::all_of(hosts, [&](const std::vector<int>& host) {
    return std::ranges::all_of(host, [&](int i) {
      return std::ranges::all_of(host, [&](int j) {
        return i == j || reads[static_cast<size_t>(i)][static_cast<size_t>(j)];
      });
    });
  });
  if (!all_read) memories.clear();
  auto made = make_fabric(hosts, std::move(own), std::move(stages), std::move(memories), *forced,
                          runtime.settings().spin);
  fabric_name_ = made->name();
  one_host_ = hosts.size() == 1;
  fabric_ = std::move(made);
  if (*forced != Algorithm::kNone)
    forced_ = std::make_unique<MessageFabric>(Team(*members_), *forced);
  return {};
}

std::unique_ptr<Fabric> Group::make_fabric(const std::vector<std::vector<int>>& hosts,
                                           Result<OwnStage> own,
                                           std::vector<std::optional<PeerStage>> stages,
                                           std::vector<std::optional<PeerMemory>> memories,
                                           Algorithm forced, Nanos spin) {
  if (hosts.size() == stages.size())
    return std::make_unique<MessageFabric>(Team(*members_), forced);
  const auto home = *std::ranges::find_if(hosts, [&](const std::vector<int>& ranks) {
    return std::ranges::find(ranks, rank()) != ranks.end();
  });
  std::unique_ptr<SharedFabric> local;
  if (home.size() > 1) {
    std::vector<std::optional<PeerStage>> neighbours;
    std::vector<std::optional<PeerMemory>> readable;
    for (const int i : home) {
      neighbours.push_back(std::move(stages[static_cast<size_t>(i)]));
      if (!memories.empty()) readable.push_back(std::move(memories[static_cast<size_t>(i)]));
    }
    local = std::make_unique<SharedFabric>(Team(*members_, home), std::move(*own),
                                           std::move(neighbours), std::move(readable), spin);
  }
  if (hosts.size() == 1) return local;
  return std::make_unique<HierarchicalFabric>(*members_, hosts, std::move(local), forced);
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

template <class Operation>
Status Group::on_device(const DevicePlace& place, Operation&& operation) {
  Status status;
  if (!on_device_ || !on_device_->is_for(place)) {
    auto made = DeviceOperations::make(*place.driver, place.device, *members_, one_host_);
    if (made)
      on_device_ = std::move(*made);
    else
      status = made.status();
  }
  if (status.ok()) status = operation(*on_device_);
  if (!status.ok()) members_->fail(status);
  return status;
}

Status Group::run(const CollectiveCall& call, const std::byte* in, std::byte* out, const Wait& wait,
                  const DevicePlace* place) {
  if (Status status = check(call); !status.ok()) return status;
  if (call.kind == CollectiveKind::kBarrier) place = nullptr;
  const MutexLock turn(turn_);
  if (Status status = usable(); !status.ok()) return status;
  if (!fabric_ && !place) return alone(call, in, out);
  if (!fabric_)
    return on_device(*place, [&](DeviceOperations& device) {
      return device.copy(*place, in, out, call.bytes(), wait);
    });
  Fabric& fabric = forced_ && call.kind == CollectiveKind::kAllReduce ? *forced_ : *fabric_;
  Status status = place ? on_device(*place,
                                    [&](DeviceOperations& device) {
                                      return device.run(fabric, *place, call, in, out, wait);
                                    })
                        : run_on(fabric, call, in, out, wait);
  if (status.ok()) tally_.add(call.kind, place ? on_device_->way() : fabric.way(), call.bytes());
  return status;
}

Status Group::all_to_all(const CollectiveCall& call, const std::byte* in,
                         std::span<const Fabric::Run> gives, std::byte* out,
                         std::span<const Fabric::Run> takes, const Wait& wait,
                         const DevicePlace* place) {
  if (Status status = check(call); !status.ok()) return status;
  const MutexLock turn(turn_);
  if (Status status = usable(); !status.ok()) return status;
  if (fabric_) {
    Fabric& fabric = *fabric_;
    Status status = place ? on_device(*place,
                                      [&](DeviceOperations& device) {
                                        return device.all_to_all(fabric, *place, call, in, gives,
                                                                 out, takes, wait);
                                      })
                          : fabric.all_to_all(call, in, gives, out, takes, wait);
    uint64_t bytes = 0;
    for (const Fabric::Run& run : gives) bytes += run.size;
    if (status.ok()) tally_.add(call.kind, place ? on_device_->way() : fabric.way(), bytes);
    return status;
  }
  if (gives[0].size != takes[0].size)
    return {Code::kInvalidArgument,
            text({"this rank gives itself ", gives[0].size, " bytes, and takes ", takes[0].size})};
  if (gives[0].size == 0) return {};
  const std::byte* const from = in + gives[0].offset;
  std::byte* const to = out + takes[0].offset;
  if (place)
    return on_device(*place, [&](DeviceOperations& device) {
      return device.copy(*place, from, to, gives[0].size, wait);
    });
  std::memcpy(to, from, gives[0].size);
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
  auto message = mailbox_.receive(rank, tag, wait);
  if (!message) return message.status();
  return copy_out(rank, *message, into);
}

Result<int> Group::receive_any(uint64_t tag, std::span<std::byte> into, const Wait& wait) {
  if (tag > kMaxTag || size() == 1)
    return Status{Code::kInvalidArgument,
                  "a message comes from another rank, with a tag below 2^62"};
  if (Status status = members_->failure(); !status.ok()) return status;
  auto first = mailbox_.receive_any(tag, wait);
  if (!first) return first.status();
  if (Status status = copy_out(first->rank, first->message, into); !status.ok()) return status;
  return first->rank;
}

Status Group::copy_out(int from, const InMessage& message, std::span<std::byte> into) const {
  if (message.payload_bytes != into.size())
    return {Code::kOutOfRange, text({"a message of ", message.payload_bytes, " bytes came from ",
                                     members_->name(from), " for memory of ", into.size()})};
  size_t at = 0;
  for (const InSegment& segment : message.segments) {
    if (segment.size != 0) std::memcpy(into.data() + at, segment.data, segment.size);
    at += segment.size;
  }
  return {};
}

}  // namespace tw::collective

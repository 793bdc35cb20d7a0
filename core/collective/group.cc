// SPDX-License-Identifier: Apache-2.0
#include "collective/group.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <new>
#include <utility>
#include <vector>

#include "base/rules_file.h"
#include "base/shortage.h"
#include "base/text.h"
#include "collective/by_parts.h"
#include "collective/hierarchical_fabric.h"
#include "collective/reduction.h"
#include "collective/share.h"
#include "collective/wire.h"
#include "link/link.h"
#include "process/all_settings.h"

namespace tw::collective {
namespace {

// What TENSORWIRE_ALLREDUCE says.
Result<Algorithm> forced_algorithm(Runtime& runtime) {
  const auto said = read_anew(runtime.kinds(), "TENSORWIRE_ALLREDUCE");
  if (!said) return said.status();
  for (size_t i = 0; i < wire::kAllReduceNames.size(); ++i)
    if (*said == wire::kAllReduceNames[i]) return static_cast<Algorithm>(i + 1);
  return Algorithm::kNone;
}

Result<bool> is_deterministic(Runtime& runtime, const Seat& seat) {
  if (seat.deterministic) return true;
  const auto said = read_anew(runtime.kinds(), "TENSORWIRE_DETERMINISTIC");
  if (!said) return said.status();
  return *said == "on";
}

struct Table {
  Tuning tuning;
  std::string why_not;  // it is not as it should be; empty: it is, or there is none
};

Result<Table> own_table(Runtime& runtime, const Seat& seat, bool deterministic) {
  auto said = seat.tuning.empty() ? read_anew(runtime.kinds(), "TENSORWIRE_TUNING")
                                  : Result<std::string>(seat.tuning);
  if (!said) return said.status();
  if (*said == "off") return Table{};
  const bool named = !said->empty() && *said != "auto";
  const std::string path = named ? *said : rules::path_in_cache("collectives.table");
  if (path.empty() || (deterministic && !named)) return Table{};
  if (deterministic)
    return Table{{},
                 text({"the table of tensorwire tune collectives, ", path,
                       ", is not used: the group is deterministic"})};
  auto read = Tuning::read(path);
  if (read) return Table{std::move(*read), {}};
  if (!named && read.status().code() == Code::kNotFound) return Table{};
  return Table{{},
               text({"the table of tensorwire tune collectives, ", path,
                     ", is not used: ", read.status().details()})};
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

// The kind of all links between hosts; nothing: there are several, and no way is known to be fast
// on all of them. The same for all who know what `kinds` each rank has.
std::optional<uint16_t> kind_between(const std::vector<std::vector<int>>& hosts,
                                     const std::vector<std::vector<uint16_t>>& kinds) {
  std::optional<uint16_t> first;
  for (const auto& here : hosts)
    for (const auto& there : hosts)
      for (const int i : here)
        for (const int j : there) {
          const uint16_t kind = kinds[static_cast<size_t>(i)][static_cast<size_t>(j)];
          if (&here == &there || kind == Neighbours::kNoLink) continue;
          if (first.value_or(kind) != kind) return std::nullopt;
          first = kind;
        }
  return first;
}

// Whether ranks may give or get different numbers of elements.
bool may_be_uneven(CollectiveKind kind) {
  return kind == CollectiveKind::kAllGather || kind == CollectiveKind::kReduceScatter ||
         kind == CollectiveKind::kAllToAll || kind == CollectiveKind::kGather ||
         kind == CollectiveKind::kScatter;
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

Group::~Group() {
  try {
    tell_trace();
  } catch (const std::bad_alloc&) {
    const Shortage shortage;
  }
}

void Group::tell_trace() const {
  auto runtime = Runtime::get();
  if (inherited() || !runtime || !(*runtime)->trace_file().wanted()) return;
  std::string line =
      text({"{\"pid\":", getpid(), ",\"group\":{\"rank\":", rank(), ",\"size\":", size(),
            ",\"links\":", members_->links(), ",\"fabric\":", quoted_json(fabric_name_),
            ",\"tuned\":", tuned_ ? "true" : "false", "},\"operations\":["});
  const char* comma = "";
  tally_.each([&](CollectiveKind kind, Way way, uint64_t operations, uint64_t bytes) {
    line += text({comma, "[", quoted_json(name_of(kind)), ",", quoted_json(name_of(way)), ",",
                  operations, ",", bytes, "]"});
    comma = ",";
  });
  (*runtime)->trace_file().add(line + "]}\n");
}

void Group::count(CollectiveKind kind, Way way, uint64_t bytes) {
  tally_.add(kind, way, bytes);
  Tally::of_process().add(kind, way, bytes);
}

// Each rank hands its stage to all whose links carry memory; the others run on other hosts.
Status Group::choose_fabric(Runtime& runtime, const Seat& seat, const Wait& wait) {
  auto forced = forced_algorithm(runtime);
  if (!forced) return forced.status();
  if (seat.algorithm != Algorithm::kNone) forced = seat.algorithm;
  const auto deterministic = is_deterministic(runtime, seat);
  if (!deterministic) return deterministic.status();
  if (*deterministic && *forced != Algorithm::kNone)
    return {Code::kFailedPrecondition,
            text({members_->name(rank()),
                  " was started with TENSORWIRE_ALLREDUCE, and the group is "
                  "to be deterministic: then no setting says how all-reduces go"})};
  auto table = own_table(runtime, seat, *deterministic);
  if (!table) return table.status();
  auto host_id = read_anew(runtime.kinds(), "TENSORWIRE_HOST_ID");
  if (!host_id) return host_id.status();
  if (!seat.host_id.empty()) host_id = seat.host_id;
  auto own = OwnStage::make(runtime.arena(), seat.reads_memory);
  const auto linked = [&](auto&& each) -> Status {
    for (int i = 0; i < size(); ++i)
      if (members_->linked(i))
        if (Status status = each(i); !status.ok()) return status;
    return {};
  };
  const auto ranks = static_cast<size_t>(size()), self = static_cast<size_t>(rank());
  Status status = linked([&](int i) {
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
  std::vector<std::vector<bool>> maps(ranks, std::vector<bool>(ranks)), reads = maps,
                                                                        maps_arrays = maps;
  status = linked([&](int i) {
    auto message = next_message(*members_, i, kStageTag, wait);
    if (!message) return message.status();
    auto mapped = PeerStage::map(std::move(*message), *host_id);
    if (!mapped || !own) return Status();
    stages[static_cast<size_t>(i)].emplace(std::move(*mapped));
    maps[self][static_cast<size_t>(i)] = true;
    const auto place = decode_stage_place(stages[static_cast<size_t>(i)]->board().place);
    if (!place)
      return Status(place.status().code(),
                    text({members_->name(i), ": ", place.status().details()}));
    if (auto reached = PeerMemory::open(place->mark)) {
      maps_arrays[self][static_cast<size_t>(i)] = ArenaArrays::reaches(*reached, *place);
      memories[static_cast<size_t>(i)].emplace(std::move(*reached));
      reads[self][static_cast<size_t>(i)] = true;
    }
    return Status();
  });
  if (!status.ok()) return status;

  Neighbours mine{*forced, *deterministic, table->tuning.digest(), {}, {}};
  for (size_t i = 0; i < ranks; ++i)
    mine.ranks.push_back(static_cast<uint8_t>(
        (maps[self][i] ? Neighbours::kMaps : 0) | (reads[self][i] ? Neighbours::kReads : 0) |
        (maps_arrays[self][i] ? Neighbours::kMapsArrays : 0)));
  for (int i = 0; i < size(); ++i)
    mine.kinds.push_back(members_->linked(i) ? runtime.kind(members_->link(i).transport())->code()
                                             : Neighbours::kNoLink);
  std::vector<std::vector<uint16_t>> kinds(ranks);
  kinds[self] = mine.kinds;
  const auto said = share(*members_, kNeighboursTag, encode_neighbours(mine), wait);
  if (!said) return said.status();
  why_not_tuned_ = table->why_not;
  tuned_ = mine.tuning != 0;
  for (int i = 0; i < size(); ++i) {
    if (i == rank()) continue;
    const auto theirs = decode_neighbours((*said)[static_cast<size_t>(i)], ranks);
    if (!theirs)
      return {theirs.status().code(), text({members_->name(i), ": ", theirs.status().details()})};
    if (theirs->deterministic != mine.deterministic) {
      const int with = mine.deterministic ? rank() : i, without = mine.deterministic ? i : rank();
      return {Code::kFailedPrecondition,
              text({members_->name(with), " has joined a deterministic group, and ",
                    members_->name(without), " one that is not"})};
    }
    if (theirs->forced != mine.forced)
      return {Code::kFailedPrecondition,
              text({members_->name(i), " was started with another TENSORWIRE_ALLREDUCE than ",
                    members_->name(rank())})};
    if (theirs->tuning != mine.tuning) {
      tuned_ = false;
      if (why_not_tuned_.empty())
        why_not_tuned_ =
            text({"the tables of tensorwire tune collectives are not used: ", members_->name(i),
                  " has another one than ", members_->name(rank())});
    }
    for (size_t j = 0; j < ranks; ++j) {
      maps[static_cast<size_t>(i)][j] = (theirs->ranks[j] & Neighbours::kMaps) != 0;
      reads[static_cast<size_t>(i)][j] = (theirs->ranks[j] & Neighbours::kReads) != 0;
      maps_arrays[static_cast<size_t>(i)][j] = (theirs->ranks[j] & Neighbours::kMapsArrays) != 0;
    }
    kinds[static_cast<size_t>(i)] = theirs->kinds;
  }
  if (!tuned_) table->tuning = {};
  const auto hosts = hosts_of(maps);
  const auto kind = kind_between(hosts, kinds);
  if (tuned_ && !kind && hosts.size() > 1) {
    // Rules for what ranks of a host do hold.
    tuned_ = hosts.size() < ranks;
    why_not_tuned_ =
        "no rule of the table of tensorwire tune collectives holds between hosts: ranks reach each "
        "other by different transports";
  }
  // They all read each other, or none does: who gives an array knows whether it is read.
  const auto all = [&](const std::vector<std::vector<bool>>& can) {
    return std::ranges::all_of(hosts, [&](const std::vector<int>& host) {
      return std::ranges::all_of(host, [&](int i) {
        return std::ranges::all_of(host, [&](int j) {
          return i == j || can[static_cast<size_t>(i)][static_cast<size_t>(j)];
        });
      });
    });
  };
  if (!all(reads)) memories.clear();
  Arena* const arena = all(maps_arrays) ? &runtime.arena() : nullptr;
  std::string_view between;  // what messages between hosts go by
  for (const auto& each : runtime.kinds())
    if (kind == each->code()) between = each->name();
  auto made = make_fabric(hosts, std::move(own), std::move(stages), std::move(memories), arena,
                          *forced, table->tuning, between, runtime.settings().spin);
  fabric_name_ = made->name();
  one_host_ = hosts.size() == 1;
  fabric_ = std::move(made);
  if (*forced != Algorithm::kNone && one_host_)
    forced_ = std::make_unique<MessageFabric>(Team(*members_), *forced, Ways(),
                                              static_cast<SharedFabric*>(fabric_.get()));
  return {};
}

std::unique_ptr<Fabric> Group::make_fabric(const std::vector<std::vector<int>>& hosts,
                                           Result<OwnStage> own,
                                           std::vector<std::optional<PeerStage>> stages,
                                           std::vector<std::optional<PeerMemory>> memories,
                                           Arena* arena, Algorithm forced, const Tuning& tuning,
                                           std::string_view between, Nanos spin) {
  const auto home = *std::ranges::find_if(hosts, [&](const std::vector<int>& ranks) {
    return std::ranges::find(ranks, rank()) != ranks.end();
  });
  if (hosts.size() == stages.size())
    return std::make_unique<MessageFabric>(Team(*members_), forced, tuning.of(between, size()));
  std::unique_ptr<SharedFabric> local;
  if (home.size() > 1) {
    std::vector<std::optional<PeerStage>> neighbours;
    std::vector<std::optional<PeerMemory>> readable;
    for (const int i : home) {
      neighbours.push_back(std::move(stages[static_cast<size_t>(i)]));
      if (!memories.empty()) readable.push_back(std::move(memories[static_cast<size_t>(i)]));
    }
    local = std::make_unique<SharedFabric>(
        Team(*members_, home), std::move(*own), std::move(neighbours), std::move(readable), arena,
        tuning.of(kMemoryFabric, static_cast<int>(home.size())), spin);
  }
  if (hosts.size() == 1) return local;
  return std::make_unique<HierarchicalFabric>(*members_, hosts, std::move(local), forced, tuning,
                                              between);
}

void Group::abort(std::string_view why) {
  members_->fail({Code::kCancelled, text({members_->name(rank()), " gave the group up: ", why})});
}

Status Group::check_rank(int rank) const {
  if (rank >= 0 && rank < size()) return {};
  return {Code::kInvalidArgument,
          text({"there is no rank ", rank, " in a group of ", size(), " ranks"})};
}

Status Group::check(const CollectiveCall& call, double factor) const {
  if (has_root(call.kind))
    if (Status status = check_rank(call.root); !status.ok()) return status;
  if (reduces(call.kind) && !reducible(call.type, call.op))
    return {Code::kInvalidArgument,
            text({"there is no ", name_of(call.op), " of ", name_of(call.type)})};
  const bool sums = call.op == ReduceOp::kSum || call.op == ReduceOp::kAverage;
  if (factor != 1 && !(reduces(call.kind) && sums && is_float(call.type)))
    return {Code::kInvalidArgument,
            text({"sums and averages of floats have a factor, and no ", call.text()})};
  if (call.count > (uint64_t{1} << 48) && call.count != CollectiveCall::kUneven)
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

// The others may be at it already.
Status Group::no_memory(const CollectiveCall& call) {
  const Shortage shortage;
  Status why{Code::kResourceExhausted,
             text({members_->name(rank()), " has no memory for ", call.text()})};
  members_->fail(why);
  return why;
}

Status Group::alone(const CollectiveCall& call, const std::byte* in, std::byte* out) const {
  if (reduces(call.kind))
    tw::reduce(call.type, call.op, {&in, 1}, out, call.count, 1);
  else if (out && in && out != in)
    std::memcpy(out, in, call.bytes());
  return {};
}

Status Group::on_host(Fabric& fabric, const CollectiveCall& call, const std::byte* in,
                      std::byte* out, const Wait& wait) {
  if (!is_adasum(call)) return fabric.run(call, in, out, wait);
  return ByParts(fabric, rank(), size(), call, wait).run(in, out);
}

template <class Operation>
Status Group::on_device(const DevicePlace& place, Operation&& operation) {
  Status status;
  if (!on_device_ || !on_device_->is_for(place)) {
    const bool in_place = on_device_ ? on_device_->in_place() : one_host_;
    auto made = DeviceOperations::make(*place.driver, place.device, *members_, in_place);
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
                  double factor, const DevicePlace* place) try {
  if (call.kind == CollectiveKind::kBarrier) place = nullptr;
  if (call.count == CollectiveCall::kUneven)
    return {Code::kInvalidArgument, "arrays of uneven shares have a run for each rank"};
  if (Status status = check(call, factor); !status.ok()) return status;
  const MutexLock turn(turn_);
  if (Status status = usable(); !status.ok()) return status;
  std::unique_ptr<std::byte[]> scaled;
  if (factor != 1 && !place) {
    const bool shares = call.kind == CollectiveKind::kReduceScatter;
    const size_t count = call.count * (shares ? static_cast<size_t>(size()) : 1);
    std::byte* to = out;
    if (shares || !out) {
      scaled = std::make_unique_for_overwrite<std::byte[]>(count * size_of(call.type));
      to = scaled.get();
    }
    scale(call.type, factor, in, to, count);
    in = to;
  }
  if (!fabric_ && !place) return alone(call, in, out);
  if (!fabric_)
    return on_device(*place, [&](DeviceOperations& device) {
      return device.alone(*place, call, in, out, wait, factor);
    });
  const bool forced =
      forced_ && call.kind == CollectiveKind::kAllReduce && call.op != ReduceOp::kAdasum;
  Fabric& fabric = forced ? *forced_ : *fabric_;
  Status status = place
                      ? on_device(*place,
                                  [&](DeviceOperations& device) {
                                    return device.run(fabric, *place, call, in, out, wait, factor);
                                  })
                      : on_host(fabric, call, in, out, wait);
  if (status.ok()) count(call.kind, place ? on_device_->way() : fabric.way(), call.bytes());
  return status;
} catch (const std::bad_alloc&) {
  return no_memory(call);
}

Status Group::exchange(const CollectiveCall& call, const std::byte* in,
                       std::span<const Fabric::Run> gives, std::byte* out,
                       std::span<const Fabric::Run> takes, const Wait& wait, double factor,
                       const DevicePlace* place) try {
  if (!may_be_uneven(call.kind))
    return {Code::kInvalidArgument, "the operation has no uneven shares"};
  if (Status status = check(call, factor); !status.ok()) return status;
  const bool reduces_shares = call.kind == CollectiveKind::kReduceScatter;
  const auto self = static_cast<size_t>(rank());
  if (const size_t own = gives[self].size; !reduces_shares && own != takes[self].size)
    return {Code::kInvalidArgument,
            text({"this rank gives itself ", own, " bytes, and takes ", takes[self].size})};
  uint64_t bytes = 0;
  for (const Fabric::Run& run : call.kind == CollectiveKind::kAllGather ? gives.first(1) : gives)
    bytes += run.size;
  const MutexLock turn(turn_);
  if (Status status = usable(); !status.ok()) return status;
  std::unique_ptr<std::byte[]> scaled;
  std::vector<Fabric::Run> side_by_side;
  if (factor != 1 && !place) {
    scaled = std::make_unique_for_overwrite<std::byte[]>(bytes);
    size_t at = 0;
    for (const Fabric::Run& run : gives) {
      scale(call.type, factor, in + run.offset, scaled.get() + at, run.size / size_of(call.type));
      side_by_side.push_back({at, run.size});
      at += run.size;
    }
    in = scaled.get();
    gives = side_by_side;
  }
  if (!fabric_) {
    const Fabric::Run given = gives[0],
                      taken = reduces_shares ? Fabric::Run{0, given.size} : takes[0];
    CollectiveCall share = call;
    share.count = given.size / size_of(call.type);
    if (!place) return alone(share, in + given.offset, out + taken.offset);
    return on_device(*place, [&](DeviceOperations& device) {
      return device.alone(*place, share, in + given.offset, out + taken.offset, wait, factor);
    });
  }
  Fabric& fabric = *fabric_;
  const auto run = [&]() TW_REQUIRES(turn_) {
    if (place)
      return on_device(*place, [&](DeviceOperations& device) {
        return device.exchange(fabric, *place, call, in, gives, out, takes, wait, factor);
      });
    if (reduces_shares)
      return ByParts(fabric, rank(), size(), call, wait).reduce_scatter(in, gives, out);
    return fabric.all_to_all(call, in, gives, out, takes, wait);
  };
  Status status = run();
  if (status.ok()) count(call.kind, place ? on_device_->way() : fabric.way(), bytes);
  return status;
} catch (const std::bad_alloc&) {
  return no_memory(call);
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

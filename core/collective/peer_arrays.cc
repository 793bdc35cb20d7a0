// SPDX-License-Identifier: Apache-2.0
#include "collective/peer_arrays.h"

#include <algorithm>

#include "base/text.h"
#include "collective/part.h"

namespace tw::collective {

Fabric::Run PeerArrays::share(int rank) const {
  const auto i = static_cast<size_t>(rank);
  return shares_.empty() ? Fabric::Run{i * call_.bytes(), call_.bytes()} : shares_[i];
}

bool PeerArrays::gives_in(int rank) const {
  switch (call_.kind) {
    case CollectiveKind::kAllReduce:
    case CollectiveKind::kReduceScatter:
      return true;
    case CollectiveKind::kAllGather:
      return share(rank).size != 0;
    case CollectiveKind::kReduce:
    case CollectiveKind::kGather:
      return rank != call_.root;
    case CollectiveKind::kScatter:
      return rank == call_.root;
    default:
      return false;
  }
}

bool PeerArrays::gives_out(int rank) const {
  return call_.kind == CollectiveKind::kAllReduce ||
         (call_.kind == CollectiveKind::kBroadcast && rank == call_.root);
}

bool PeerArrays::reads_in(int rank) const {
  const int self = members_.rank();
  const bool to_root =
      call_.kind == CollectiveKind::kReduce || call_.kind == CollectiveKind::kGather;
  return rank != self && gives_in(rank) && (!to_root || self == call_.root);
}

bool PeerArrays::reads_out(int rank) const { return rank != members_.rank() && gives_out(rank); }

DeviceOffer::Array PeerArrays::offer(const std::byte* array) {
  if (array == nullptr || reinterpret_cast<uintptr_t>(array) % size_of(call_.type) != 0) return {};
  const auto place = exported_.place_of(array, operation_);
  if (!place) return {};
  return {true, place->handle, place->offset};
}

DeviceOffer PeerArrays::offer() {
  const uint64_t generation = exported_.generation(operation_);
  return {call_, offer(in_), offer(out_), generation, factor_};
}

Result<const std::byte*> PeerArrays::reach(int rank, const DeviceOffer::Array& array,
                                           size_t bytes) {
  const auto opened = peers_.open(rank, array.handle, operation_);
  if (!opened) return opened.status();
  if (array.offset > opened->size || bytes > opened->size - array.offset)
    return Status{Code::kOutOfRange,
                  text({members_.name(rank), " has offered less memory than ", bytes, " bytes"})};
  return opened->base + array.offset;
}

bool PeerArrays::all_offered(const std::vector<DeviceOffer>& offers) const {
  for (size_t i = 0; i < offers.size(); ++i) {
    const int rank = static_cast<int>(i);
    if (gives_in(rank) && !offers[i].in.offered) return false;
    if (gives_out(rank) && !offers[i].out.offered) return false;
  }
  return true;
}

Status PeerArrays::open(const std::vector<DeviceOffer>& offers) {
  const auto ranks = static_cast<size_t>(members_.size());
  ins_.assign(ranks, nullptr);
  outs_.assign(ranks, nullptr);
  const bool for_each =
      call_.kind == CollectiveKind::kReduceScatter || call_.kind == CollectiveKind::kScatter;
  const Fabric::Run last = share(members_.size() - 1);
  for (size_t i = 0; i < ranks; ++i) {
    const int rank = static_cast<int>(i);
    peers_.hear(rank, offers[i].generation);
    if (reads_in(rank)) {
      const size_t bytes = for_each ? last.offset + last.size : share(rank).size;
      const auto reached = reach(rank, offers[i].in, bytes);
      if (!reached) return reached.status();
      ins_[i] = *reached;
    }
    if (reads_out(rank)) {
      const auto reached = reach(rank, offers[i].out, call_.bytes());
      if (!reached) return reached.status();
      outs_[i] = *reached;
    }
  }
  const auto self = static_cast<size_t>(members_.rank());
  ins_[self] = in_;
  outs_[self] = out_;
  if (!reduces(call_.kind)) return {};
  if (ranks > ReductionArguments::kMaxInputs)
    return {Code::kFailedPrecondition, "too many ranks for a kernel"};
  const auto has_factor = [](const DeviceOffer& offer) { return offer.factor != 1; };
  if (std::ranges::any_of(offers, has_factor))
    for (const DeviceOffer& offer : offers) factors_.push_back(offer.factor);
  const auto kernel = reduction_.kernel(device_, call_.type, call_.op, !factors_.empty());
  return kernel ? Status() : kernel.status();
}

std::vector<const std::byte*> PeerArrays::all_in(size_t offset) const {
  std::vector<const std::byte*> all(ins_);
  for (const std::byte*& each : all) each += offset;
  return all;
}

Status PeerArrays::first_phase() {
  const size_t width = size_of(call_.type);
  const int self = members_.rank(), ranks = members_.size();
  const Fabric::Run mine = share(self);
  const auto reduce_to = [&](std::byte* out, size_t offset, size_t count) {
    return reduction_.start(device_, call_.type, call_.op, all_in(offset), factors_, out, count,
                            static_cast<unsigned>(ranks), queue_.stream());
  };
  const auto gather_to = [&](std::byte* out) -> Status {
    for (int rank = 0; rank < ranks; ++rank) {
      const Fabric::Run run = share(rank);
      const std::byte* const from = ins_[static_cast<size_t>(rank)];
      if (from == out + run.offset) continue;
      if (Status status = queue_.copy(out + run.offset, from, run.size); !status.ok())
        return status;
    }
    return {};
  };
  switch (call_.kind) {
    case CollectiveKind::kAllReduce: {
      const Part part = part_of(call_.count, width, self, ranks);
      return reduce_to(out_ + part.begin * width, part.begin * width, part.size());
    }
    case CollectiveKind::kReduce:
      return self == call_.root ? reduce_to(out_, 0, call_.count) : Status();
    case CollectiveKind::kReduceScatter:
      return reduce_to(out_, mine.offset, mine.size / width);
    case CollectiveKind::kAllGather:
      return gather_to(out_);
    case CollectiveKind::kGather:
      return self == call_.root ? gather_to(out_) : Status();
    case CollectiveKind::kBroadcast:
      return self == call_.root
                 ? Status()
                 : queue_.copy(out_, outs_[static_cast<size_t>(call_.root)], call_.bytes());
    case CollectiveKind::kScatter: {
      const std::byte* const from = ins_[static_cast<size_t>(call_.root)] + mine.offset;
      return from == out_ ? Status() : queue_.copy(out_, from, mine.size);
    }
    default:
      return {Code::kInternal, "this operation does not go in place"};
  }
}

Status PeerArrays::ended(const Wait& wait) {
  Status status = queue_.mark();
  return status.ok() ? queue_.await(members_, wait) : status;
}

Status PeerArrays::run(Fabric& host, const Wait& wait) {
  Status status = first_phase();
  if (status.ok()) status = ended(wait);
  if (!status.ok() || call_.kind != CollectiveKind::kAllReduce) return status;
  // Each rank has reduced its part of all arrays, and now takes the others' parts.
  status = host.run({}, nullptr, nullptr, wait);
  const size_t width = size_of(call_.type);
  for (int rank = 0; status.ok() && rank < members_.size(); ++rank) {
    if (rank == members_.rank()) continue;
    const Part part = part_of(call_.count, width, rank, members_.size());
    status =
        queue_.copy(out_ + part.begin * width,
                    outs_[static_cast<size_t>(rank)] + part.begin * width, part.size() * width);
  }
  return status.ok() ? ended(wait) : status;
}

void PeerArrays::close() {
  // Memory that a device may still read stays open.
  if (queue_.settle())
    peers_.trim(operation_);
  else
    peers_.abandon();
}

}  // namespace tw::collective

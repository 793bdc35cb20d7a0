// SPDX-License-Identifier: Apache-2.0
// Operations of ranks of one host on devices that read each other's memory: arrays are reduced and
// copied from where they lie.
#pragma once

#include <span>
#include <vector>

#include "collective/device_queue.h"
#include "collective/device_reduction.h"
#include "collective/fabric.h"
#include "collective/peer_allocations.h"
#include "collective/wire.h"

namespace tw::collective {

// What this rank calls.
struct DeviceCall {
  const CollectiveCall& call;
  const std::byte* in;
  std::byte* out;
  double factor;
  // Of an all-gather or a reduce-scatter of uneven shares: those of all ranks, in `out` and in
  // `in`. Else empty: they are even.
  std::span<const Fabric::Run> shares;
};

// Of one operation, which goes: offer() of all ranks, open(), run() if all of them could, close().
// Then nobody reads anything of another rank's any more. The arguments outlive it.
class PeerArrays {
 public:
  // `operation`: how many of these there have been.
  PeerArrays(int device, DeviceReduction& reduction, DeviceQueue& queue,
             ExportedAllocations& exported, PeerAllocations& peers, const Members& members,
             const DeviceCall& mine, uint64_t operation)
      : device_(device),
        reduction_(reduction),
        queue_(queue),
        exported_(exported),
        peers_(peers),
        members_(members),
        call_(mine.call),
        in_(mine.in),
        out_(mine.out),
        factor_(mine.factor),
        shares_(mine.shares),
        operation_(operation) {}

  // How others reach the arrays of this rank, as far as they can.
  DeviceOffer offer();
  // Whether each array that another rank reads is offered. `offers` of all ranks, in their order:
  // so all come to the same.
  bool all_offered(const std::vector<DeviceOffer>& offers) const;
  // Opens what this rank reads of others, all of which is offered, and compiles what it reduces
  // with.
  Status open(const std::vector<DeviceOffer>& offers);
  // Does this rank's part. `host`: where ranks wait for each other.
  Status run(Fabric& host, const Wait& wait);
  void close();

 private:
  // Whether others read a rank's array.
  bool gives_in(int rank) const;
  bool gives_out(int rank) const;
  // What this rank reads of another one.
  bool reads_in(int rank) const;
  bool reads_out(int rank) const;

  Fabric::Run share(int rank) const;
  DeviceOffer::Array offer(const std::byte* array);
  // Where `bytes` of what is offered begin here.
  Result<const std::byte*> reach(int rank, const DeviceOffer::Array& array, size_t bytes);
  // Of all ranks, `in` from an offset on.
  std::vector<const std::byte*> all_in(size_t offset) const;
  Status first_phase();
  Status ended(const Wait& wait);

  const int device_;
  DeviceReduction& reduction_;
  DeviceQueue& queue_;
  ExportedAllocations& exported_;
  PeerAllocations& peers_;
  const Members& members_;
  const CollectiveCall& call_;
  const std::byte* const in_;
  std::byte* const out_;
  const double factor_;
  const std::span<const Fabric::Run> shares_;
  const uint64_t operation_;
  std::vector<const std::byte*> ins_, outs_;  // by rank; null: not needed
  std::vector<double> factors_;               // by rank; empty: all are 1
};

}  // namespace tw::collective

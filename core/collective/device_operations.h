// SPDX-License-Identifier: Apache-2.0
// A group's operations on arrays in the memory of a device, by means of those on the host's.
#pragma once

#include <memory>
#include <span>

#include "collective/device_place.h"
#include "collective/fabric.h"
#include "collective/peer_arrays.h"
#include "collective/staged_operations.h"

namespace tw::collective {

// Not thread-safe. As Fabric, with addresses of the device; all ranks call it, each for a device of
// its own. An operation that fails has not ended the group: the caller does that. Nothing of the
// arrays is in use when one returns, unless a device has been given up (DeviceQueue::settle).
class DeviceOperations {
 public:
  // From so many bytes on devices of one host read each other's memory; and where one rank alone
  // works then, while the others wait. Measured with ranks that share a device, which they then use
  // in turn.
  static constexpr size_t kInPlaceBytes = 1 << 20, kInPlaceAloneBytes = 4 << 10;

  // `in_place`: all ranks run on one host, and none has failed to open another one's memory.
  static Result<std::unique_ptr<DeviceOperations>> make(device::Driver& driver, int device,
                                                        const Members& members, bool in_place);

  bool is_for(const DevicePlace& place) const {
    return place.driver == &driver_ && place.device == device_;
  }
  // Whether arrays are read where they lie, if they are offered; all ranks say the same.
  bool in_place() const { return in_place_; }
  // How the last operation went.
  Way way() const { return way_; }

  // Without other ranks: `in` to `out`. `factor`: as Group::run has it.
  Status alone(const DevicePlace& place, const CollectiveCall& call, const std::byte* in,
               std::byte* out, const Wait& wait, double factor);
  // As Group::run. `fabric`: of the host, for what call.kind names.
  Status run(Fabric& fabric, const DevicePlace& place, const CollectiveCall& call,
             const std::byte* in, std::byte* out, const Wait& wait, double factor);
  // As Group::exchange.
  Status exchange(Fabric& fabric, const DevicePlace& place, const CollectiveCall& call,
                  const std::byte* in, std::span<const Fabric::Run> gives, std::byte* out,
                  std::span<const Fabric::Run> takes, const Wait& wait, double factor);

 private:
  DeviceOperations(device::Driver& driver, int device, const Members& members, bool in_place,
                   DeviceQueue queue)
      : driver_(driver),
        device_(device),
        members_(members),
        reduction_(driver),
        exported_(driver, device),
        peers_(driver, device),
        queue_(std::move(queue)),
        staged_(driver, device, members),
        in_place_(in_place) {}

  // Whether it is to be tried.
  bool in_place(const CollectiveCall& call) const;
  Status ready(const DevicePlace& place, const Wait& wait);
  // Says what this rank calls, and hears it of all. ABORTED: they do not call the same.
  Result<std::vector<DeviceOffer>> hear_all(Fabric& fabric, const DeviceOffer& mine,
                                            const Wait& wait);
  // Of the host: what each rank's bytes are, side by side.
  Status gather(Fabric& fabric, const CollectiveCall& call, std::span<const std::byte> mine,
                std::byte* all, const Wait& wait);
  PeerArrays peer_arrays(const DeviceCall& mine);
  // After all have heard each other. False: it has to be staged, on all ranks.
  Result<bool> read_in_place(Fabric& fabric, PeerArrays& peers,
                             const std::vector<DeviceOffer>& offers, const Wait& wait);

  device::Driver& driver_;
  const int device_;
  const Members& members_;
  DeviceReduction reduction_;
  ExportedAllocations exported_;
  PeerAllocations peers_;
  DeviceQueue queue_;
  StagedOperations staged_;
  bool in_place_;       // no rank has failed to open another one's memory
  uint64_t tried_ = 0;  // so many operations have been tried in place
  Way way_ = Way::kDeviceStaged;
};

}  // namespace tw::collective

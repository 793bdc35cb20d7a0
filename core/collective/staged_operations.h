// SPDX-License-Identifier: Apache-2.0
// Operations on arrays of a device by way of the host's memory: what is copied there goes as the
// operation of the host does.
#pragma once

#include <functional>
#include <span>

#include "collective/fabric.h"
#include "collective/staged_pieces.h"

namespace tw::collective {

// Not thread-safe. `in` and `out` are addresses of the device; errors are those of Fabric, and what
// went wrong on the device. `factor`: as Group::run has it.
class StagedOperations {
 public:
  StagedOperations(device::Driver& driver, int device, const Members& members)
      : members_(members), staged_(driver, device, members) {}

  // Whether run() takes several pieces.
  bool several(const CollectiveCall& call) const;
  // Without other ranks: what the factor makes of `in`.
  Status scale(const CollectiveCall& call, const std::byte* in, std::byte* out, const Wait& wait,
               double factor);
  // As Group::run.
  Status run(Fabric& fabric, const CollectiveCall& call, const std::byte* in, std::byte* out,
             const Wait& wait, double factor);
  // As Group::exchange. `longest`: of the runs of all ranks, in bytes, so that all cut alike.
  Status exchange(Fabric& fabric, const CollectiveCall& call, const std::byte* in,
                  std::span<const Fabric::Run> gives, std::byte* out,
                  std::span<const Fabric::Run> takes, size_t longest, const Wait& wait,
                  double factor);

 private:
  using OnHost = std::function<Status(std::byte* in, std::byte* out)>;

  // The whole arrays are on the host while the operation runs. `in_place`: it has its result where
  // its data was.
  Status whole(const std::byte* in, size_t in_bytes, std::byte* out, size_t out_bytes,
               bool in_place, const OnHost& operation, const Wait& wait);

  const Members& members_;
  StagedPieces staged_;
};

}  // namespace tw::collective

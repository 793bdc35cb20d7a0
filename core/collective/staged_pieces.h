// SPDX-License-Identifier: Apache-2.0
// Arrays on a device, moved piece by piece through pinned memory of the host.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "collective/device_queue.h"
#include "collective/fabric.h"

namespace tw::collective {

// Not thread-safe. Each of several slots has a piece: one is copied in and another one out while a
// third is worked on.
class StagedPieces {
 public:
  using Runs = std::vector<Fabric::Run>;
  // An array, and what of it is moved; no runs: there is none.
  struct Given {
    const std::byte* data = nullptr;
    Runs runs;
  };
  struct Taken {
    std::byte* data = nullptr;
    Runs runs;
  };
  // A piece in the host's memory: of each run what lies between the same two offsets, one after
  // the other. A step may write over `in`.
  struct OnHost {
    std::byte* in;
    Runs gives;
    std::byte* out;
    Runs takes;
  };
  using Step = std::function<Status(uint64_t piece, const OnHost& memory)>;

  static constexpr size_t kSlots = 3;
  static constexpr size_t kSlotBytes = 2 << 20;
  // How much of each of so many runs goes into a piece, in whole elements of any type.
  static size_t piece_bytes(size_t runs);

  StagedPieces(device::Driver& driver, int device, const Members& members)
      : driver_(driver), device_(device), members_(members) {}

  // Takes `in` to the host by pieces of `bytes` of each run, as so many steps, and what those leave
  // to `out`. `in_place`: a step has its result where its data was, in one run.
  Status run(const Given& in, const Taken& out, uint64_t pieces, size_t bytes, bool in_place,
             const Step& step, const Wait& wait);

 private:
  struct PinnedSlot {
    DeviceQueue queue;
    device::PinnedMemory memory;
    size_t capacity;
  };
  Status make_slot(size_t slot, size_t bytes);
  // Until nothing of the arrays is in use any more.
  void settle();
  Status pieces(const Given& in, const Taken& out, uint64_t pieces, size_t bytes, bool in_place,
                const Step& step, const Wait& wait);

  device::Driver& driver_;
  const int device_;
  const Members& members_;
  std::optional<PinnedSlot> slots_[kSlots];
};

}  // namespace tw::collective

// SPDX-License-Identifier: Apache-2.0
// Collectives of ranks that share a host, over memory that all of them read
// (core/collective/stage.h).
//
// What fits into a slot takes one step: each rank publishes its data, waits for the others', and
// reduces all of it by itself. More is cut into chunks that go over the stage: each rank copies in
// what others will reduce, reduces its part of all ranks' chunks, and copies out the parts that
// others have reduced. The three are a pipeline over consecutive chunks, so that ranks wait little.
// Arrays that lie in the ranks' arenas are read there, through a mapping. Other large ones that are
// only moved are read where they lie, where the kernel permits it and nobody would be idle
// meanwhile.
// The latency-optimal and the bandwidth-optimal half of a hybrid allreduce (A. A. Awan et al.,
// CCGRID 2019; staged through shared memory as in R. Graham and G. Shipman, EuroPVM/MPI 2008).
#pragma once

#include <optional>
#include <utility>
#include <vector>

#include "collective/fabric.h"
#include "collective/scattered.h"
#include "collective/shared_stages.h"
#include "collective/tuning.h"

namespace tw::collective {

// Not thread-safe: one operation at a time.
class SharedFabric final : public Fabric {
 public:
  // As SharedStages has them. Without `memories`, large arrays go over the stage.
  SharedFabric(Team team, OwnStage own, std::vector<std::optional<PeerStage>> peers,
               std::vector<std::optional<PeerMemory>> memories, Arena* arena, Ways tuned,
               Nanos spin)
      : rank_(team.rank()),
        size_(team.size()),
        tuned_(std::move(tuned)),
        stages_(std::move(team), std::move(own), std::move(peers), std::move(memories), arena,
                spin) {}

  const char* name() const override { return "shared memory"; }
  Way way() const override { return way_; }
  Status run(const CollectiveCall& call, const std::byte* in, std::byte* out,
             const Wait& wait) override;
  Status all_to_all(const CollectiveCall& call, const std::byte* in, std::span<const Run> gives,
                    std::byte* out, std::span<const Run> takes, const Wait& wait) override;

  // Parts of an operation that goes beyond this host. Ranks agree on `call`; `part` has the kind,
  // type, op and count of what moves here. The team's arrays are reduced to one place; data goes to
  // all, whatever places it lies in, the same ones on all ranks; an array of shares of the team
  // goes to those that they are for.
  Status reduce_to(int root, const CollectiveCall& call, const CollectiveCall& part,
                   const std::byte* in, std::byte* out, const Wait& wait);
  Status broadcast_from(int root, const CollectiveCall& call, const Scattered& data,
                        const Wait& wait);
  Status scatter_from(int root, const CollectiveCall& call, const CollectiveCall& part,
                      const std::byte* in, std::byte* out, const Wait& wait);
  // One that goes another way, whose ranks of this host say on their boards what they call: those
  // that call something else are found by whoever waits for them, or looks at these.
  Status announce(const CollectiveCall& call, const Wait& wait) {
    return stages_.end(stages_.enter({call, wait}));
  }
  // See SharedStages. `begun`: the operation has had a part here.
  Status disagreement(const CollectiveCall& call, bool begun) const {
    return stages_.disagreement(call, begun);
  }

 private:
  // Without a rule for it. Up to here each rank reduces everything by itself: a second round costs
  // more than the work.
  static constexpr size_t kOneStep = 16 << 10;
  static_assert(kOneStep <= StageLayout::kSlot);
  // From here on arrays are read where they lie, if no rank has to wait for the stage of another
  // one then: a system call and the kernel's look at the pages cost less than the second copy. What
  // is gathered, and what one of two ranks gives to the other, goes over the stage: it is filled
  // once, while others copy on past the caches.
  static constexpr size_t kReadInPlace = 4 << 20;
  // Which way an operation goes that moves so many bytes between two ranks.
  Way choose(CollectiveKind kind, size_t bytes) const;
  // Of one that would go in place: whether this rank's array is to be read there. Of small pages
  // the kernel looks at each, which costs more than the second copy.
  bool lends(CollectiveKind kind, size_t bytes, const std::byte* array, size_t size) const;

  Status operate(const Pending& now, const std::byte* in, std::byte* out);
  // `out` is null where the result is not wanted.
  Status reduction(const Pending& now, const std::byte* in, std::byte* out);
  Status one_step_reduction(const Pending& now, const std::byte* in, std::byte* out);
  Status staged_reduction(const Pending& now, const std::byte* in, std::byte* out);
  Status reduce_scatter(const Pending& now, const std::byte* in, std::byte* out);
  Status broadcast(const Pending& now, int from, const Scattered& data);
  // Each array goes to where the rank's is in one of all ranks of the group.
  Status gather(const Pending& now, const std::byte* in, std::byte* out);
  Status scatter(const Pending& now, int from, const std::byte* in, std::byte* out);
  Status exchange_runs(const Pending& now, const std::byte* in, std::span<const Run> gives,
                       std::byte* out, std::span<const Run> takes);

  // Begins, and waits for all others to begin the same.
  Status meet(const Pending& now, const std::byte* data = nullptr, size_t size = 0);
  Status finish_reading(const Pending& now, bool gives);
  Status finish_reduction(const Pending& now);
  // Chunks go over the stage: put(c) fills this rank's, mix(c) may use those of all ranks and adds
  // to its own what others take, take(c) may read what the others have mixed.
  template <class Put, class Mix, class Take>
  Status pipeline(const Pending& now, uint64_t chunks, Put&& put, Mix&& mix, Take&& take);
  // A pipeline without reductions: fill(c, stage) puts, and drain(c, rank, stage) takes of a rank's
  // stage; with null it only says whether it will.
  template <class Fill, class Drain>
  Status exchange(const Pending& now, uint64_t chunks, Fill&& fill, Drain&& drain);

  const int rank_;
  const int size_;
  const Ways tuned_;
  SharedStages stages_;
  Way way_ = Way::kOneStep;
  uint64_t chunks_ = 0;  // of the operations that have ended
};

}  // namespace tw::collective

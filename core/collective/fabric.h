// SPDX-License-Identifier: Apache-2.0
// How the ranks of a group move and reduce data: one class for each way. All ranks of a group have
// the same one, and call its operations in the same order, one at a time.
//
// Each returns once this rank has its result and its arguments are its own again; other ranks may
// still be at it. An error ends the group: what the others have come to is not known. They are
//   ABORTED             ranks called different operations; the text says which called what
//   DEADLINE_EXCEEDED   a rank has not come in time; the text names it
//   UNAVAILABLE         a rank is gone; the text names it
//   CANCELLED           the user interrupted the wait, or gave the group up
//   RESOURCE_EXHAUSTED  this process has no memory for it
#pragma once

#include <cstddef>
#include <span>

#include "base/status.h"
#include "collective/collective_call.h"
#include "collective/tally.h"
#include "link/waiting.h"

namespace tw::collective {

class Fabric {
 public:
  virtual ~Fabric() = default;

  // For people, statistics and traces: "shared memory", "messages".
  virtual const char* name() const = 0;
  // How the last operation went, or goes.
  virtual Way way() const = 0;

  virtual Status barrier(const CollectiveCall& call, const Wait& wait) = 0;
  // `in` and `out` are arrays of call.count elements, the same one or apart. The result has the
  // same bits on all ranks.
  virtual Status all_reduce(const CollectiveCall& call, const std::byte* in, std::byte* out,
                            const Wait& wait) = 0;
  // `out` is written on the root alone; elsewhere it may be null.
  virtual Status reduce(const CollectiveCall& call, const std::byte* in, std::byte* out,
                        const Wait& wait) = 0;
  // The root's data is read, the others' written.
  virtual Status broadcast(const CollectiveCall& call, std::byte* data, const Wait& wait) = 0;
  // `out` has room for call.count elements of each rank, in the order of ranks; `in` may be its own
  // place there.
  virtual Status all_gather(const CollectiveCall& call, const std::byte* in, std::byte* out,
                            const Wait& wait) = 0;
  // As all_gather; `out` is written on the root alone, and elsewhere null.
  virtual Status gather(const CollectiveCall& call, const std::byte* in, std::byte* out,
                        const Wait& wait) = 0;
  // `in` has call.count elements for each rank; on others than the root it is null.
  virtual Status scatter(const CollectiveCall& call, const std::byte* in, std::byte* out,
                         const Wait& wait) = 0;
  // `in` has call.count elements for each rank; `out`, room for as many, is apart from it or its
  // own place there.
  virtual Status reduce_scatter(const CollectiveCall& call, const std::byte* in, std::byte* out,
                                const Wait& wait) = 0;

  // A run of bytes for, or from, a rank.
  struct Run {
    size_t offset = 0;
    size_t size = 0;
  };
  // `gives` has a run of `in` for each rank, `takes` a run of `out` from each; the two arrays do
  // not overlap. call.kind may be another one, of uneven shares: in a gather and a scatter what
  // does not go to, or come from, the root is empty. INVALID_ARGUMENT, which ends the group as
  // well: a rank gives another size than the other one takes.
  virtual Status all_to_all(const CollectiveCall& call, const std::byte* in,
                            std::span<const Run> gives, std::byte* out, std::span<const Run> takes,
                            const Wait& wait) = 0;
};

// The operation that call.kind names, but for all_to_all; what it does not need is null.
Status run_on(Fabric& fabric, const CollectiveCall& call, const std::byte* in, std::byte* out,
              const Wait& wait);

}  // namespace tw::collective

// SPDX-License-Identifier: Apache-2.0
// How the ranks of a group move and reduce data: one class for each way. All ranks of a group have
// the same one, and call its operations in the same order, one at a time.
//
// Each returns once this rank has its result and its arguments are its own again; other ranks may
// still be at it. An error ends the group: what the others have come to is not known. They are
//   ABORTED             ranks called different operations, or one gives another size than another
//                       one takes; the text says which called what
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
#include "engine/waiting.h"

namespace tw::collective {

class Fabric {
 public:
  virtual ~Fabric() = default;

  // For people, statistics and traces: "shared memory", "messages".
  virtual const char* name() const = 0;
  // How the last operation went, or goes.
  virtual Way way() const = 0;

  // The operation that call.kind names, but for all_to_all. Arrays that it has no use for are null.
  // `call.count` elements make a share.
  //
  //                    in                            out
  //   barrier
  //   all_reduce       a share                       a share, the same one or apart; its bits are
  //                                                  the same on all ranks
  //   reduce           a share                       on the root as there; elsewhere may be null
  //   broadcast                                      a share: the root's is read
  //   all_gather       a share, or its place in out  a share of each rank, in their order
  //   gather           as there                      on the root as there
  //   scatter          on the root one for each      a share
  //   reduce_scatter   a share for each rank         a share, apart from in or its own place there
  virtual Status run(const CollectiveCall& call, const std::byte* in, std::byte* out,
                     const Wait& wait) = 0;

  // A run of bytes for, or from, a rank.
  struct Run {
    size_t offset = 0;
    size_t size = 0;
  };
  // `gives` has a run of `in` for each rank, `takes` a run of `out` from each; the two arrays do
  // not overlap, and a rank takes from itself what it gives. call.kind may be another one, of
  // uneven shares: in a gather and a scatter what does not go to, or come from, the root is empty.
  virtual Status all_to_all(const CollectiveCall& call, const std::byte* in,
                            std::span<const Run> gives, std::byte* out, std::span<const Run> takes,
                            const Wait& wait) = 0;

 protected:
  static Status not_an_operation() { return {Code::kInvalidArgument, "not an operation"}; }
};

}  // namespace tw::collective

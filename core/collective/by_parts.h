// SPDX-License-Identifier: Apache-2.0
// Reductions for which each rank gets its part of all ranks' arrays, reduces it by itself, and
// hands the result to those who want it: made of a fabric's all-to-all, so that they go over each.
#pragma once

#include <span>

#include "collective/fabric.h"

namespace tw::collective {

// Not thread-safe, and for one operation. The arguments outlive it. Errors are those of Fabric.
class ByParts {
 public:
  ByParts(Fabric& fabric, int rank, int size, const CollectiveCall& call, const Wait& wait)
      : fabric_(fabric),
        rank_(static_cast<size_t>(rank)),
        size_(static_cast<size_t>(size)),
        call_(call),
        wait_(wait) {}

  // The one that call.kind names, of arrays as Fabric::run has them.
  Status run(const std::byte* in, std::byte* out);
  // As those of Fabric; kAdasum, too.
  Status all_reduce(const std::byte* in, std::byte* out);
  Status reduce(const std::byte* in, std::byte* out);
  // `shares`: of `in`, one for each rank, the same on all of them. `out` has room for this rank's.
  Status reduce_scatter(const std::byte* in, std::span<const Fabric::Run> shares, std::byte* out);

 private:
  using Run = Fabric::Run;

  // Into `out`, on the ranks that want it: all, or the root.
  Status reduce_for(const std::byte* in, std::byte* out, bool all);
  Status adasum(std::byte* rows, std::byte* out, size_t count);
  template <class Real>
  Status combine(Real* rows, std::byte* out, size_t count);
  Status all_to_all(const void* in, std::span<const Run> gives, void* out,
                    std::span<const Run> takes);

  Fabric& fabric_;
  const size_t rank_, size_;
  const CollectiveCall& call_;
  const Wait& wait_;
};

}  // namespace tw::collective

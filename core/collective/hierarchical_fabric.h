// SPDX-License-Identifier: Apache-2.0
// Collectives of ranks on several hosts: within a host over its memory, and between hosts by
// messages of one rank of each (the hierarchy of the hybrid allreduce, A. A. Awan et al., CCGRID
// 2019). What gains nothing by that goes by messages between all ranks: in a gather, a scatter and
// an all-to-all each byte goes from host to host once either way.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "collective/message_fabric.h"
#include "collective/shared_fabric.h"

namespace tw::collective {

// Not thread-safe: one operation at a time.
class HierarchicalFabric final : public Fabric {
 public:
  // `hosts`: the ranks of each, ascending. `local`: of this rank's host; null: it is alone.
  // `between`: the transport between hosts; empty: there are several.
  HierarchicalFabric(Members& members, std::vector<std::vector<int>> hosts,
                     std::unique_ptr<SharedFabric> local, Algorithm forced, const Tuning& tuning,
                     std::string_view between);

  const char* name() const override { return "shared memory and messages"; }
  Way way() const override { return flat_now_ ? flat_.way() : Way::kTwoLevels; }
  Status run(const CollectiveCall& call, const std::byte* in, std::byte* out,
             const Wait& wait) override;
  Status all_to_all(const CollectiveCall& call, const std::byte* in, std::span<const Run> gives,
                    std::byte* out, std::span<const Run> takes, const Wait& wait) override {
    return flat().all_to_all(call, in, gives, out, takes, wait);
  }

 private:
  // Who speaks for the hosts in one operation: `root` for its own, elsewhere the lowest rank.
  struct Speakers {
    std::vector<int> ranks;  // by host
    int root;                // which of them is the root
    int mine;                // that of this rank's host, as a place among its ranks
    bool here;               // this rank is one
  };
  Speakers speakers(int root) const;
  Algorithm algorithm(const CollectiveCall& call) const {
    return choose_algorithm(call, static_cast<int>(hosts_.size()), Algorithm::kNone, tuned_);
  }
  // Between the speakers, of which this rank is one. `begun`: the operation has had a part within
  // the host before.
  template <class Steps>
  Status between(const Pending& now, const Speakers& who, bool begun, Steps&& steps);
  // Whether ranks of this host call something else, which wait for this one while it waits for
  // messages of others. For as long as `call` is there.
  Look look(const CollectiveCall& call, bool begun) const {
    if (!local_) return {};
    return [local = local_.get(), &call, begun] { return local->disagreement(call, begun); };
  }

  Status barrier(const CollectiveCall& call, const Wait& wait);
  Status all_reduce(const CollectiveCall& call, const std::byte* in, std::byte* out,
                    const Wait& wait);
  Status reduce(const CollectiveCall& call, const std::byte* in, std::byte* out, const Wait& wait);
  Status broadcast(const CollectiveCall& call, std::byte* data, const Wait& wait);
  // Of shares (hierarchical_shares.cc).
  Status all_gather(const CollectiveCall& call, const std::byte* in, std::byte* out,
                    const Wait& wait);
  Status reduce_scatter(const CollectiveCall& call, const std::byte* in, std::byte* out,
                        const Wait& wait);
  // Whether an operation has two levels. Floats of 16 and 8 bits are rounded once: between hosts
  // their sums go as float32, where that is less than what all ranks would send. A forced algorithm
  // is one between all ranks.
  bool has_levels(const CollectiveCall& call) const;
  // For one that goes by messages between all ranks. Whichever way operations go, no two have one
  // number: a rank that waits looks at what others say who are ahead of it.
  MessageFabric& flat() {
    flat_now_ = true;
    flat_.go_on_from(sequence_++);
    return flat_;
  }
  void average(const CollectiveCall& call, std::byte* data) const;

  Members& members_;
  const std::vector<std::vector<int>> hosts_;
  size_t host_;  // this rank's
  const std::unique_ptr<SharedFabric> local_;
  const Algorithm forced_;
  const Ways tuned_;  // between hosts
  MessageFabric flat_;
  // What moves between the two levels. It is kept: fresh pages cost more than what goes into them.
  class Scratch {
   public:
    std::byte* of(size_t size) {
      if (size > size_) {
        size_ = 0;
        memory_.reset();
        memory_ = std::make_unique_for_overwrite<std::byte[]>(size);
        size_ = size;
      }
      return memory_.get();
    }

   private:
    std::unique_ptr<std::byte[]> memory_;
    size_t size_ = 0;
  };
  Scratch scratch_;
  uint64_t sequence_ = 0;
  bool flat_now_ = false;
};

}  // namespace tw::collective

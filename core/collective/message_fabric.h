// SPDX-License-Identifier: Apache-2.0
// Collectives of ranks without common memory, by messages over the links between them
// (core/collective/steps).
#pragma once

#include "collective/fabric.h"
#include "collective/messages.h"

namespace tw::collective {

// Not thread-safe: one operation at a time.
class MessageFabric final : public Fabric {
 public:
  MessageFabric(Team team, Algorithm forced, Ways tuned)
      : team_(std::move(team)), forced_(forced), tuned_(std::move(tuned)) {}

  const char* name() const override { return "messages"; }
  Way way() const override { return way_; }
  Status barrier(const CollectiveCall& call, const Wait& wait) override;
  Status all_reduce(const CollectiveCall& call, const std::byte* in, std::byte* out,
                    const Wait& wait) override;
  Status reduce(const CollectiveCall& call, const std::byte* in, std::byte* out,
                const Wait& wait) override;
  Status broadcast(const CollectiveCall& call, std::byte* data, const Wait& wait) override;
  Status all_gather(const CollectiveCall& call, const std::byte* in, std::byte* out,
                    const Wait& wait) override;
  Status gather(const CollectiveCall& call, const std::byte* in, std::byte* out,
                const Wait& wait) override;
  Status scatter(const CollectiveCall& call, const std::byte* in, std::byte* out,
                 const Wait& wait) override;
  Status reduce_scatter(const CollectiveCall& call, const std::byte* in, std::byte* out,
                        const Wait& wait) override;
  Status all_to_all(const CollectiveCall& call, const std::byte* in, std::span<const Run> gives,
                    std::byte* out, std::span<const Run> takes, const Wait& wait) override;

 private:
  // Runs steps(messages), and ends the group where they fail.
  template <class Steps>
  Status run(const CollectiveCall& call, const Wait& wait, Steps&& steps,
             Algorithm algorithm = Algorithm::kNone);

  const Team team_;
  const Algorithm forced_;
  const Ways tuned_;
  uint64_t sequence_ = 0;
  Way way_ = Way::kMessages;
};

}  // namespace tw::collective

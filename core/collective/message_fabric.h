// SPDX-License-Identifier: Apache-2.0
// Collectives of ranks without common memory, by messages over the links between them
// (core/collective/steps).
#pragma once

#include <utility>

#include "collective/fabric.h"
#include "collective/messages.h"
#include "collective/shared_fabric.h"

namespace tw::collective {

// Not thread-safe: one operation at a time.
class MessageFabric final : public Fabric {
 public:
  // `boards`: of ranks of this host, which do other operations by it; null: none.
  MessageFabric(Team team, Algorithm forced, Ways tuned, SharedFabric* boards = nullptr)
      : team_(std::move(team)), forced_(forced), tuned_(std::move(tuned)), boards_(boards) {}

  // The next operation is numbered behind that one, as the messages of a team of others are.
  void go_on_from(uint64_t sequence) { sequence_ = sequence; }

  const char* name() const override { return "messages"; }
  Way way() const override { return way_; }
  Status run(const CollectiveCall& call, const std::byte* in, std::byte* out,
             const Wait& wait) override;
  Status all_to_all(const CollectiveCall& call, const std::byte* in, std::span<const Run> gives,
                    std::byte* out, std::span<const Run> takes, const Wait& wait) override;

 private:
  // Runs steps(messages), and ends the group where they fail.
  template <class Steps>
  Status by(const CollectiveCall& call, const Wait& wait, Algorithm algorithm, Steps&& steps);
  static Status move(Messages& messages, const std::byte* in, std::byte* out);

  const Team team_;
  const Algorithm forced_;
  const Ways tuned_;
  SharedFabric* const boards_;
  uint64_t sequence_ = 0;
  Way way_ = Way::kMessages;
};

}  // namespace tw::collective

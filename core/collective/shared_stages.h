// SPDX-License-Identifier: Apache-2.0
// The stages of ranks that share a host, as one of them sees them (core/collective/stage.h): how it
// waits for the others, finds out whether they do the same, and reads what they have published.
#pragma once

#include <optional>
#include <vector>

#include "collective/collective_call.h"
#include "collective/stage.h"
#include "collective/team.h"
#include "engine/spin.h"
#include "link/waiting.h"

namespace tw::collective {

// An operation that is under way.
struct Pending {
  const CollectiveCall& call;
  const Wait& wait;
};

// Not thread-safe: one operation at a time. Errors are those of Fabric.
class SharedStages {
 public:
  using Counter = std::atomic<uint64_t> Board::*;

  // `peers` by their place in the team; that of this rank is empty. So are `memories`, or there are
  // none at all: then no array is read where it lies.
  SharedStages(Team team, OwnStage own, std::vector<std::optional<PeerStage>> peers,
               std::vector<std::optional<PeerMemory>> memories, Nanos spin);

  const Team& team() const { return team_; }
  const OwnStage& own() const { return own_; }
  bool readable() const { return !memories_.empty(); }
  const std::byte* chunk(int rank, uint64_t number) const;

  // Begins an operation, with data that the others may look at once they agree(); `data` has at
  // most StageLayout::kSlot bytes.
  Status enter(const Pending& now, const std::byte* data = nullptr, size_t size = 0);
  // Waits for a rank to begin the same. Its data, of the size that this rank has given, stays until
  // the next operation but one.
  Status agree(const Pending& now, int rank);
  Status agree_all(const Pending& now);
  const std::byte* data_of(int rank, size_t size) const;
  // This rank gives the operation up where it has failed. Whoever reads its array looks at that
  // afterwards: before the user has it again.
  Status end(Status status);

  // Tells the others how far this rank has come.
  void advance(Counter counter, uint64_t to);
  // Until a rank, or all others, have come so far.
  Status await(const Pending& now, int rank, Counter counter, uint64_t count);
  Status await_all(const Pending& now, Counter counter, uint64_t count);

  // Without a stage: the owner says where its array lies, and returns once all have read it.
  Status enter_with(const Pending& now, const std::byte* array);
  uint64_t array_of(int rank) const;
  Status read(const Pending& now, int rank, uint64_t from, std::byte* to, size_t size);
  // This rank has read what it takes. `gives`: until the others have, too.
  Status finish_reading(const Pending& now, bool gives);

 private:
  static constexpr size_t kReadAtOnce = 4 << 20;  // between two looks at the others

  const Board& board(int rank) const;
  const std::byte* slot(int rank, uint64_t sequence) const;
  void publish();
  // Until ready() holds, which `rank` makes true.
  template <class Ready>
  Status await(const Pending& now, int rank, Ready&& ready);
  Status await_entry(const Pending& now, int rank, uint64_t sequence);

  const Team team_;
  const int rank_;
  const int size_;
  const OwnStage own_;
  const std::vector<std::optional<PeerStage>> peers_;
  const std::vector<std::optional<PeerMemory>> memories_;
  const bool crowded_;  // there are more ranks than processors
  Spinner spinner_;
  uint64_t sequence_ = 0;
};

}  // namespace tw::collective

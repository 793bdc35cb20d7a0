// SPDX-License-Identifier: Apache-2.0
// The stages of ranks that share a host, as one of them sees them (core/collective/stage.h): how it
// waits for the others, finds out whether they do the same, and reads what they have published.
#pragma once

#include <optional>
#include <vector>

#include "collective/arena_arrays.h"
#include "collective/pending.h"
#include "collective/stage.h"
#include "collective/team.h"
#include "engine/spin.h"

namespace tw::collective {

// Not thread-safe: one operation at a time. Errors are those of Fabric.
class SharedStages {
 public:
  using Counter = std::atomic<uint64_t> Board::*;

  // `peers` by their place in the team; that of this rank is empty. So are `memories`, or there are
  // none at all: then no array is read where it lies. `arena`: null where not all ranks can map
  // what lies in each other's.
  SharedStages(Team team, OwnStage own, std::vector<std::optional<PeerStage>> peers,
               std::vector<std::optional<PeerMemory>> memories, Arena* arena, Nanos spin);

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
  // ABORTED: another rank has begun something else than `call` with the number of what this one has
  // begun last, or, if it has not `begun`, begins next. By whoever waits for something else than
  // these ranks; it costs a look at each.
  Status disagreement(const CollectiveCall& call, bool begun) const;
  const std::byte* data_of(int rank, size_t size) const;
  // This rank gives the operation up where it has failed. Whoever reads its array looks at that
  // afterwards: before the user has it again.
  Status end(Status status);

  // Tells the others how far this rank has come.
  void advance(Counter counter, uint64_t to);
  // Until a rank, or all others, have come so far.
  Status await(const Pending& now, int rank, Counter counter, uint64_t count);
  Status await_all(const Pending& now, Counter counter, uint64_t count);

  // Without a stage (shared_in_place.cc): the owner says where its array lies, and returns once all
  // have read it. A null array has no place, and is read by nobody.
  Status enter_with(const Pending& now, const std::byte* array, size_t size,
                    bool takes_the_result = false);
  // The array of each rank, the own one included, if all lie in arenas; else none, on all ranks
  // alike.
  Result<std::vector<const std::byte*>> mapped(const std::byte* own, size_t size);
  // As it was when all agreed on the operation.
  const ArrayPlace& place_of(int rank) const { return places_[static_cast<size_t>(rank)]; }
  // By the kernel, or by a mapping of it that is not null.
  Status read(const Pending& now, int rank, uint64_t from, const std::byte* mapping, std::byte* to,
              size_t size);
  // This rank has read what it takes. `gives`: until the others have, too.
  Status finish_reading(const Pending& now, bool gives);
  // All ranks have reduced their parts of arrays in arenas, and taken those of the others, up to
  // this chunk.
  Status finish_reduction(const Pending& now, uint64_t chunks);

 private:
  static constexpr size_t kReadAtOnce = 4 << 20;  // between two looks at the others
  // From here on arrays in arenas are read there: of smaller ones the copy costs less than the wait
  // until all have read.
  static constexpr size_t kInArenas = 256 << 10;

  const Board& board(int rank) const;
  const std::byte* slot(int rank, uint64_t sequence) const;
  void publish();
  // Until ready() holds, which `rank` makes true.
  template <class Ready>
  Status await(const Pending& now, int rank, Ready&& ready);
  Status await_entry(const Pending& now, int rank, uint64_t sequence);
  Status another_call(const CollectiveCall& mine, int rank, const CallBytes& said) const;
  // After a look at what a rank gave: it was still at the operation, and not its user.
  Status still_given(const Pending& now, int rank) const;

  const Team team_;
  const int rank_;
  const int size_;
  const OwnStage own_;
  const std::vector<std::optional<PeerStage>> peers_;
  const std::vector<std::optional<PeerMemory>> memories_;
  std::optional<ArenaArrays> arenas_;  // none: arrays there are as others
  std::vector<ArrayPlace> places_;     // of the operation's arrays, the own one included
  const bool crowded_;                 // there are more ranks than processors
  Spinner spinner_;
  uint64_t sequence_ = 0;
};

}  // namespace tw::collective

// SPDX-License-Identifier: Apache-2.0
// Arrays that ranks of a host read where they lie.
#include <algorithm>
#include <cstring>
#include <utility>

#include "base/streamed_copy.h"
#include "base/text.h"
#include "collective/point_to_point.h"
#include "collective/shared_stages.h"
#include "wire/bytes.h"

namespace tw::collective {

static_assert(kArrayPlaceSize <= BoardEntry::kRoom);

Status SharedStages::enter_with(const Pending& now, const std::byte* array, size_t size,
                                bool takes_the_result) {
  ArrayPlace& own = places_[static_cast<size_t>(rank_)];
  own = {};
  own.address = reinterpret_cast<uintptr_t>(array);
  if (arenas_ && size >= kInArenas) own = arenas_->place_of(array, size);
  own.takes_the_result = takes_the_result;
  const auto said = encode_place(own);
  Status status = enter(now, said.data(), said.size());
  if (status.ok()) status = agree_all(now);
  for (int i = 0; status.ok() && i < size_; ++i) {
    if (i == rank_) continue;
    const auto theirs = decode_place({data_of(i, kArrayPlaceSize), kArrayPlaceSize});
    if (theirs)
      places_[static_cast<size_t>(i)] = *theirs;
    else
      status = blame(team_.members(), team_.in_group(i), theirs.status());
  }
  return status;
}

Result<std::vector<const std::byte*>> SharedStages::mapped(const std::byte* own, size_t size) {
  std::vector<const std::byte*> arrays;
  for (int i = 0; arenas_ && i < size_; ++i)
    if (!place_of(i).in_arena()) return arrays;
  for (int i = 0; arenas_ && i < size_; ++i) {
    if (i == rank_) {
      arrays.push_back(own);
      continue;
    }
    const auto found = arenas_->find(i, place_of(i), size);
    if (!found) return blame(team_.members(), team_.in_group(i), found.status());
    arrays.push_back(*found);
  }
  return arrays;
}

Status SharedStages::read(const Pending& now, int rank, uint64_t from, const std::byte* mapping,
                          std::byte* to, size_t size) {
  if (!readable())
    return blame(team_.members(), team_.in_group(rank),
                 wire::protocol_error({"an array that no other rank can read"}));
  const PeerMemory& memory = *memories_[static_cast<size_t>(rank)];
  size_t through = 0;
  Status why;
  const Status read = wait_in_slices(team_.members(), now.wait, [&](Nanos) {
    const size_t piece = std::min(size - through, kReadAtOnce);
    if (!mapping)
      why = memory.read(to + through, from + through, piece);
    else if (size < kStreamed)
      std::memcpy(to + through, mapping + through, piece);
    else
      copy_streamed(to + through, mapping + through, piece);
    through += piece;
    return !why.ok() || through == size;
  });
  if (why.ok() && !read.ok())
    return read.code() != Code::kDeadlineExceeded
               ? read
               : Status{read.code(), text({"the array of ", team_.name(rank),
                                           " could not be read in time, in ", now.call.text()})};
  if (Status status = still_given(now, rank); !status.ok()) return status;
  return why.ok() ? Status() : blame(team_.members(), team_.in_group(rank), why);
}

Status SharedStages::still_given(const Pending& now, int rank) const {
  if (!board(rank).failed.load(std::memory_order_seq_cst)) return {};
  return blame(
      team_.members(), team_.in_group(rank),
      {Code::kUnavailable, text({team_.name(rank), " has given ", now.call.text(), " up"})});
}

Status SharedStages::finish_reading(const Pending& now, bool gives) {
  advance(&Board::read, sequence_);
  return gives ? await_all(now, &Board::read, sequence_) : Status();
}

Status SharedStages::finish_reduction(const Pending& now, uint64_t chunks) {
  Status status = await_all(now, &Board::reduced, chunks);
  if (status.ok()) status = await_all(now, &Board::taken, chunks);
  for (int i = 0; status.ok() && i < size_; ++i)
    if (i != rank_) status = still_given(now, i);
  return status;
}

}  // namespace tw::collective

// SPDX-License-Identifier: Apache-2.0
#include "collective/share.h"

#include <utility>

#include "base/text.h"
#include "collective/wire.h"

namespace tw::collective {
namespace {

std::vector<std::byte> whole_of(const InMessage& message) {
  std::vector<std::byte> bytes;
  for (const InSegment& segment : message.segments)
    bytes.insert(bytes.end(), segment.data, segment.data + segment.size);
  return bytes;
}

Status tell(Members& members, int rank, uint64_t tag, std::span<const std::byte> bytes,
            const Wait& wait) {
  OutSegment segment;
  segment.data = bytes.data();
  segment.size = bytes.size();
  return send_message(members, rank, tag, {&segment, 1}, wait);
}

}  // namespace

Result<std::vector<std::vector<std::byte>>> share(Members& members, uint64_t tag,
                                                  std::vector<std::byte> mine, const Wait& wait) {
  const auto ranks = static_cast<size_t>(members.size());
  if (members.rank() != 0) {
    if (Status status = tell(members, 0, tag, mine, wait); !status.ok()) return status;
    auto said = next_message(members, 0, tag, wait);
    if (!said) return said.status();
    auto all = decode_all(whole_of(*said), ranks);
    if (!all)
      return Status{all.status().code(), text({members.name(0), ": ", all.status().details()})};
    return all;
  }
  std::vector<std::vector<std::byte>> all(ranks);
  all[0] = std::move(mine);
  for (int rank = 1; rank < members.size(); ++rank) {
    auto said = next_message(members, rank, tag, wait);
    if (!said) return said.status();
    all[static_cast<size_t>(rank)] = whole_of(*said);
  }
  const std::vector<std::byte> bytes = encode_all(all);
  for (int rank = 1; rank < members.size(); ++rank)
    if (Status status = tell(members, rank, tag, bytes, wait); !status.ok()) return status;
  return all;
}

}  // namespace tw::collective

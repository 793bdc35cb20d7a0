// SPDX-License-Identifier: Apache-2.0
// What the machine should do with a message, said in another way than the machine says it.
#pragma once

#include <algorithm>
#include <vector>

#include "test/message/end.h"

namespace tw::test {

struct Group {
  std::vector<uint32_t> segments;
  bool bulk;
};

// The rule as published: append while the accumulation stays within its size, otherwise flush it;
// what is too large to accumulate goes eagerly alone, and what is too large for that in bulk.
inline std::vector<Group> groups_of(const std::vector<size_t>& sizes, const Profile& profile) {
  std::vector<Group> groups;
  Group accumulation{{}, false};
  size_t accumulated = 0;
  const auto flush = [&] {
    if (!accumulation.segments.empty()) groups.push_back(std::exchange(accumulation, {{}, false}));
    accumulated = 0;
  };
  for (uint32_t i = 0; i < sizes.size(); ++i) {
    if (accumulated + sizes[i] > profile.coalesce_bytes) flush();
    if (sizes[i] <= profile.coalesce_bytes) {
      accumulation.segments.push_back(i);
      accumulated += sizes[i];
    } else {
      groups.push_back({{i}, sizes[i] > profile.eager_bytes});
    }
  }
  flush();
  return groups;
}

// What both ends should have counted after `samples` have gone one way; with every block lendable.
struct Expected {
  SendCounters sent;
  ReceiveCounters received;

  Expected(const std::vector<Sample>& samples, const Profile& profile) {
    for (const Sample& sample : samples) add(sample, profile);
  }

 private:
  void add(const Sample& sample, const Profile& profile) {
    std::vector<size_t> sizes;
    for (const Part& part : sample.parts) sizes.push_back(part.bytes.size());
    ++sent.messages;
    ++received.messages;
    const auto groups = groups_of(sizes, profile);
    for (size_t g = 0; g < groups.size(); ++g) {
      size_t bytes = 0;
      for (const uint32_t i : groups[g].segments) bytes += sizes[i];
      sent.bytes += bytes;
      received.bytes += bytes;
      if (groups[g].bulk) {
        add_bulk(sample.parts[groups[g].segments[0]], profile);
      } else if (g == 0) {
        sent.inline_segments += groups[g].segments.size();
        received.inline_segments += groups[g].segments.size();
      } else {
        sent.eager_frames += bytes != 0;
        received.eager_segments += groups[g].segments.size();
      }
    }
  }

  void add_bulk(const Part& part, const Profile& profile) {
    const size_t size = part.bytes.size();
    const uint64_t chunks = (size + profile.chunk_bytes - 1) / profile.chunk_bytes;
    const bool lendable =
        part.owner == Owner::kBlock || (part.owner == Owner::kSmallBlock && size > 4032);
    if (profile.bulk == Bulk::kPush || !lendable) {
      ++sent.pushed_segments;
      ++received.pushed_segments;
      sent.pushed_chunks += chunks;
      received.pushed_chunks += chunks;
    } else if (profile.bulk == Bulk::kMap) {
      ++sent.mapped_segments;
      ++received.mapped_segments;
    } else {
      ++sent.read_segments;
      ++received.read_segments;
      sent.ready_to_sends += chunks;
      received.reads += chunks;
    }
  }
};

}  // namespace tw::test

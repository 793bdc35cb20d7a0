// SPDX-License-Identifier: Apache-2.0
// Random messages, memory, thresholds and deliveries: whatever happens in between, everything that
// was sent arrives.
#include <map>
#include <tuple>

#include "test/message/fake_link.h"
#include "test/message/model.h"
#include "test/sanitized.h"

namespace tw::test {
namespace {

Profile random_profile(Random& random, Bulk bulk) {
  Profile profile{"fake", bulk, random.up_to(64), random.up_to(128), 1 + random.up_to(400), 0};
  profile.chunks_in_flight = static_cast<uint32_t>(1 + random.up_to(4));
  return profile;
}

Sample random_sample(Random& random, const Profile& profile) {
  Sample sample{1 + random.up_to(3), random.bytes(random.up_to(40)), {}};
  sample.parts.resize(random.chance(10) ? 300 : random.up_to(random.up_to(40)));
  const size_t largest = random.chance(60) ? profile.eager_bytes + 2 : 5 * profile.chunk_bytes;
  for (Part& part : sample.parts) {
    part.bytes = random.bytes(random.chance(10) ? 0 : random.up_to(largest));
    part.owner = static_cast<Owner>(random.up_to(3));
  }
  return sample;
}

auto fields(const SendCounters& c) {
  return std::tuple(c.messages, c.bytes, c.inline_segments, c.eager_frames, c.pushed_segments,
                    c.pushed_chunks, c.mapped_segments, c.read_segments, c.ready_to_sends);
}

auto fields(const ReceiveCounters& c) {
  return std::tuple(c.messages, c.bytes, c.inline_segments, c.eager_segments, c.pushed_segments,
                    c.pushed_chunks, c.mapped_segments, c.read_segments, c.reads, c.refused);
}

// Everything that `from` has posted is at `to`: all bytes, in the order of each stream.
void check_arrived(const End& to, const std::vector<Sample>& posted) {
  REQUIRE(to.received.size() == posted.size());
  std::map<uint64_t, std::vector<size_t>> due, came;  // by stream; indices
  for (size_t i = 0; i < posted.size(); ++i) due[posted[i].stream].push_back(i);
  for (size_t i = 0; i < to.received.size(); ++i) came[to.received[i].stream].push_back(i);
  for (const auto& [stream, indices] : due) {
    REQUIRE(came[stream].size() == indices.size());
    for (size_t i = 0; i < indices.size(); ++i)
      REQUIRE(same(to.received[came[stream][i]], posted[indices[i]]));
  }
}

void one_run(uint64_t seed, Bulk bulk, const Ref<Arena>& arena, const Ref<Pool>& pool) {
  INFO("seed " << seed << ", bulk " << static_cast<int>(bulk));
  Random random(seed);
  const Profile profile = random_profile(random, bulk);
  FakeLink link({profile}, {profile}, arena, pool);
  link.log = false;
  link.a.keep = link.b.keep = true;
  std::vector<Sample> from_a, from_b;
  const size_t most = size_t{1} << random.up_to(12);
  for (size_t left = 1 + random.up_to(20); left != 0 || random.chance(98);) {
    if (left != 0 && random.chance(20)) {
      auto& posted = random.chance(70) ? from_a : from_b;
      posted.push_back(random_sample(random, profile));
      REQUIRE((&posted == &from_a ? link.a : link.b).post(posted.back()).ok());
      --left;
    }
    link.stir(random, 1 + most);
    for (End* end : {&link.a, &link.b})
      if (!end->kept.empty() && random.chance(30)) end->kept.erase(end->kept.begin());
  }
  link.settle();
  link.a.kept.clear();
  link.b.kept.clear();
  link.settle();

  check_arrived(link.b, from_a);
  check_arrived(link.a, from_b);
  for (const auto& [end, peer, posted] :
       {std::tuple{&link.a, &link.b, &from_a}, std::tuple{&link.b, &link.a, &from_b}}) {
    const Expected expected(*posted, profile);
    REQUIRE(fields(end->sender.counters()) == fields(expected.sent));
    REQUIRE(fields(peer->receiver.counters()) == fields(expected.received));
    check_idle(*end);
  }
}

TEST_CASE("random: everything arrives, in the order of its stream, and is let go") {
  const auto arena = make_ref<Arena>(size_t{256} << 20, size_t{16} << 20);
  const auto pool = make_ref<Pool>(size_t{64} << 20);
  for (const Bulk bulk : {Bulk::kPush, Bulk::kMap, Bulk::kRead}) {
    for (uint64_t seed = 1; seed <= (kSanitized ? 40 : 120); ++seed) {
      one_run(seed, bulk, arena, pool);
      REQUIRE(arena->stats().blocks == 0);
      REQUIRE(pool->stats().used == 0);
    }
  }
}

}  // namespace
}  // namespace tw::test

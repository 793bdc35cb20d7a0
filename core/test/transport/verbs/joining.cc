// SPDX-License-Identifier: Apache-2.0
// How two ends join, or say why they cannot.
#include "transport/verbs/joining.h"

#include <cstring>

#include "test/transport/verbs/world.h"
#include "test/wire/support.h"

namespace tw::test {
namespace {

wire::VerbsPair pair_with(wire::VerbsNetwork network, std::initializer_list<uint8_t> head,
                          bool ipv4) {
  wire::VerbsPair pair;
  pair.network = network;
  if (ipv4) pair.gid[10] = pair.gid[11] = 0xff;
  std::copy(head.begin(), head.end(), pair.gid.begin() + (ipv4 ? 12 : 0));
  return pair;
}

TEST_CASE("verbs joining: one kind of network and one family of addresses reach each other") {
  using wire::VerbsNetwork;
  const auto v4 = pair_with(VerbsNetwork::kRoceV2, {10, 0, 0, 1}, true);
  const auto other_v4 = pair_with(VerbsNetwork::kRoceV2, {192, 168, 1, 9}, true);
  const auto v6 = pair_with(VerbsNetwork::kRoceV2, {0x20, 1}, false);
  const auto local = pair_with(VerbsNetwork::kRoceV2, {0xfe, 0x80}, false);
  const auto old = pair_with(VerbsNetwork::kRoceV1, {10, 0, 0, 1}, true);
  const auto fabric = pair_with(VerbsNetwork::kInfiniBand, {0xfe, 0x80}, false);
  CHECK(verbs::reaches(v4, other_v4));
  CHECK(verbs::reaches(v6, v6));
  CHECK(verbs::reaches(local, local));
  CHECK(verbs::reaches(fabric, fabric));
  CHECK_FALSE(verbs::reaches(v4, v6));
  CHECK_FALSE(verbs::reaches(v6, local));
  CHECK_FALSE(verbs::reaches(v4, old));
  CHECK_FALSE(verbs::reaches(local, fabric));
}

TEST_CASE("verbs joining: a client refuses an answer that it cannot reach, or that is wrong") {
  TENSORWIRE_NEEDS_VERBS;
  auto client = verbs_world().offer();
  auto server = verbs_world().answer(client->frame());
  wire::VerbsOffer answer = server->frame();
  SUBCASE("another network") {
    answer.pair[0].network = answer.pair[0].network == wire::VerbsNetwork::kRoceV1
                                 ? wire::VerbsNetwork::kRoceV2
                                 : wire::VerbsNetwork::kRoceV1;
    check_says(client->accept(answer), Code::kFailedPrecondition,
               {"RDMA cannot reach the peer", "RoCE v1", "TENSORWIRE_VERBS_GID_INDEX"});
  }
  SUBCASE("a refusal that says what the server has") {
    answer = verbs::refusal(Code::kFailedPrecondition, verbs_world().context.get());
    check_says(client->accept(answer), Code::kFailedPrecondition, {"RDMA cannot reach the peer"});
  }
  SUBCASE("another refusal") {
    answer = verbs::refusal(Code::kResourceExhausted, nullptr);
    check_says(client->accept(answer), Code::kResourceExhausted, {"refused RDMA with status 8"});
  }
  SUBCASE("a partner that it does not have") {
    answer.pair[0].partner = wire::kMaxPairs - 1;
    check_says(client->accept(answer), Code::kInternal, {"protocol error", "partner 15"});
  }
}

TEST_CASE("verbs joining: a server answers with a reason when no port reaches the client") {
  TENSORWIRE_NEEDS_VERBS;
  auto client = verbs_world().offer();
  wire::VerbsOffer offer = client->frame();
  for (uint32_t i = 0; i < offer.pairs; ++i)
    offer.pair[i].network = wire::VerbsNetwork::kInfiniBand;
  const auto answer = verbs::Joining::answer(verbs_world().context, *verbs_world().arena,
                                             verbs_world().background->poller(), offer);
  REQUIRE_FALSE(answer.ok());
  check_says(answer.status(), Code::kFailedPrecondition, {"InfiniBand"});
}

TEST_CASE("verbs joining: several queue pairs of a port carry the fetches of one link") {
  TENSORWIRE_NEEDS_VERBS;
  verbs::Settings settings;
  settings.qps = 4;
  settings.cqs = 2;
  VerbsWorld world(settings);
  REQUIRE(world.here());
  auto client = world.offer();
  CHECK(client->frame().pairs % 4 == 0);
  TransportPair pair = world.join();
  auto source = world.arena->allocate(1 << 20), target = world.arena->allocate(1 << 20);
  REQUIRE(source.ok());
  REQUIRE(target.ok());
  fill_words((*source)->data(), 1 << 20);
  REQUIRE(pair.a->share((*source)->slab()).ok());
  REQUIRE(send_pattern(*pair.a, 0, 1) == 1);
  while (receive_pattern(*pair.b, 0, 1) == 0)
    REQUIRE(pair.b->sleep(false, patience()) == Wake::kReady);
  constexpr size_t kPiece = 64 << 10;
  size_t begun = 0, done = 0;
  while (done < 16) {
    while (begun < 16) {
      const size_t at = begun * kPiece;
      auto taken = pair.b->fetch(begun, (*source)->region((*source)->data() + at, kPiece),
                                 (*target)->data() + at);
      REQUIRE(taken.ok());
      if (!*taken) break;
      ++begun;
    }
    std::array<Completion, 16> out;
    const size_t n = pair.b->completed(out);
    for (size_t i = 0; i < n; ++i) REQUIRE(out[i].status.ok());
    done += n;
    if (n == 0) REQUIRE(pair.b->sleep(false, patience()) == Wake::kReady);
  }
  CHECK(std::memcmp((*target)->data(), (*source)->data(), 1 << 20) == 0);
}

}  // namespace
}  // namespace tw::test

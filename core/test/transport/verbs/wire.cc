// SPDX-License-Identifier: Apache-2.0
#include "transport/verbs/wire.h"

#include "test/wire/support.h"

namespace tw::wire {
namespace {

using test::Bytes;
using test::check_says;
using test::hex;
using test::poke;
using test::Random;

template <class Frame>
Bytes encoded(const Frame& frame) {
  Bytes bytes(sizeof(Frame));
  encode(std::span<std::byte, sizeof(Frame)>(bytes), frame);
  return bytes;
}

Result<VerbsOffer> decoded_offer(const Bytes& bytes) {
  return decode_verbs_offer(std::span<const std::byte, kVerbsOfferSize>(bytes));
}

VerbsOffer good_offer() {
  VerbsOffer offer;
  offer.pairs = 1;
  offer.receive_depth = 32;
  offer.buffer_bytes = 16'896;
  offer.pair[0].queue_pair = 0x11;
  offer.pair[0].first_packet = 0x22;
  return offer;
}

VerbsControl good_news() {
  VerbsControl news;
  news.slab = 3;
  news.generation = 7;
  news.pairs = 2;
  news.size = 4096;
  news.window[0] = {0x1000, 0xaa, 0};
  news.window[1] = {0x2000, 0xbb, 0};
  return news;
}

TEST_CASE("verbs frames have the bytes of docs/wire-format.md") {
  VerbsOffer offer = good_offer();
  offer.code = 9;
  offer.pair[0].gid = {0xcc};
  offer.pair[0].lid = 0x33;
  offer.pair[0].network = VerbsNetwork::kRoceV1;
  offer.pair[0].mtu = 5;
  offer.pair[0].reads_in = 16;
  offer.pair[0].reads_out = 8;
  offer.pair[0].partner = 2;
  offer.pair[0].bit_rate = 0x100;
  Bytes expected =
      hex("5457564552423031 09000000 01000000 20000000 00420000"
          "cc000000000000000000000000000000 11000000 22000000"
          "3300 02 05 10 08 0200 0001000000000000");
  expected.resize(kVerbsOfferSize);
  CHECK(encoded(offer) == expected);
  CHECK(encoded(VerbsReady{}) == hex("5457565244593031 00000000 00000000"));
  Bytes news =
      hex("01000000 03000000 07000000 02000000 0010000000000000"
          "0010000000000000 aa000000 00000000 0020000000000000 bb000000 00000000");
  news.resize(kVerbsNewsSize);
  CHECK(encoded(good_news()) == news);
  CHECK(encode_note({true, 5}) == 0x8000'0005);
}

TEST_CASE("random verbs frames come back as they were sent") {
  Random random(7);
  for (int round = 0; round < 500; ++round) {
    VerbsOffer offer;
    offer.code = static_cast<uint32_t>(random.up_to(16));
    offer.pairs = static_cast<uint32_t>(1 + random.up_to(kMaxPairs - 1));
    offer.receive_depth = static_cast<uint32_t>(2 + random.up_to(kMaxVerbsDepth - 2));
    offer.buffer_bytes =
        static_cast<uint32_t>(kMinVerbsBuffer + random.up_to(kMaxVerbsBuffer - kMinVerbsBuffer));
    for (uint32_t i = 0; i < offer.pairs; ++i) {
      VerbsPair& pair = offer.pair[i];
      for (auto& byte : pair.gid) byte = static_cast<uint8_t>(random.number());
      pair.queue_pair = static_cast<uint32_t>(2 + random.up_to(0xff'fffd));
      pair.first_packet = static_cast<uint32_t>(random.up_to(0xff'ffff));
      pair.lid = static_cast<uint16_t>(random.number());
      pair.network = static_cast<VerbsNetwork>(1 + random.up_to(2));
      pair.mtu = static_cast<uint8_t>(1 + random.up_to(4));
      pair.reads_in = static_cast<uint8_t>(random.number());
      pair.reads_out = static_cast<uint8_t>(random.number());
      pair.partner = static_cast<uint16_t>(random.up_to(kMaxPairs - 1));
      pair.bit_rate = random.number();
    }
    const auto back = decoded_offer(encoded(offer));
    REQUIRE(back.ok());
    CHECK(*back == offer);

    VerbsControl news;
    news.type = random.chance(50) ? VerbsControlType::kSlab : VerbsControlType::kSlabGone;
    news.slab = static_cast<uint32_t>(random.number());
    news.generation = static_cast<uint32_t>(random.number());
    if (news.type == VerbsControlType::kSlab) {
      news.size = 1 + random.up_to(uint64_t{1} << 40);
      news.pairs = static_cast<uint32_t>(1 + random.up_to(kMaxPairs - 1));
      for (uint32_t i = 0; i < news.pairs; ++i)
        news.window[i] = {random.up_to(uint64_t{1} << 60), static_cast<uint32_t>(random.number()),
                          0};
    }
    const auto told = decode_verbs_news(encoded(news));
    REQUIRE(told.ok());
    CHECK(*told == news);

    const SendNote note{random.chance(50), static_cast<uint32_t>(random.up_to(0x7fff'ffff))};
    CHECK(decode_note(encode_note(note)) == note);
  }
}

TEST_CASE("a refusal may have no queue pairs") {
  VerbsOffer refusal;
  refusal.code = 9;
  REQUIRE(decoded_offer(encoded(refusal)).ok());
  refusal.pairs = 1;  // the port it has, without a queue pair
  REQUIRE(decoded_offer(encoded(refusal)).ok());
  refusal.code = 0;
  CHECK_FALSE(decoded_offer(encoded(refusal)).ok());
}

template <class T>
void check_offer(size_t offset, T value, std::string_view words) {
  Bytes bytes = encoded(good_offer());
  poke(bytes, offset, value);
  check_says(decoded_offer(bytes).status(), Code::kInternal, {"protocol error: verbs: ", words});
}

template <class T>
void check_news(size_t offset, T value, std::string_view words) {
  Bytes bytes = encoded(good_news());
  poke(bytes, offset, value);
  check_says(decode_verbs_news(bytes).status(), Code::kInternal,
             {"protocol error: verbs: ", words});
}

TEST_CASE("every field of a verbs frame is checked, and named when it is wrong") {
  REQUIRE(decoded_offer(encoded(good_offer())).ok());
  for (size_t i = 0; i < 8; ++i) check_offer(i, uint8_t{1}, "magic is '");
  check_offer(8, uint32_t{17}, "code is 17");
  check_offer(12, uint32_t{0}, "pairs is 0");
  check_offer(12, uint32_t{17}, "pairs is 17");
  check_offer(16, uint32_t{1}, "receive_depth is 1");
  check_offer(16, kMaxVerbsDepth + 1, "receive_depth is 16385");
  check_offer(20, uint32_t{511}, "buffer_bytes is 511");
  check_offer(20, kMaxVerbsBuffer + 1, "buffer_bytes is 4194305");
  check_offer(24 + 16, uint32_t{1}, "queue_pair is 1");
  check_offer(24 + 16, uint32_t{1} << 24, "queue_pair is 16777216");
  check_offer(24 + 20, uint32_t{1} << 24, "first_packet is 16777216");
  check_offer(24 + 26, uint8_t{0}, "network is 0");
  check_offer(24 + 26, uint8_t{4}, "network is 4");
  check_offer(24 + 27, uint8_t{0}, "mtu is 0");
  check_offer(24 + 27, uint8_t{6}, "mtu is 6");
  check_offer(24 + 30, uint16_t{16}, "partner is 16");
  check_offer(24 + 40, uint8_t{1}, "entry 1 beyond its pairs");
  check_offer(kVerbsOfferSize - 1, uint8_t{1}, "entry 15 beyond its pairs");

  REQUIRE(decode_verbs_news(encoded(good_news())).ok());
  check_news(0, uint32_t{0}, "type is 0");
  check_news(0, uint32_t{3}, "type is 3");
  check_news(0, uint32_t{2}, "pairs is 2");
  check_news(12, uint32_t{0}, "pairs is 0");
  check_news(12, uint32_t{17}, "pairs is 17");
  check_news(12, uint32_t{1}, "window beyond its pairs is 1");
  check_news(16, uint64_t{0}, "size is 0");
  check_news(24, ~uint64_t{0}, "address is 18446744073709551615");
  check_news(24 + 12, uint32_t{1}, "zero is 1");
  for (const size_t length : {size_t{0}, kVerbsNewsSize - 1, kVerbsNewsSize + 1})
    check_says(decode_verbs_news(Bytes(length)).status(), Code::kInternal, {"length is"});

  VerbsReady ready;
  Bytes bytes = encoded(ready);
  const auto decode = [](const Bytes& from) {
    return decode_verbs_ready(std::span<const std::byte, kVerbsReadySize>(from));
  };
  REQUIRE(decode(bytes).ok());
  bytes[12] = std::byte{1};
  check_says(decode(bytes).status(), Code::kInternal, {"VerbsReady: zero is 1"});
  bytes = encoded(ready);
  bytes[8] = std::byte{17};
  check_says(decode(bytes).status(), Code::kInternal, {"VerbsReady: code is 17"});
  bytes = encoded(ready);
  bytes[0] = std::byte{'x'};
  check_says(decode(bytes).status(), Code::kInternal, {"VerbsReady: magic is '"});
}

}  // namespace
}  // namespace tw::wire

// SPDX-License-Identifier: Apache-2.0
#include "transport/verbs/wire.h"

#include "wire/bytes.h"

namespace tw::wire {
namespace {

static_assert(sizeof(VerbsPair) == 40);
static_assert(offsetof(VerbsPair, queue_pair) == 16);
static_assert(offsetof(VerbsPair, lid) == 24);
static_assert(offsetof(VerbsPair, partner) == 30);
static_assert(offsetof(VerbsPair, bit_rate) == 32);

static_assert(sizeof(VerbsOffer) == kVerbsOfferSize);
static_assert(offsetof(VerbsOffer, pairs) == 12);
static_assert(offsetof(VerbsOffer, pair) == 24);

static_assert(sizeof(VerbsReady) == kVerbsReadySize);

static_assert(sizeof(VerbsControl) == kVerbsNewsSize);
static_assert(offsetof(VerbsControl, size) == 16);
static_assert(offsetof(VerbsControl, window) == 24);

constexpr uint32_t k24Bits = 0xff'ffff;

template <class T>
Status bad(std::string_view frame, std::string_view field, T value) {
  return protocol_error({"verbs: ", frame, ": ", field, " is ", value});
}

// `joined`: it names a queue pair that one can connect to.
Status check(const VerbsPair& pair, bool joined) {
  constexpr std::string_view kName = "pair";
  // Numbers 0 and 1 are the management queue pairs'.
  if (pair.queue_pair > k24Bits || (joined && pair.queue_pair < 2))
    return bad(kName, "queue_pair", pair.queue_pair);
  if (pair.first_packet > k24Bits) return bad(kName, "first_packet", pair.first_packet);
  const auto network = static_cast<uint8_t>(pair.network);
  if (network < 1 || network > 3) return bad(kName, "network", network);
  if (pair.mtu < 1 || pair.mtu > 5) return bad(kName, "mtu", pair.mtu);
  if (pair.partner >= kMaxPairs) return bad(kName, "partner", pair.partner);
  return {};
}

}  // namespace

Result<VerbsOffer> decode_verbs_offer(std::span<const std::byte, kVerbsOfferSize> bytes) {
  auto frame = load<VerbsOffer>(bytes.data());
  constexpr std::string_view kName = "VerbsOffer";
  if (frame.magic != VerbsOffer{}.magic)
    return bad(kName, "magic", quoted({frame.magic.data(), frame.magic.size()}));
  if (frame.code > kHighestCode) return bad(kName, "code", frame.code);
  const bool offers = frame.code == 0;
  if (frame.pairs > kMaxPairs || (offers && frame.pairs == 0))
    return bad(kName, "pairs", frame.pairs);
  // One buffer alone could carry nothing: it is kept for giving credit back.
  if (frame.receive_depth > kMaxVerbsDepth || (offers && frame.receive_depth < 2))
    return bad(kName, "receive_depth", frame.receive_depth);
  if (frame.buffer_bytes > kMaxVerbsBuffer || (offers && frame.buffer_bytes < kMinVerbsBuffer))
    return bad(kName, "buffer_bytes", frame.buffer_bytes);
  for (size_t i = 0; i < kMaxPairs; ++i) {
    if (i < frame.pairs) {
      if (Status s = check(frame.pair[i], offers); !s.ok()) return s;
    } else if (load<std::array<std::byte, sizeof(VerbsPair)>>(
                   bytes.data() + offsetof(VerbsOffer, pair) + i * sizeof(VerbsPair)) !=
               std::array<std::byte, sizeof(VerbsPair)>{}) {
      return protocol_error({"verbs: VerbsOffer: entry ", i, " beyond its pairs is not zero"});
    } else {
      frame.pair[i] = {};
    }
  }
  return frame;
}

Result<VerbsReady> decode_verbs_ready(std::span<const std::byte, kVerbsReadySize> bytes) {
  const auto frame = load<VerbsReady>(bytes.data());
  constexpr std::string_view kName = "VerbsReady";
  if (frame.magic != VerbsReady{}.magic)
    return bad(kName, "magic", quoted({frame.magic.data(), frame.magic.size()}));
  if (frame.code > kHighestCode) return bad(kName, "code", frame.code);
  if (frame.zero != 0) return bad(kName, "zero", frame.zero);
  return frame;
}

void encode(std::span<std::byte, kVerbsOfferSize> out, const VerbsOffer& frame) {
  std::byte* const end = store(out.data(), frame);
  // An entry that is not filled has defaults in memory and zeros on the wire.
  for (size_t i = frame.pairs; i < kMaxPairs; ++i)
    store(end - (kMaxPairs - i) * sizeof(VerbsPair), std::array<std::byte, sizeof(VerbsPair)>{});
}

void encode(std::span<std::byte, kVerbsReadySize> out, const VerbsReady& frame) {
  store(out.data(), frame);
}

Result<VerbsControl> decode_verbs_news(std::span<const std::byte> bytes) {
  constexpr std::string_view kName = "news";
  if (bytes.size() != kVerbsNewsSize) return bad(kName, "length", bytes.size());
  const auto news = load<VerbsControl>(bytes.data());
  const auto type = static_cast<uint32_t>(news.type);
  if (type < 1 || type > 2) return bad(kName, "type", type);
  const bool slab = news.type == VerbsControlType::kSlab;
  if (news.pairs > kMaxPairs || (news.pairs != 0) != slab) return bad(kName, "pairs", news.pairs);
  if ((news.size != 0) != slab) return bad(kName, "size", news.size);
  for (size_t i = 0; i < kMaxPairs; ++i) {
    const auto& window = news.window[i];
    if (window.zero != 0) return bad(kName, "zero", window.zero);
    if (i >= news.pairs) {
      if (window != VerbsControl::Window{}) return bad(kName, "window beyond its pairs", i);
    } else if (window.address > UINT64_MAX - news.size) {
      return bad(kName, "address", window.address);
    }
  }
  return news;
}

void encode(std::span<std::byte, kVerbsNewsSize> out, const VerbsControl& news) {
  store(out.data(), news);
}

}  // namespace tw::wire

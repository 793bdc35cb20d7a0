// SPDX-License-Identifier: Apache-2.0
// What messages of collectives begin with, what ranks that join say and put into the store, what
// they tell each other of the group, what ranks of a host read in each other's stages, and what
// they say of arrays on devices: what decodes names operations, types, reductions and ranks that
// there are, and encodes to the same bytes again, but for the reserved ones of a Hello.
#include <algorithm>

#include "collective/wire.h"
#include "fuzz/fuzz.h"

namespace tw::collective {
namespace {

using fuzz::Bytes;
using fuzz::require;

constexpr size_t kReserved = 88;  // offset in a Hello
// ... of the Hello of its Welcome.
constexpr size_t kAnswerHello = 2 * sizeof(wire::Nonce) + 4 + 8;

void one_call(const Bytes& bytes) {
  const auto call = decode_call(bytes);
  if (!call.ok()) return fuzz::require_sentence(call.status());
  require(!call->text().empty(), "a call can be told to people");
  require(std::ranges::equal(encode_call(*call), bytes),
          "what was decoded encodes to the same bytes");
}

void one_stage_place(const Bytes& bytes) {
  const auto place = decode_stage_place(bytes);
  if (!place.ok()) return fuzz::require_sentence(place.status());
  require(place->offset <= place->slab.size, "a stage lies in its slab");
  require(std::ranges::equal(encode_stage_place(*place), bytes),
          "what was decoded encodes to the same bytes");
}

void one_array_place(const Bytes& bytes) {
  const auto place = decode_place(bytes);
  if (!place.ok()) return fuzz::require_sentence(place.status());
  require(place->offset <= place->slab_size, "an array lies in its slab");
  require(std::ranges::equal(encode_place(*place), bytes),
          "what was decoded encodes to the same bytes");
}

void one_given(const Bytes& bytes) {
  const auto run = decode_given(bytes);
  if (!run.ok()) return fuzz::require_sentence(run.status());
  require(run->size <= UINT64_MAX - run->address, "what is given ends where memory does");
  require(std::ranges::equal(encode_given(*run), bytes),
          "what was decoded encodes to the same bytes");
}

void one_step(const Bytes& bytes) {
  const auto header = decode_step(bytes);
  if (!header.ok()) return fuzz::require_sentence(header.status());
  require(!header->call.text().empty(), "a call can be told to people");
  require(size_of(header->call.type) != 0, "a type has a size");
  require(std::ranges::equal(encode_step(*header), bytes),
          "what was decoded encodes to the same bytes");
}

void one_joining(const Bytes& bytes) {
  const auto said = decode_neighbours(bytes, bytes.size() > 9 ? (bytes.size() - 9) / 3 : 0);
  if (!said.ok()) return fuzz::require_sentence(said.status());
  require(std::ranges::equal(encode_neighbours(*said), bytes),
          "what was decoded encodes to the same bytes");
}

void one_offer(const Bytes& bytes) {
  const auto offer = decode_offer(bytes);
  if (!offer.ok()) return fuzz::require_sentence(offer.status());
  require(!offer->call.text().empty(), "a call can be told to people");
  require(std::ranges::equal(encode_offer(*offer), bytes),
          "what was decoded encodes to the same bytes");
}

Bytes without_reserved(Bytes bytes, size_t hello) {
  std::fill_n(bytes.begin() + static_cast<ptrdiff_t>(hello + kReserved),
              wire::kHelloSize - kReserved, std::byte{});
  return bytes;
}

void one_presence(const Bytes& bytes) {
  const auto presence = decode_presence(bytes);
  if (!presence.ok()) return fuzz::require_sentence(presence.status());
  require(std::ranges::equal(encode_presence(*presence), without_reserved(bytes, 0)),
          "what was decoded encodes to the same bytes");
}

void one_answer(const Bytes& bytes) {
  const auto answer = decode_answer(bytes);
  if (!answer.ok()) return fuzz::require_sentence(answer.status());
  require(std::ranges::equal(encode_answer(*answer), without_reserved(bytes, kAnswerHello)),
          "what was decoded encodes to the same bytes");
}

void one_word(const Bytes& bytes) {
  const std::string_view said(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  const auto word = decode_word(said, 16);
  if (!word.ok()) return fuzz::require_sentence(word.status());
  require(word->rank >= 0 && word->rank < 16, "a word is of a rank of the group");
  require(encode_word(*word) == said, "what was decoded encodes to the same bytes");
}

void one_all(const Bytes& bytes) {
  const auto all = decode_all(bytes, 3);
  if (!all.ok()) return fuzz::require_sentence(all.status());
  require(all->size() == 3, "there are bytes of each rank");
  require(std::ranges::equal(encode_all(*all), bytes),
          "what was decoded encodes to the same bytes");
}

void one(fuzz::Input input) {
  const Bytes bytes = input.rest();
  one_presence(bytes);
  one_answer(bytes);
  one_call(bytes);
  one_stage_place(bytes);
  one_array_place(bytes);
  one_given(bytes);
  one_step(bytes);
  one_joining(bytes);
  one_offer(bytes);
  one_word(bytes);
  one_all(bytes);
}

}  // namespace
}  // namespace tw::collective

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  tw::collective::one({data, size});
  return 0;
}

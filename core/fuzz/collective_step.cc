// SPDX-License-Identifier: Apache-2.0
// What messages of collectives begin with, and what ranks say of arrays on devices: what decodes
// names operations, types and reductions that there are, and encodes to the same bytes again.
#include <algorithm>

#include "collective/wire.h"
#include "fuzz/fuzz.h"

namespace tw::collective {
namespace {

using fuzz::Bytes;
using fuzz::require;

void one_offer(const Bytes& bytes) {
  const auto offer = decode_offer(bytes);
  if (!offer.ok()) return fuzz::require_sentence(offer.status());
  require(!offer->call.text().empty(), "a call can be told to people");
  require(std::ranges::equal(encode_offer(*offer), bytes),
          "what was decoded encodes to the same bytes");
}

void one(fuzz::Input input) {
  const Bytes bytes = input.rest();
  if (bytes.size() > kStepHeaderSize) return one_offer(bytes);
  const auto header = decode_step(bytes);
  if (!header.ok()) return fuzz::require_sentence(header.status());
  require(!header->call.text().empty(), "a call can be told to people");
  require(size_of(header->call.type) != 0, "a type has a size");
  require(std::ranges::equal(encode_step(*header), bytes),
          "what was decoded encodes to the same bytes");
}

}  // namespace
}  // namespace tw::collective

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  tw::collective::one({data, size});
  return 0;
}

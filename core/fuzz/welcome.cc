// SPDX-License-Identifier: Apache-2.0
// Welcomes: what decodes has addresses that may be sent, and encodes to the same bytes again but
// for the reserved ones of its Hello.
#include "wire/welcome.h"

#include <algorithm>

#include "fuzz/fuzz.h"

namespace tw::wire {
namespace {

using fuzz::Bytes;
using fuzz::require;

constexpr size_t kHelloAt = 8;
constexpr size_t kReserved = kHelloAt + 88;

void one(fuzz::Input input) {
  // Sometimes with a good beginning, so that the addresses get their turn.
  const bool help = (input.byte() & 1) != 0;
  Bytes bytes;
  if (help) {
    bytes.resize(kWelcomeFixedSize);
    encode_welcome(bytes.data(), {});
    bytes[2] = std::byte{input.byte()};  // how many addresses
  }
  const Bytes rest = input.rest();
  bytes.insert(bytes.end(), rest.begin(), rest.end());
  bytes.shrink_to_fit();
  const auto welcome = decode_welcome(bytes);
  if (!welcome.ok()) return fuzz::require_sentence(welcome.status());

  require(check_addresses(welcome->addresses).ok(), "both ends judge addresses alike");
  Bytes out(welcome_size(*welcome));
  require(encode_welcome(out.data(), *welcome) == out.data() + out.size(), "size as promised");
  std::fill_n(bytes.begin() + kReserved, kHelloSize - (kReserved - kHelloAt), std::byte{});
  require(out == bytes, "what was decoded encodes to the same bytes");
}

}  // namespace
}  // namespace tw::wire

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  tw::wire::one({data, size});
  return 0;
}

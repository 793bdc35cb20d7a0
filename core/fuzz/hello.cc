// SPDX-License-Identifier: Apache-2.0
// Hellos: what decodes encodes to the same bytes again but for the reserved ones, and two of them
// agree on a version that both speak.
#include "wire/hello.h"

#include <algorithm>

#include "fuzz/fuzz.h"

namespace tw::wire {
namespace {

using fuzz::Bytes;
using fuzz::require;
using fuzz::require_sentence;

constexpr size_t kReserved = 88;

void one(fuzz::Input input) {
  // Of any length; sometimes with the right magic, so that the rest gets its turn.
  const bool help = (input.byte() & 1) != 0;
  Bytes bytes = input.rest();
  if (help) {
    bytes.resize(kHelloSize);
    std::transform(kHelloMagic.begin(), kHelloMagic.end(), bytes.begin(),
                   [](char c) { return static_cast<std::byte>(c); });
  }
  const auto theirs = decode_hello(bytes);
  if (!theirs.ok()) return require_sentence(theirs.status());

  Bytes out(kHelloSize);
  encode_hello(std::span<std::byte, kHelloSize>(out), *theirs);
  require(std::equal(out.begin(), out.begin() + kReserved, bytes.begin()), "same bytes again");
  require(
      std::all_of(out.begin() + kReserved, out.end(), [](std::byte b) { return b == std::byte{}; }),
      "reserved bytes are dropped");

  const Hello ours;
  const auto version = common_version(ours, *theirs);
  if (version.ok()) {
    require(*version >= ours.lowest_version && *version <= ours.highest_version, "we speak it");
    require(*version >= theirs->lowest_version && *version <= theirs->highest_version,
            "they speak it");
  } else {
    require_sentence(version.status());
  }
  const Status features = check_features(ours, *theirs);
  require(features.ok() == ((theirs->required & ~ours.features) == 0), "required bits are known");
  if (!features.ok()) require_sentence(features);
  require(same_host(ours, *theirs) == false, "an unknown host is nobody's");
  require(same_pids(ours, *theirs) == false, "nor are its processes");
}

}  // namespace
}  // namespace tw::wire

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  tw::wire::one({data, size});
  return 0;
}

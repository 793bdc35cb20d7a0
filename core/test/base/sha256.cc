// SPDX-License-Identifier: Apache-2.0
#include "base/sha256.h"

#include <string>

#include "test/wire/support.h"

namespace tw {
namespace {

using test::digits;

std::vector<uint8_t> said(std::string_view text) { return {text.begin(), text.end()}; }

std::string sha256(std::span<const uint8_t> bytes) {
  Sha256 hash;
  hash.update(bytes);
  return digits(hash.finish());
}

TEST_CASE("SHA-256: the examples of FIPS 180-4") {
  CHECK(sha256({}) == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  CHECK(sha256(said("abc")) == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  CHECK(sha256(said("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq")) ==
        "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  CHECK(sha256(std::vector<uint8_t>(1'000'000, 'a')) ==
        "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

// Padding depends on the length. The expected value is Python's:
// sha256(b"".join(sha256(bytes(i % 251 for i in range(n))).digest() for n in range(300)))
TEST_CASE("SHA-256: every length up to several blocks, in one piece and byte by byte") {
  std::vector<uint8_t> input;
  Sha256 all;
  for (size_t n = 0; n < 300; ++n) {
    Sha256 whole, pieces;
    whole.update(input);
    for (const uint8_t& byte : input) pieces.update({&byte, 1});
    const Sha256Digest digest = whole.finish();
    CHECK(digest == pieces.finish());
    all.update(digest);
    input.push_back(static_cast<uint8_t>(n % 251));
  }
  CHECK(digits(all.finish()) == "fa70b867db0a30acb7218d62945db0df52eb393808b30675ea9aac6b058a9a9d");
}

TEST_CASE("HMAC-SHA256: the examples of RFC 4231") {
  const auto repeated = [](size_t count, uint8_t byte) {
    return std::vector<uint8_t>(count, byte);
  };
  std::vector<uint8_t> counting(25);
  for (size_t i = 0; i < counting.size(); ++i) counting[i] = static_cast<uint8_t>(i + 1);
  const auto hmac = [](std::span<const uint8_t> key, std::span<const uint8_t> message) {
    return digits(hmac_sha256(key, message));
  };
  CHECK(hmac(repeated(20, 0x0b), said("Hi There")) ==
        "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
  CHECK(hmac(said("Jefe"), said("what do ya want for nothing?")) ==
        "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  CHECK(hmac(repeated(20, 0xaa), repeated(50, 0xdd)) ==
        "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe");
  CHECK(hmac(counting, repeated(50, 0xcd)) ==
        "82558a389a443c0ea4cc819899f2083a85f0faa3e578f8077a2e3ff46729665b");
  CHECK(hmac(repeated(131, 0xaa), said("Test Using Larger Than Block-Size Key - Hash Key First")) ==
        "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
  CHECK(hmac(repeated(131, 0xaa),
             said("This is a test using a larger than block-size key and a larger than block-size "
                  "data. The key needs to be hashed before being used by the HMAC algorithm.")) ==
        "9b09ffa71b942fcb27635fbcd5b0e944bfdc63644f0713938a7f51535c3a35e2");
}

TEST_CASE("digests that differ in one bit are not the same") {
  Sha256Digest digest{};
  digest.fill(0x5a);
  CHECK(same_digest(digest, digest));
  for (size_t bit = 0; bit < 8 * digest.size(); ++bit) {
    Sha256Digest other = digest;
    other[bit / 8] = static_cast<uint8_t>(other[bit / 8] ^ (1 << bit % 8));
    CHECK_FALSE(same_digest(digest, other));
    CHECK_FALSE(same_digest(other, digest));
  }
}

}  // namespace
}  // namespace tw

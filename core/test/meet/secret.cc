// SPDX-License-Identifier: Apache-2.0
#include "meet/secret.h"

#include <set>

#include "base/sha256.h"
#include "test/wire/support.h"

namespace tw::meet {
namespace {

constexpr std::array<uint8_t, 32> kBytes = {1, 2, 3};

TEST_CASE("a moved-from secret is wiped") {
  Secret from{std::span(kBytes)};
  Secret to = std::move(from);
  CHECK(std::equal(kBytes.begin(), kBytes.end(), to.bytes().begin()));
  CHECK(std::count(from.bytes().begin(), from.bytes().end(), 0) == 32);
  Secret third;
  third = std::move(to);
  CHECK(std::equal(kBytes.begin(), kBytes.end(), third.bytes().begin()));
  CHECK(std::count(to.bytes().begin(), to.bytes().end(), 0) == 32);
}

TEST_CASE("random secrets differ") {
  std::set<std::vector<uint8_t>> seen;
  for (int i = 0; i < 100; ++i) {
    const auto secret = Secret::random();
    REQUIRE(secret.ok());
    seen.emplace(secret->bytes().begin(), secret->bytes().end());
  }
  CHECK(seen.size() == 100);
}

// Computed with Python's hmac over the fields in the order of docs/wire-format.md.
TEST_CASE("the proof is the one of docs/wire-format.md") {
  Transcript about;
  about.version = 1;
  about.transport = 2;
  about.session.fill(0x11);
  about.instance.fill(0x22);
  about.client_nonce.fill(0x33);
  about.server_nonce.fill(0x44);
  std::array<uint8_t, 32> key;
  key.fill(0x55);
  const Secret secret{std::span(key)};
  CHECK(test::digits(prove(secret, kServerLabel, about)) ==
        "f61bbbeb616688c269e7901340c6e9e34e8d18e57a8a34b44835665862a6f027");
  CHECK(test::digits(prove(secret, kClientLabel, about)) ==
        "cd6e120051d476e6381c542dd5f9f5da3c5a2d349dbb62f65d2d9b3c657f0820");
}

TEST_CASE("every field of the transcript changes the proof") {
  const Secret secret = *Secret::random();
  Transcript base;
  base.version = 1;
  std::vector<Transcript> changed(6, base);
  changed[0].version = 2;
  changed[1].transport = 1;
  changed[2].session[15] = 1;
  changed[3].instance[15] = 1;
  changed[4].client_nonce[31] = 1;
  changed[5].server_nonce[31] = 1;
  const auto proof = prove(secret, kServerLabel, base);
  CHECK(same_digest(proof, prove(secret, kServerLabel, base)));
  CHECK_FALSE(same_digest(proof, prove(secret, kClientLabel, base)));
  CHECK_FALSE(same_digest(proof, prove(*Secret::random(), kServerLabel, base)));
  for (const auto& other : changed) {
    CHECK_FALSE(same_digest(proof, prove(secret, kServerLabel, other)));
  }
}

}  // namespace
}  // namespace tw::meet

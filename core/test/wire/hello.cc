// SPDX-License-Identifier: Apache-2.0
#include "wire/hello.h"

#include <unistd.h>

#include <tuple>

#include "test/wire/support.h"

namespace tw::wire {
namespace {

using test::Bytes;
using test::check_says;
using test::hex;
using test::poke;
using test::Random;

Bytes encoded(const Hello& hello) {
  Bytes bytes(kHelloSize);
  encode_hello(std::span<std::byte, kHelloSize>(bytes), hello);
  return bytes;
}

Hello a_hello() {
  Hello h;
  h.lowest_version = 1;
  h.highest_version = 3;
  h.features = 0x0f;
  h.required = 0x05;
  h.instance = {1, 2, 3};
  h.boot_id = {4, 5, 6};
  h.pid_namespace = 0x1234;
  h.pid = 7;
  h.uid = 1000;
  h.stream_window = 0x010203;
  return h;
}

TEST_CASE("a Hello has the bytes of docs/wire-format.md") {
  CHECK(encoded(a_hello()) == hex("544e535257495245 0100 0300 00000000 0f00000000000000"
                                  "0500000000000000 01020300000000000000000000000000"
                                  "04050600000000000000000000000000 3412000000000000"
                                  "07000000 e8030000 0302010000000000 0000000000000000"));
}

TEST_CASE("random Hellos come back as they were sent") {
  Random random(1);
  for (int round = 0; round < 1000; ++round) {
    Hello h;
    h.lowest_version = static_cast<uint16_t>(1 + random.up_to(100));
    h.highest_version = static_cast<uint16_t>(h.lowest_version + random.up_to(100));
    h.features = random.number();
    h.required = h.features & random.number();
    for (auto& byte : h.instance) byte = static_cast<uint8_t>(random.number());
    for (auto& byte : h.boot_id) byte = static_cast<uint8_t>(random.number());
    h.pid_namespace = random.number();
    h.pid = static_cast<uint32_t>(random.number());
    h.uid = static_cast<uint32_t>(random.number());
    h.stream_window = 1 + random.up_to(kMaxStreamWindow - 1);
    const auto decoded = decode_hello(encoded(h));
    REQUIRE(decoded.ok());
    CHECK(*decoded == h);
  }
}

TEST_CASE("what is no Hello is refused by name") {
  const Bytes good = encoded(a_hello());
  REQUIRE(decode_hello(good).ok());
  for (size_t length = 0; length < 2 * kHelloSize; ++length) {
    if (length == kHelloSize) continue;
    Bytes cut = good;
    cut.resize(length);
    check_says(decode_hello(cut).status(), Code::kInvalidArgument,
               {"not a Hello", "length is " + std::to_string(length)});
  }
  for (size_t i = 0; i < kHelloMagic.size(); ++i) {
    Bytes bytes = good;
    bytes[i] ^= std::byte{0x80};
    check_says(decode_hello(bytes).status(), Code::kInvalidArgument, {"magic is '", "\\x"});
  }
  struct Corruption {
    size_t offset;
    uint16_t value;
    std::string_view words;
  };
  for (const auto& [offset, value, words] :
       {Corruption{8, 0, "lowest_version is 0"}, Corruption{8, 4, "lowest_version is 4"},
        Corruption{10, 0, "highest_version 0"}, Corruption{12, 5, "zero is 5"},
        Corruption{16, 4, "required is 5"}, Corruption{24, 16, "required is 16"}}) {
    Bytes bytes = good;
    poke(bytes, offset, value);
    check_says(decode_hello(bytes).status(), Code::kInvalidArgument, {"not a Hello", words});
  }
}

TEST_CASE("a stream's credit is neither nothing nor beyond counting") {
  for (const auto& [window, good] : {std::pair<uint64_t, bool>{0, false},
                                     {1, true},
                                     {kMaxStreamWindow, true},
                                     {kMaxStreamWindow + 1, false},
                                     {UINT64_MAX, false}}) {
    Hello h;
    h.stream_window = window;
    const auto decoded = decode_hello(encoded(h));
    CHECK(decoded.ok() == good);
    if (!good) {
      check_says(decoded.status(), Code::kInvalidArgument,
                 {"not a Hello: stream_window is " + std::to_string(window)});
    }
  }
}

TEST_CASE("the reserved bytes are ignored, so that a later version may use them") {
  Bytes bytes = encoded(a_hello());
  for (size_t i = 88; i < kHelloSize; ++i) bytes[i] = std::byte{0xee};
  const auto decoded = decode_hello(bytes);
  REQUIRE(decoded.ok());
  CHECK(*decoded == a_hello());
}

TEST_CASE("two ends speak the highest common version") {
  const auto speaks = [](uint16_t lowest, uint16_t highest) {
    Hello h;
    h.lowest_version = lowest;
    h.highest_version = highest;
    return h;
  };
  for (const auto& [a, b, expected] : {std::tuple{speaks(1, 1), speaks(1, 1), 1},
                                       {speaks(1, 4), speaks(2, 3), 3},
                                       {speaks(1, 2), speaks(2, 9), 2}}) {
    CHECK(*common_version(a, b) == expected);
    CHECK(*common_version(b, a) == expected);
  }
  check_says(common_version(speaks(1, 2), speaks(3, 5)).status(), Code::kFailedPrecondition,
             {"here 1 to 2", "the peer 3 to 5"});
  check_says(common_version(speaks(3, 5), speaks(1, 2)).status(), Code::kFailedPrecondition,
             {"here 3 to 5", "the peer 1 to 2"});
}

TEST_CASE("unknown features are ignored when offered and refused when required") {
  Hello ours;
  Hello theirs;
  theirs.features = 0xff00;
  CHECK(check_features(ours, theirs).ok());
  theirs.required = 0x8200;
  check_says(check_features(ours, theirs), Code::kFailedPrecondition,
             {"the peer requires", "bits 9, 15"});
  check_says(check_features(theirs, ours), Code::kFailedPrecondition,
             {"this process requires", "bits 9, 15"});
  ours.features = 0x8200;
  CHECK(check_features(ours, theirs).ok());
}

TEST_CASE("a Hello tells hosts and users apart") {
  const InstanceId instance = {9};
  const Hello self = local_hello(instance, 12345);
  CHECK(self.instance == instance);
  CHECK(self.stream_window == 12345);
  CHECK(self.pid == static_cast<uint32_t>(::getpid()));
  CHECK(self.uid == ::geteuid());
  CHECK(decode_hello(encoded(self)).ok());
  REQUIRE(self.boot_id != decltype(self.boot_id){});
  CHECK(same_host(self, local_hello({})));
  CHECK(same_pids(self, local_hello({})));
  CHECK(same_user(self, local_hello({})));

  Hello other = self;
  other.boot_id[15] ^= 1;
  CHECK_FALSE(same_host(self, other));
  CHECK_FALSE(same_pids(self, other));
  other = self;
  ++other.pid_namespace;
  CHECK(same_host(self, other));
  CHECK_FALSE(same_pids(self, other));
  other = self;
  other.uid = self.uid + 1;
  CHECK_FALSE(same_user(self, other));

  Hello unknown;
  CHECK_FALSE(same_host(unknown, unknown));
  unknown.boot_id = self.boot_id;
  CHECK_FALSE(same_pids(unknown, unknown));
  unknown.uid = kOverflowUid;
  CHECK_FALSE(same_user(unknown, unknown));
}

}  // namespace
}  // namespace tw::wire

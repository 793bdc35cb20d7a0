// SPDX-License-Identifier: Apache-2.0
#include "wire/welcome.h"

#include "test/wire/support.h"

namespace tw::wire {
namespace {

using test::Bytes;
using test::check_says;
using test::hex;
using test::poke;
using test::Random;

Bytes encoded(const Welcome& welcome) {
  Bytes bytes(welcome_size(welcome));
  CHECK(encode_welcome(bytes.data(), welcome) == bytes.data() + bytes.size());
  return bytes;
}

Welcome a_welcome() {
  Welcome w;
  w.hello.instance = {1};
  w.instance = {2};
  w.session = {3};
  w.secret = {4};
  w.addresses = {"shm:/run/a", "tcp:h:1"};
  return w;
}

void check_same(const Welcome& a, const Welcome& b) {
  CHECK(a.hello == b.hello);
  CHECK(a.instance == b.instance);
  CHECK(a.session == b.session);
  CHECK(a.secret == b.secret);
  CHECK(a.addresses == b.addresses);
}

TEST_CASE("a welcome has the bytes of docs/wire-format.md") {
  Bytes expected = hex("0100 0200 00000000");
  Bytes hello(kHelloSize);
  encode_hello(std::span<std::byte, kHelloSize>(hello), a_welcome().hello);
  for (const Bytes& part :
       {hello, hex("02000000000000000000000000000000"), hex("03000000000000000000000000000000"),
        hex("0400000000000000000000000000000000000000000000000000000000000000"),
        hex("0a00 73686d3a2f72756e2f61 0700 7463703a683a31")}) {
    expected.insert(expected.end(), part.begin(), part.end());
  }
  CHECK(encoded(a_welcome()) == expected);
}

TEST_CASE("random welcomes come back as they were sent") {
  Random random(1);
  for (int round = 0; round < 300; ++round) {
    Welcome w = a_welcome();
    for (auto& byte : w.secret) byte = static_cast<uint8_t>(random.number());
    std::vector<std::string> addresses(random.up_to(kMaxAddresses));
    for (std::string& address : addresses) {
      address = random.text(1 + random.up_to(kMaxAddressLength - 1), "tcp:/.127 \xc3");
    }
    w.addresses.assign(addresses.begin(), addresses.end());
    REQUIRE(check_addresses(w.addresses).ok());
    const Bytes bytes = encoded(w);
    const auto decoded = decode_welcome(bytes);
    REQUIRE(decoded.ok());
    check_same(*decoded, w);
  }
}

TEST_CASE("a welcome that is cut short anywhere, or too long, is none") {
  const Bytes good = encoded(a_welcome());
  for (size_t length = 0; length < good.size(); ++length) {
    check_says(decode_welcome(std::span(good).first(length)).status(), Code::kInvalidArgument,
               {"not a welcome: it is cut short after " + std::to_string(length) + " bytes"});
  }
  Bytes longer = good;
  longer.resize(good.size() + 3);
  check_says(decode_welcome(longer).status(), Code::kInvalidArgument, {"3 bytes too many"});
}

TEST_CASE("each field of a welcome is checked") {
  struct Corruption {
    size_t offset;
    uint16_t value;
    Code code;
    std::string_view words;
  };
  for (const auto& [offset, value, code, words] :
       {Corruption{0, 2, Code::kFailedPrecondition, "speaks version 2"},
        Corruption{2, 33, Code::kInvalidArgument, "33 addresses, more than 32"},
        Corruption{2, 3, Code::kInvalidArgument, "cut short"},
        Corruption{2, 1, Code::kInvalidArgument, "9 bytes too many"},
        Corruption{4, 1, Code::kInvalidArgument, "zero is 1"},
        Corruption{16, 0, Code::kInvalidArgument, "not a Hello: lowest_version"},
        Corruption{168, 0, Code::kInvalidArgument, "cut short"},
        Corruption{170, 0x0a61, Code::kInvalidArgument, "control character in the address 'a\\x0a"},
        Corruption{178, 0x7f61, Code::kInvalidArgument, "control character"},
        Corruption{180, 0xffff, Code::kInvalidArgument, "cut short"}}) {
    Bytes bytes = encoded(a_welcome());
    poke(bytes, offset, value);
    check_says(decode_welcome(bytes).status(), code, {words});
  }
  Welcome wrong = a_welcome();
  wrong.addresses = {"", "tcp:h:1"};
  check_says(decode_welcome(encoded(wrong)).status(), Code::kInvalidArgument,
             {"an address is empty"});
  const std::string long_one(kMaxAddressLength + 1, 'a');
  wrong.addresses = {long_one};
  check_says(decode_welcome(encoded(wrong)).status(), Code::kInvalidArgument,
             {"an address of 513 bytes, more than 512"});
  wrong.addresses.assign(kMaxAddresses + 1, "a");
  check_says(check_addresses(wrong.addresses), Code::kInvalidArgument, {"33 addresses"});
}

}  // namespace
}  // namespace tw::wire

// SPDX-License-Identifier: Apache-2.0
#include "wire/hello.h"

#include <algorithm>

#include "base/identity.h"
#include "wire/bytes.h"

namespace tw::wire {
namespace {

static_assert(sizeof(Hello) == kHelloSize && alignof(Hello) == 8);
static_assert(offsetof(Hello, magic) == 0);
static_assert(offsetof(Hello, lowest_version) == 8);
static_assert(offsetof(Hello, highest_version) == 10);
static_assert(offsetof(Hello, zero) == 12);
static_assert(offsetof(Hello, features) == 16);
static_assert(offsetof(Hello, required) == 24);
static_assert(offsetof(Hello, instance) == 32);
static_assert(offsetof(Hello, boot_id) == 48);
static_assert(offsetof(Hello, pid_namespace) == 64);
static_assert(offsetof(Hello, pid) == 72);
static_assert(offsetof(Hello, uid) == 76);
static_assert(offsetof(Hello, stream_window) == 80);
static_assert(offsetof(Hello, reserved) == 88);

Status no_hello(std::initializer_list<Piece> why) {
  return {Code::kInvalidArgument, "not a Hello: " + text(why)};
}

Status lacks(std::string_view who, std::string_view whom, uint64_t features) {
  std::string bits;
  for (int bit = 0; bit < 64; ++bit) {
    if ((features >> bit & 1) != 0) bits += text({bits.empty() ? "" : ", ", bit});
  }
  return {Code::kFailedPrecondition,
          text({who, " requires features that ", whom, " does not know: bits ", bits,
                "; use the same release of tensorwire at both ends"})};
}

}  // namespace

Hello local_hello(const InstanceId& instance, uint64_t stream_window) {
  const Identity self = read_identity();
  Hello hello;
  hello.instance = instance;
  hello.boot_id = self.boot_id;
  hello.pid_namespace = self.pid_namespace;
  hello.pid = self.pid;
  hello.uid = self.uid;
  hello.stream_window = stream_window;
  return hello;
}

void encode_hello(std::span<std::byte, kHelloSize> out, const Hello& hello) {
  store(out.data(), hello);
}

Result<Hello> decode_hello(std::span<const std::byte> bytes) {
  if (bytes.size() != kHelloSize) {
    return no_hello({"length is ", bytes.size(), ", expected ", kHelloSize});
  }
  auto hello = load<Hello>(bytes.data());
  if (hello.magic != kHelloMagic) {
    return no_hello({"magic is ", quoted({hello.magic.data(), hello.magic.size()})});
  }
  if (hello.lowest_version == 0) return no_hello({"lowest_version is 0"});
  if (hello.lowest_version > hello.highest_version) {
    return no_hello({"lowest_version is ", hello.lowest_version, ", above highest_version ",
                     hello.highest_version});
  }
  if (hello.zero != 0) return no_hello({"zero is ", hello.zero});
  if ((hello.required & ~hello.features) != 0) {
    return no_hello(
        {"required is ", hello.required, ", with bits that features ", hello.features, " lacks"});
  }
  if (hello.stream_window == 0 || hello.stream_window > kMaxStreamWindow) {
    return no_hello({"stream_window is ", hello.stream_window, ", expected 1 to 2^62"});
  }
  hello.reserved = {};
  return hello;
}

Result<uint16_t> common_version(const Hello& ours, const Hello& theirs) {
  const uint16_t lowest = std::max(ours.lowest_version, theirs.lowest_version);
  const uint16_t highest = std::min(ours.highest_version, theirs.highest_version);
  if (lowest <= highest) return highest;
  return Status(Code::kFailedPrecondition,
                text({"no common version of the wire format: here ", ours.lowest_version, " to ",
                      ours.highest_version, ", the peer ", theirs.lowest_version, " to ",
                      theirs.highest_version}));
}

Status check_features(const Hello& ours, const Hello& theirs) {
  if (const uint64_t missing = theirs.required & ~ours.features) {
    return lacks("the peer", "this process", missing);
  }
  if (const uint64_t missing = ours.required & ~theirs.features) {
    return lacks("this process", "the peer", missing);
  }
  return {};
}

bool same_host(const Hello& a, const Hello& b) {
  return a.boot_id != decltype(a.boot_id){} && a.boot_id == b.boot_id;
}

bool same_pids(const Hello& a, const Hello& b) {
  return same_host(a, b) && a.pid_namespace != 0 && a.pid_namespace == b.pid_namespace;
}

bool same_user(const Hello& a, const Hello& b) { return a.uid == b.uid && a.uid != kOverflowUid; }

}  // namespace tw::wire

// SPDX-License-Identifier: Apache-2.0
// How a process that was started for a test comes to a link.
#pragma once

#include <cstdlib>
#include <cstring>

#include "call/connect.h"
#include "test/call/world.h"
#include "test/process.h"

namespace tw::test {

// What one process must know to connect to the other.
struct Invite {
  char address[160];
  wire::SessionId session;
  std::array<uint8_t, meet::Secret::kSize> secret;
  wire::InstanceId instance;
  std::array<std::byte, wire::kHelloSize> hello;
};

inline Invite invite(const meet::Invitation& in) {
  Invite out{};
  std::strncpy(out.address, in.address.c_str(), sizeof out.address - 1);
  out.session = in.session;
  std::copy(in.secret.bytes().begin(), in.secret.bytes().end(), out.secret.begin());
  out.instance = in.instance;
  wire::encode_hello(out.hello, in.hello);
  return out;
}

inline Ref<CallPort> follow(const Invite& from) {
  meet::Invitation in{from.address, from.session, meet::Secret(from.secret), from.instance,
                      wire::decode_hello(from.hello).value()};
  auto port = connect(runtime(), in, nullptr, {}, {patience()});
  REQUIRE_MESSAGE(port.ok(), port.status().details());
  return std::move(*port);
}

// A child that does nothing but hold what its parent held, until the test has ended.
inline void fork_a_holder() {
  if (fork() != 0) return;
  char byte;
  while (::read(kFromTest, &byte, 1) > 0) {
  }
  _exit(0);
}

}  // namespace tw::test

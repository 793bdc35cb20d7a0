// SPDX-License-Identifier: Apache-2.0
// A server in another process: what it does is in process.cc.
#pragma once

#include "test/call/helper.h"

namespace tw::test {

// A server in another process, and a link to it.
template <class Way>
struct Abroad {
  Abroad() : helper("server") {
    std::array<std::byte, wire::kHelloSize> hello;
    wire::encode_hello(hello, runtime().hello());
    helper.tell(hello);
    const auto shm = helper.template hear<Invite>(), tcp = helper.template hear<Invite>();
    link = follow(std::string_view(Way::kName) == "shm" ? shm : tcp);
  }
  ~Abroad() { link->link().close({Code::kCancelled, "the test is over"}); }
  Helper helper;
  Ref<CallPort> link;
};

}  // namespace tw::test

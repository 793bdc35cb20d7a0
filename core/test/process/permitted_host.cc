// SPDX-License-Identifier: Apache-2.0
#include "process/permitted_host.h"

#include <doctest/doctest.h>

namespace tw {
namespace {

TEST_CASE("hosts and networks that a user may name") {
  for (const char* entry :
       {"*", "node7", "node-7.cluster.local.", "7th", "_tcp.a", "10.0.0.7", "10.0.0.0/8",
        "10.1.2.3/0", "10.0.0.1/32", "fe80::1", "::/0", "2001:db8::/32", "::1/128"}) {
    CAPTURE(entry);
    CHECK(permitted_host(entry));
  }
}

TEST_CASE("what is neither a host nor a network") {
  for (const char* entry : {"",
                            ".",
                            "a..b",
                            ".a",
                            "10.0.0.0/33",
                            "10.0.0.256",
                            "10.0.0",
                            "7",
                            "a.7",
                            "a.-",
                            "node7:4000",
                            "[::1]",
                            "node7/8",
                            "http://a",
                            "*.a",
                            "::1/129",
                            "10.0.0.0/",
                            "10.0.0.0/8x",
                            "10.0.0.0/-1",
                            "10.0.0.0/+8",
                            "/8",
                            "10.0.0.0/8/8",
                            "a b",
                            "::1%lo"}) {
    CAPTURE(entry);
    CHECK_FALSE(permitted_host(entry));
  }
}

}  // namespace
}  // namespace tw

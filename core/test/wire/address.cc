// SPDX-License-Identifier: Apache-2.0
#include "wire/address.h"

#include <string>
#include <tuple>
#include <utility>

#include "test/wire/support.h"
#include "wire/welcome.h"

namespace tw::wire {
namespace {

using namespace std::string_literals;
using test::Random;

void refused(const Status& status, std::string_view part) {
  CHECK(status.code() == Code::kInvalidArgument);
  INFO(status.details());
  CHECK(status.details().find(part) != std::string::npos);
}

TEST_CASE("address: its transport is what stands before the first colon") {
  for (const auto& [given, kind, where] : {
           std::tuple{"shm:/run/a:b", "shm", "/run/a:b"},
           std::tuple{"tcp:localhost:1", "tcp", "localhost:1"},
           std::tuple{"verbs:[::1]:4242", "verbs", "[::1]:4242"},
           std::tuple{"my-own_2:x", "my-own_2", "x"},
       }) {
    const std::string text = given;
    CAPTURE(text);
    const auto address = decode_address(text);
    REQUIRE(address.ok());
    CHECK(address->kind == kind);
    CHECK(address->where == where);
  }
  for (const std::string& text :
       {""s, ":"s, ":x"s, "tcp"s, "tcp:"s, "TCP:h:1"s, "t p:h:1"s, "tcp\0:h:1"s, "t\xc3\xa9:x"s,
        std::string(kMaxKindLength + 1, 'k') + ":x",
        "tcp:" + std::string(kMaxAddressLength, 'h')}) {
    CAPTURE(text);
    refused(decode_address(text).status(), "not an address of a data plane: ");
  }
  CHECK(decode_address(std::string(kMaxKindLength, 'k') + ":x").ok());
  CHECK(decode_address("shm:" + std::string(kMaxAddressLength - 4, 'p')).ok());
}

TEST_CASE("address: a host and its port") {
  for (const auto& [given, host, ipv6, port] : {
           std::tuple{"localhost:1", "localhost", false, 1},
           std::tuple{"127.0.0.1:65535", "127.0.0.1", false, 65535},
           std::tuple{"Node_7.example-a.net:50051", "Node_7.example-a.net", false, 50051},
           std::tuple{"[::1]:4242", "::1", true, 4242},
           std::tuple{"[2001:db8::7]:1", "2001:db8::7", true, 1},
           std::tuple{"[::ffff:10.0.0.1]:1", "::ffff:10.0.0.1", true, 1},
           std::tuple{"[fe80::1%eth0.100]:1", "fe80::1%eth0.100", true, 1},
       }) {
    const std::string text = given;
    CAPTURE(text);
    const auto found = decode_host_and_port(text);
    REQUIRE(found.ok());
    CHECK(found->host == host);
    CHECK(found->ipv6 == ipv6);
    CHECK(found->port == port);
  }
  CHECK(decode_host_and_port(std::string(kMaxHostLength, 'h') + ":1").ok());
}

TEST_CASE("address: a port is digits from 1 to 65535") {
  for (const std::string& port :
       {""s, "0"s, "65536"s, "99999"s, "123456"s, "01"s, "00080"s, "+1"s, "-1"s, " 1"s, "1 "s,
        "1\0"s, "0x1"s, "http"s, "1.0"s, "\xef\xbc\x91"s, std::string(1000, '9')}) {
    CAPTURE(port);
    refused(decode_host_and_port("localhost:" + port).status(), "the port is no number");
  }
}

TEST_CASE("address: what is no host") {
  for (const auto& [given, why] : {
           std::pair{""s, "no colon"},
           std::pair{"localhost"s, "no colon"},
           std::pair{":1"s, "no host"},
           std::pair{"::1:1"s, "stands in brackets"},
           std::pair{"a:b:1"s, "stands in brackets"},
           std::pair{"[]:1"s, "no IPv6 number"},
           std::pair{"[:1"s, "no IPv6 number"},
           std::pair{"[::1:1"s, "no IPv6 number"},
           std::pair{"[localhost]:1"s, "no IPv6 number"},
           std::pair{"[127.0.0.1]:1"s, "no IPv6 number"},
           std::pair{"[::1]x:1"s, "no IPv6 number"},
           std::pair{"[::1\0]:1"s, "no IPv6 number"},
           std::pair{"[[::1]]:1"s, "no IPv6 number"},
           std::pair{"[::1%]:1"s, "no IPv6 number"},
           std::pair{"[::1%a/b]:1"s, "no IPv6 number"},
           std::pair{"[::1%0123456789abcdef]:1"s, "no IPv6 number"},
           std::pair{"[" + std::string(400, ':') + "]:1", "no IPv6 number"},
           std::pair{"lo\0cal:1"s, "neither a name nor a number"},
           std::pair{"a b:1"s, "neither a name nor a number"},
           std::pair{"a/b:1"s, "neither a name nor a number"},
           std::pair{"h\xc3\xb6st:1"s, "neither a name nor a number"},
           std::pair{"::1]:1"s, "stands in brackets"},
           std::pair{std::string(kMaxHostLength + 1, 'h') + ":1", "neither a name nor a number"},
       }) {
    const std::string where = given;
    CAPTURE(where);
    refused(decode_host_and_port(where).status(), why);
  }
}

TEST_CASE("address: a path has no NUL") {
  CHECK(decode_path("/run/a:b c").value() == "/run/a:b c");
  refused(decode_path("").status(), "not a socket path");
  refused(decode_path("/run/tensorwire\0/s"s).status(), "not a socket path");
}

TEST_CASE("address: random texts are refused, or are written the same again") {
  Random random(1);
  int accepted = 0;
  for (int round = 0; round < 20'000; ++round) {
    const std::string where = random.text(1 + random.up_to(12), "[]:%.09afx-");
    const auto found = decode_host_and_port(where);
    if (!found.ok()) continue;
    ++accepted;
    const std::string host(found->host);
    CHECK((found->ipv6 ? "[" + host + "]" : host) + ":" + std::to_string(found->port) == where);
  }
  CHECK(accepted > 20);
}

}  // namespace
}  // namespace tw::wire

// SPDX-License-Identifier: Apache-2.0
// Processes that run short of memory: the call or the link at hand hears of it, the process, its
// threads and its other peers go on.
#include "test/shortage.h"

#include <sys/resource.h>

#include <fstream>

#include "test/base/descriptors.h"
#include "test/call/helper.h"
#include "test/not_tried.h"
#include "test/sanitized.h"

namespace tw::test {
namespace {

// Bytes of address space in use.
size_t address_space() {
  std::ifstream file("/proc/self/statm");
  size_t pages = 0;
  file >> pages;
  return pages * page_size();
}

// No more than `bytes` of address space on top of what is in use.
void leave_address_space(size_t bytes) {
  const rlim_t most = address_space() + bytes;
  const rlimit limit{most, RLIM_INFINITY};
  REQUIRE(setrlimit(RLIMIT_AS, &limit) == 0);
}

struct Heard {
  int code = 0;
  bool right = false;
  bool leased = false;
};

TEST_CASE("helper: client without room" * doctest::skip()) {
  std::array<std::byte, wire::kHelloSize> hello;
  wire::encode_hello(hello, runtime().hello());
  write_thing(kToTest, hello);
  const auto link = follow(read_thing<Invite>(kFromTest));
  REQUIRE(unary(*link, "/t/Empty", {}).code == Code::kOk);
  leave_address_space(64 << 20);  // less than a slab
  const auto bytes = bytes_of(kLent);
  for (int i = 0; i < 3; ++i) {
    const Reply reply = unary(*link, "/t/Lend", {});
    Heard heard;
    heard.code = static_cast<int>(reply.code);
    heard.right = reply.segments.size() == 1 && same(reply.segments[0], bytes);
    heard.leased = reply.segments.size() == 1 && reply.segments[0].view() != nullptr;
    write_thing(kToTest, heard);
  }
  char byte;
  (void)read(kFromTest, &byte, 1);  // until the test ends
}

// Without address space, a sanitizer ends its process.
TEST_CASE("shortage: a client that cannot map a slab loses one call, and gets copies afterwards") {
  if (kSanitized) return not_tried("a sanitizer watches, and takes memory and time of its own");
  ArenaWatch arena;
  {
    House house(
        [](Ref<ServerCall> call) {
          if (call->method() == "/t/Lend") {
            answer(*call, {out(bytes_of(kLent))});
          } else {
            finish(*call);
          }
          return Ref<ServerCall>{};
        },
        1);
    Helper helper("client without room");
    const auto hello = wire::decode_hello(helper.hear<std::array<std::byte, wire::kHelloSize>>());
    REQUIRE(hello.ok());
    auto in = house.invitation(ShmWay::kName);
    const auto ticket = house.server().listener().admit(*hello, 1, 60 * kSecond);
    REQUIRE(ticket.ok());
    in.session = ticket->session;
    in.secret = ticket->secret;
    helper.tell(invite(in));
    const auto first = helper.hear<Heard>();
    CHECK(first.code == static_cast<int>(Code::kResourceExhausted));
    for (int i = 0; i < 2; ++i) {
      const auto next = helper.hear<Heard>();
      CHECK(next.code == 0);
      CHECK(next.right);
      CHECK_FALSE(next.leased);
    }
    const auto links = ports_of(house.server());
    REQUIRE(links.size() == 1);
    const LinkStats stats = links[0]->stats();
    CHECK(stats.sent.unmappable == 1);
    CHECK(stats.sent.pushed_segments == 2);
    CHECK(stats.leases == 0);
  }
  CHECK(arena.restored());
}

TEST_CASE("helper: server without room" * doctest::skip()) {
  const auto hello = read_thing<std::array<std::byte, wire::kHelloSize>>(kFromTest);
  House house([](ServerCall& call) {
    try {
      echo(call);
    } catch (const std::bad_alloc&) {  // the handler's own
      try {
        (void)finish(call, Code::kResourceExhausted);
      } catch (const std::bad_alloc&) {  // the call ends with its link
      }
    }
  });
  const auto ticket =
      house.server().listener().admit(wire::decode_hello(hello).value(), 64, 60 * kSecond);
  REQUIRE(ticket.ok());
  meet::Invitation in{house.tcp(), ticket->session, ticket->secret, house.server().instance(),
                      runtime().hello()};
  write_thing(kToTest, invite(in));
  REQUIRE(read_thing<char>(kFromTest) == 'l');
  leave_address_space(100 << 20);
  write_thing(kToTest, 'r');
  char byte;
  (void)read(kFromTest, &byte, 1);  // until the test ends
}

TEST_CASE("shortage: a server without address space refuses what is too large, and serves on") {
  if (kSanitized) return not_tried("a sanitizer watches, and takes memory and time of its own");
  Helper helper("server without room");
  std::array<std::byte, wire::kHelloSize> hello;
  wire::encode_hello(hello, runtime().hello());
  helper.tell(hello);
  const auto in = helper.hear<Invite>();
  Closing good(follow(in)), greedy(follow(in));
  const auto small = bytes_of(1000);
  REQUIRE(unary(*good, "/t/Echo", {out(small)}).code == Code::kOk);
  helper.tell('l');
  REQUIRE(helper.hear<char>() == 'r');
  const std::vector<std::byte> large(128 << 20);
  const std::vector<OutSegment> many(60'000);
  const auto serves_others = [&] {
    // What the greedy one had may still be on its way back: then a call is to be tried again.
    Reply reply;
    REQUIRE(eventually([&] {
      reply = unary(*good, "/t/Echo", {out(small)});
      return reply.code != Code::kResourceExhausted;
    }));
    REQUIRE(reply.code == Code::kOk);
    CHECK(same(reply.segments.at(0), small));
  };
  for (int i = 0; i < 3; ++i) {
    CHECK(unary(*greedy, "/t/Echo", {out(large)}).code == Code::kResourceExhausted);
    serves_others();
  }
  // Frames of the largest size there is: perhaps the link at hand is lost, no other.
  for (int i = 0; i < 3; ++i) {
    (void)unary(*greedy, "/t/Echo", many, now() + 10 * kSecond);
    serves_others();
  }
}

// A server whose dispatcher suffers, and calls that are answered by the test.
struct Suffering {
  Suffering() : server(Server::create(runtime().settings().max_message_bytes).value()) {
    auto path = server->listener().listen_local();
    REQUIRE(path.ok());
    shm = "shm:" + *path;
    auto port = server->listener().listen_tcp("127.0.0.1", 0);
    REQUIRE(port.ok());
    tcp = "tcp:127.0.0.1:" + std::to_string(*port);
    dispatcher = std::thread([this] {
      suffer(true);
      std::vector<Ref<ServerCall>> calls;
      for (;;) {
        try {
          if (server->next(calls, 8, kForever) == Waited::kClosed) return;
          for (auto& call : calls) served.put(std::move(call));
        } catch (const std::bad_alloc&) {  // its own, as the ABI has it
        }
        calls.clear();
      }
    });
    worker = std::thread([this] {
      while (const Ref<ServerCall> call = served.take()) echo(*call);
    });
  }
  ~Suffering() {
    fail_allocation(0);
    server->close();
    dispatcher.join();
    served.put(nullptr);
    worker.join();
  }
  meet::Invitation invitation(std::string_view way) {
    auto ticket = server->listener().admit(runtime().hello(), 1, 30 * kSecond);
    REQUIRE(ticket.ok());
    return {way == "shm" ? shm : tcp, ticket->session, ticket->secret, server->instance(),
            runtime().hello()};
  }
  Ref<CallPort> connect() {
    auto port = tw::connect(runtime(), invitation("tcp"), nullptr, {}, {patience()});
    REQUIRE(port.ok());
    return std::move(*port);
  }

  const Ref<Server> server;
  std::string shm, tcp;
  Slot<Ref<ServerCall>> served;
  std::thread dispatcher, worker;
};

TEST_CASE("shortage: whatever a server's dispatcher has no memory for costs a link at most") {
  if (!kFailsOnDemand)
    return not_tried("ThreadSanitizer insists on its own allocator: none fails on demand");
  Suffering suffering;
  Closing good(suffering.connect());
  const auto bytes = bytes_of(100'000);
  std::vector<OutSegment> segments{out(std::span(bytes).first(10)),
                                   out(std::span(bytes).first(17'000)), out(bytes)};
  bool failed = true;
  int losses = 0;
  for (int n = 1; failed; ++n) {
    REQUIRE(n < 500);
    CAPTURE(n);
    Closing victim(suffering.connect());
    REQUIRE(unary(*victim, "/t/Echo", {}).code == Code::kOk);
    fail_allocation(n);
    const Reply reply = unary(*victim, "/t/Echo", segments);
    failed = allocation_failed();
    fail_allocation(0);
    CHECK((reply.code == Code::kOk || reply.code == Code::kUnavailable ||
           reply.code == Code::kResourceExhausted));
    losses += reply.code != Code::kOk;
    CHECK(unary(*good, "/t/Echo", segments).code == Code::kOk);
  }
  CHECK(losses != 0);
}

TEST_CASE_TEMPLATE("shortage: a newcomer for whom a server has no memory leaves no link there", Way,
                   TENSORWIRE_WAYS) {
  if (!kFailsOnDemand)
    return not_tried("ThreadSanitizer insists on its own allocator: none fails on demand");
  Suffering suffering;
  Closing good(suffering.connect());
  const auto bytes = bytes_of(1000);
  REQUIRE(unary(*good, "/t/Echo", {out(bytes)}).code == Code::kOk);
  const auto before = open_descriptors();
  bool failed = true;
  int losses = 0;
  for (int n = 1; failed; ++n) {
    REQUIRE(n < 500);
    CAPTURE(n);
    const auto in = suffering.invitation(Way::kName);
    fail_allocation(n);
    auto newcomer = connect(runtime(), in, nullptr, {}, {patience()});
    const Code code =
        newcomer ? unary(**newcomer, "/t/Echo", {out(bytes)}).code : newcomer.status().code();
    failed = allocation_failed();
    fail_allocation(0);
    CHECK((code == Code::kOk || code == Code::kUnavailable || code == Code::kResourceExhausted));
    losses += code != Code::kOk;
    if (newcomer) (*newcomer)->link().close({Code::kCancelled, "the test is over"});
    REQUIRE(eventually([&] { return ports_of(*suffering.server).size() == 1; }));
    CHECK(unary(*good, "/t/Echo", {out(bytes)}).code == Code::kOk);
  }
  CHECK(losses != 0);
  CHECK(eventually([&] { return open_descriptors() <= before; }));
}

TEST_CASE_TEMPLATE("shortage: a deadline ends its call without memory", Way, TENSORWIRE_LINKS) {
  if (!kFailsOnDemand)
    return not_tried("ThreadSanitizer insists on its own allocator: none fails on demand");
  House house(echo);
  bool failed = true;
  for (int n = 1; failed; ++n) {
    CAPTURE(n);
    Closing link(house.connect<Way>());
    const auto call = start(*link, "/t/Echo", now() + 60 * kSecond);
    Timed& timed = *call;
    {
      Failing failing(n);
      timed.on_timer();
      failed = failing.end();
    }
    CHECK(call->ended());
    CHECK(call->outcome().code == Code::kDeadlineExceeded);
  }
}

TEST_CASE("helper: leaves without memory" * doctest::skip()) {
  const int n = read_thing<int>(kFromTest);
  House house(echo);
  const auto link = house.connect<ShmWay>();
  runtime().trace(100);
  REQUIRE(unary(*link, "/t/Echo", {}).code == Code::kOk);
  Failing failing(n);
  Runtime::shut_down();
  write_thing(kToTest, failing.end());
  _exit(0);
}

TEST_CASE("shortage: a process shuts down without memory") {
  if (!kFailsOnDemand)
    return not_tried("ThreadSanitizer insists on its own allocator: none fails on demand");
  bool failed = true;
  int n = 1;
  for (; failed; ++n) {
    CAPTURE(n);
    Helper helper("leaves without memory");
    helper.tell(n);
    failed = helper.hear<bool>();
  }
  CHECK(n > 3);  // a trace was left
}

}  // namespace
}  // namespace tw::test

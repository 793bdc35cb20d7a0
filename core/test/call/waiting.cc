// SPDX-License-Identifier: Apache-2.0
// Calls that nobody has begun to serve: beyond a few they wait as what was sent for them.
#include <algorithm>
#include <array>
#include <atomic>
#include <thread>

#include "call/connect.h"
#include "test/call/world.h"

namespace tw::test {
namespace {

constexpr uint32_t kCalls = 600;

// One worker, who is held up by the first call and then answers each with what it was sent.
struct Queue {
  Queue()
      : house(
            [this](Ref<ServerCall> call) {
              if (call->method() == "/t/Gate") {
                gate.take();
                finish(*call);
                return Ref<ServerCall>{};
              }
              std::vector<std::byte> all;
              InMessage message;
              while (receive(*call, message))
                for (const InSegment& segment : message.segments)
                  all.insert(all.end(), segment.data, segment.data + segment.size);
              uint32_t number = 0;
              if (all.size() >= sizeof number) std::memcpy(&number, all.data(), sizeof number);
              served.push_back(number);
              answer(*call, {out(all)});
              return Ref<ServerCall>{};
            },
            1),
        link(house.connect<TcpWay>()),
        first(start(*link, "/t/Gate")) {}

  // A stream of two messages, which is not waited for.
  Ref<ClientCall> ask(uint32_t number) {
    auto call = start(*link, "/t/Echo");
    const auto bytes = bytes_of(1000, number);
    std::vector<std::byte> name(sizeof number);
    std::memcpy(name.data(), &number, sizeof number);
    REQUIRE(send(*call, {out(name)}));
    REQUIRE(send(*call, {out(bytes)}, true));
    return call;
  }
  // The server may still be about to hear of the link.
  size_t waiting() {
    const auto ports = ports_of(house.server());
    return ports.empty() ? 0 : ports.front()->waiting_calls();
  }

  std::vector<uint32_t> served;  // the worker's
  Slot<bool> gate;
  House house;
  Closing link;
  const Ref<ClientCall> first;
};

TEST_CASE("waiting: calls are served in their order, with all that was sent for them") {
  Queue queue;
  std::vector<Ref<ClientCall>> calls;
  for (uint32_t i = 0; i < kCalls; ++i) calls.push_back(queue.ask(i));
  // The one that is held up has not begun.
  REQUIRE(eventually([&] { return queue.waiting() == kCalls - 127; }));
  CHECK(queue.house.server().active() == kCalls + 1);
  for (uint32_t i = kCalls - 10; i < kCalls; ++i) REQUIRE(calls[i]->cancel(Code::kCancelled, ""));
  REQUIRE(eventually([&] { return queue.waiting() == kCalls - 137; }));
  CHECK(ports_of(queue.house.server()).at(0)->stats().dropped_calls == 10);
  queue.gate.put(true);
  for (uint32_t i = 0; i < kCalls - 10; ++i) {
    REQUIRE(in_time(calls[i]->wait_ended(patience())));
    CHECK(calls[i]->outcome().code == Code::kOk);
    InMessage reply;
    REQUIRE(calls[i]->take(reply));
    CHECK(reply.payload_bytes == 1004);
  }
  queue.house.close();
  REQUIRE(queue.served.size() == kCalls - 10);
  CHECK(std::is_sorted(queue.served.begin(), queue.served.end()));
}

TEST_CASE("waiting: messages that come while the turn of their call does stay in order") {
  constexpr uint32_t kMessages = 20'000;
  for (int round = 0; round < 5; ++round) {
    Queue queue;
    std::vector<Ref<ClientCall>> calls;
    for (uint32_t i = 0; i < 140; ++i) calls.push_back(queue.ask(i));
    const auto call = start(*queue.link, "/t/Echo");
    queue.gate.put(true);
    for (uint32_t i = 0; i < kMessages; ++i) {
      std::vector<std::byte> number(sizeof i);
      std::memcpy(number.data(), &i, sizeof i);
      REQUIRE(send(*call, {out(number)}, i + 1 == kMessages));
    }
    REQUIRE(in_time(call->wait_ended(patience())));
    InMessage reply;
    REQUIRE(call->take(reply));
    REQUIRE(reply.payload_bytes == kMessages * sizeof(uint32_t));
    std::vector<uint32_t> numbers(kMessages);
    std::memcpy(numbers.data(), reply.segments.at(0).data, reply.payload_bytes);
    CHECK(std::ranges::is_sorted(numbers));
  }
}

TEST_CASE("waiting: calls end with their link") {
  Queue queue;
  std::vector<Ref<ClientCall>> calls;
  for (uint32_t i = 0; i < kCalls; ++i) calls.push_back(queue.ask(i));
  REQUIRE(eventually([&] { return queue.waiting() == kCalls - 127; }));
  SUBCASE("closed by the server") {
    queue.gate.put(true);
    ports_of(queue.house.server()).at(0)->link().close({Code::kUnavailable, "going"});
  }
  SUBCASE("closed by the client") {
    queue.link->link().close({Code::kCancelled, "gone"});
    CHECK(eventually([&] { return ports_of(queue.house.server()).empty(); }));
    queue.gate.put(true);
  }
  for (const auto& call : calls) {
    REQUIRE(in_time(call->wait_ended(patience())));
    const Code code = call->outcome().code;
    CHECK((code == Code::kOk || code == Code::kUnavailable || code == Code::kCancelled));
  }
}

TEST_CASE_TEMPLATE("waiting: a message that is there is not waited for", Way, TENSORWIRE_LINKS) {
  Open server;
  const Closing link(server.house.connect<Way>());
  const auto call = start(*link, "/t/Long");
  const auto served = server.calls.take();
  const Wait interrupted{kForever, [](void*) { return 1; }, nullptr};
  InMessage message;
  CHECK(await_message(*served, message, interrupted) == Ended::kInterrupted);
  CHECK(await_message(*served, message, {now() + kMillisecond}) == Ended::kTimeout);
  for (const Wait& wait : {Wait{patience()}, interrupted, Wait{0}}) {
    REQUIRE(send(*call, {out(bytes_of(8))}));
    REQUIRE(eventually([&] {
      (void)served->wait_message(now());
      return served->has_message();
    }));
    CHECK(await_message(*served, message, wait) == Ended::kDone);
    CHECK(message.payload_bytes == 8);
    message = {};
  }
  CHECK(wait_ended(*call, {0}) == Ended::kTimeout);
  CHECK(finish(*served));
  CHECK(wait_ended(*call, {patience()}) == Ended::kDone);
  CHECK(wait_ended(*call, interrupted) == Ended::kDone);
}

TEST_CASE_TEMPLATE("waiting: a message that another thread takes ends nobody's wait", Way,
                   TENSORWIRE_LINKS) {
  constexpr int kMessages = 3000, kBurst = 3;
  Open server;
  const Closing link(server.house.connect<Way>());
  const auto call = start(*link, "/t/Long");
  const auto served = server.calls.take();
  std::atomic<bool> last{false};
  std::atomic<int> taken{0}, deceived{0};
  const auto read = [&] {
    InMessage message;
    while (await_message(*served, message, {patience()}) == Ended::kDone) {
      message = {};
      taken += 1;
    }
    deceived += !last;
  };
  std::array<std::thread, 3> readers;
  for (std::thread& reader : readers) reader = std::thread(read);
  for (int i = 0; i < kMessages; ++i) {
    if (i == kMessages - 1) last = true;
    const bool sent = send(*call, {out(bytes_of(8))}, i == kMessages - 1);
    // A few at a time, so that readers wait for more, and race for the last one.
    if (!sent || (i % kBurst == 0 && !eventually([&] { return taken > i; }))) break;
  }
  last = true;
  (void)call->cancel(Code::kCancelled, "");
  for (std::thread& reader : readers) reader.join();
  CHECK(taken.load() == kMessages);
  CHECK(deceived.load() == 0);
}

TEST_CASE("waiting: calls that come are waited for, until the server is closed") {
  const auto server = Server::create().value();
  std::vector<Ref<ServerCall>> calls;
  const Wait interrupted{kForever, [](void*) { return 1; }, nullptr};
  CHECK(await_calls(*server, calls, 8, {now() + kMillisecond}) == Ended::kTimeout);
  CHECK(await_calls(*server, calls, 8, interrupted) == Ended::kInterrupted);
  CHECK(calls.empty());
  server->close();
  CHECK(await_calls(*server, calls, 8, {kForever}) == Ended::kClosed);
}

// A server whose calls the test takes itself.
struct Turns {
  Turns() : server(Server::create().value()) {
    const auto bound = server->listener().listen_tcp("127.0.0.1", 0);
    REQUIRE(bound.ok());
    port = *bound;
  }
  ~Turns() {
    server->close();
    std::vector<Ref<ServerCall>> calls;
    while (server->next(calls, 64, patience()) != Waited::kClosed) calls.clear();
  }

  Ref<CallPort> connect() {
    std::atomic<bool> there{false};
    std::thread door([&] {
      std::vector<Ref<ServerCall>> none;
      while (!there) (void)server->next(none, 1, now() + kMillisecond);
    });
    const auto ticket = server->listener().admit(runtime().hello(), 1, 30 * kSecond);
    meet::Invitation in;
    in.address = "tcp:127.0.0.1:" + std::to_string(port);
    in.session = ticket->session;
    in.secret = ticket->secret;
    in.instance = server->instance();
    in.hello = runtime().hello();
    auto link = tw::connect(runtime(), in, nullptr, {}, {patience()});
    there = true;
    door.join();
    REQUIRE(link.ok());
    return std::move(*link);
  }

  const Ref<Server> server;
  int port = 0;
};

TEST_CASE("waiting: who waits has sent what waited for company") {
  Turns turns;
  Closing link(turns.connect());
  const auto call = start(*link, "/t/Long");
  std::vector<Ref<ServerCall>> calls;
  REQUIRE(await_calls(*turns.server, calls, 1, {patience()}) == Ended::kDone);
  const auto bytes = bytes_of(8);
  std::vector<OutSegment> segments{out(bytes)};
  // Nobody polls for this end, so no timer sends it.
  REQUIRE(calls[0]->send_message(segments, true).ok());
  InMessage message;
  CHECK(await_message(*calls[0], message, {now()}) == Ended::kTimeout);
  REQUIRE(receive(*call, message));
  CHECK(message.payload_bytes == 8);
}

TEST_CASE("waiting: one call comes before most of the many of another link") {
  Turns turns;
  Closing greedy(turns.connect()), modest(turns.connect());
  std::vector<Ref<ClientCall>> many;
  for (int i = 0; i < 100; ++i) many.push_back(start(*greedy, "/t/Many"));
  const Ref<ClientCall> one = start(*modest, "/t/One");
  size_t before = 0;
  for (bool found = false; !found;) {
    std::vector<Ref<ServerCall>> calls;
    REQUIRE(await_calls(*turns.server, calls, 8, {patience()}) == Ended::kDone);
    for (const auto& call : calls) {
      found = found || call->method() == "/t/One";
      before += !found;
      finish(*call);
    }
  }
  CHECK(before < 32);
}

}  // namespace
}  // namespace tw::test

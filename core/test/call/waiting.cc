// Calls that nobody has begun to serve: beyond a few they wait as what was sent for them.
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
  size_t waiting() { return links_of(house.server()).at(0)->waiting_calls(); }

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
  CHECK(links_of(queue.house.server()).at(0)->stats().dropped_calls == 10);
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

TEST_CASE("waiting: calls end with their link") {
  Queue queue;
  std::vector<Ref<ClientCall>> calls;
  for (uint32_t i = 0; i < kCalls; ++i) calls.push_back(queue.ask(i));
  REQUIRE(eventually([&] { return queue.waiting() == kCalls - 127; }));
  SUBCASE("closed by the server") {
    queue.gate.put(true);
    links_of(queue.house.server()).at(0)->close({Code::kUnavailable, "going"});
  }
  SUBCASE("closed by the client") {
    queue.link->close({Code::kCancelled, "gone"});
    CHECK(eventually([&] { return links_of(queue.house.server()).empty(); }));
    queue.gate.put(true);
  }
  for (const auto& call : calls) {
    REQUIRE(in_time(call->wait_ended(patience())));
    const Code code = call->outcome().code;
    CHECK((code == Code::kOk || code == Code::kUnavailable || code == Code::kCancelled));
  }
}

}  // namespace
}  // namespace tw::test

// SPDX-License-Identifier: Apache-2.0
// What happens to a call, announced to a queue on which nobody has to wait.
#include <poll.h>

#include "test/call/world.h"

namespace tw::test {
namespace {

using Happening = Call::Happening;

// Nothing has been announced so far.
bool silent(EventQueue& queue) {
  std::vector<uint64_t> tokens;
  return take_tokens(queue, tokens, 1, 0) == Waited::kTimeout;
}

// The next token, once there is one.
uint64_t next(EventQueue& queue) {
  std::vector<uint64_t> tokens;
  REQUIRE(take_tokens(queue, tokens, 1, patience()) == Waited::kDone);
  return tokens.at(0);
}

TEST_CASE_TEMPLATE("happening: messages, at either end", Way, TENSORWIRE_LINKS) {
  Open server;
  Closing link(server.house.connect<Way>());
  const auto call = start(*link, "/t/Echo");
  const auto served = server.calls.take();
  auto queue = make_ref<EventQueue>();
  InMessage message;
  for (uint32_t i = 0; i < 3; ++i) {
    CAPTURE(i);
    served->notify(Happening::kMessage, queue, 10 + i);
    CHECK(silent(*queue));
    REQUIRE(send(*call, {out(bytes_of(8, i))}));
    CHECK(next(*queue) == 10 + i);
    REQUIRE(served->take(message));
    call->notify(Happening::kMessage, queue, 20 + i);
    REQUIRE(send(*served, {outs(message.segments).at(0)}));
    CHECK(next(*queue) == 20 + i);
    call->notify(Happening::kMessage, queue, 30 + i);  // it is still there
    CHECK(next(*queue) == 30 + i);
    REQUIRE(call->take(message));
    CHECK(same(message.segments.at(0), bytes_of(8, i)));
  }
  CHECK(silent(*queue));
  served->notify(Happening::kMessage, queue, 40);
  REQUIRE(call->end_send().ok());
  CHECK(next(*queue) == 40);  // surely none any more
  CHECK_FALSE(served->has_message());
  call->notify(Happening::kMessage, queue, 41);
  call->notify(Happening::kEnded, queue, 42);
  REQUIRE(finish(*served));
  const uint64_t first = next(*queue), second = next(*queue);
  CHECK(first + second == 41 + 42);
  CHECK(call->ended());
}

TEST_CASE_TEMPLATE("happening: room for the next message", Way, TENSORWIRE_LINKS) {
  Open server;
  Closing link(server.house.connect<Way>());
  const auto call = start(*link, "/t/Slow");
  const auto served = server.calls.take();
  auto queue = make_ref<EventQueue>();
  call->notify(Happening::kRoom, queue, 1);
  CHECK(next(*queue) == 1);
  const auto large = bytes_of(1 << 20);
  uint32_t count = 0;
  for (; call->sendable(); ++count) {
    REQUIRE(count < 1000);
    REQUIRE(send(*call, {out(large)}));
  }
  call->notify(Happening::kRoom, queue, 2);
  CHECK(silent(*queue));
  SUBCASE("the peer takes what was sent") {
    InMessage message;
    for (uint32_t taken = 0; taken < count; ++taken) REQUIRE(receive(*served, message));
    CHECK(next(*queue) == 2);
    CHECK(call->sendable());
    CHECK(finish(*served));
  }
  SUBCASE("the call ends") {
    CHECK(finish(*served));
    CHECK(next(*queue) == 2);
  }
  SUBCASE("the link is lost") {
    link->link().close({Code::kCancelled, "the test is over"});
    CHECK(next(*queue) == 2);
    CHECK(call->ended());
  }
}

TEST_CASE_TEMPLATE("happening: initial metadata", Way, TENSORWIRE_LINKS) {
  Open server;
  Closing link(server.house.connect<Way>());
  const auto call = start(*link, "/t/Early");
  const auto served = server.calls.take();
  auto queue = make_ref<EventQueue>();
  call->notify(Happening::kInitial, queue, 1);
  CHECK(silent(*queue));
  SUBCASE("alone") {
    REQUIRE(served->send_initial(Entries{{"early", "bird"}}).ok());
    CHECK(next(*queue) == 1);
    CHECK(call->initial().view.size() == 1);
    call->notify(Happening::kInitial, queue, 2);
    CHECK(next(*queue) == 2);
    CHECK(finish(*served));
  }
  SUBCASE("none comes") {
    CHECK(finish(*served));
    CHECK(next(*queue) == 1);
    CHECK(call->initial().view.empty());
  }
}

TEST_CASE_TEMPLATE("happening: a cut is no end that the server wanted", Way, TENSORWIRE_LINKS) {
  Open server;
  Closing link(server.house.connect<Way>());
  auto queue = make_ref<EventQueue>();
  const auto finished = start(*link, "/t/Done");
  const auto first = server.calls.take();
  first->notify(Happening::kCut, queue, 1);
  first->notify(Happening::kEnded, queue, 2);
  CHECK(finish(*first));
  CHECK(next(*queue) == 2);
  const auto cancelled = start(*link, "/t/Cut");
  const auto second = server.calls.take();
  second->notify(Happening::kCut, queue, 3);
  CHECK(cancelled->cancel(Code::kCancelled, "enough"));
  CHECK(next(*queue) == 3);
  CHECK(silent(*queue));
}

TEST_CASE("happening: an event loop watches the queue's descriptor") {
  EventQueue queue;
  const auto descriptor = queue.descriptor();
  REQUIRE(descriptor.ok());
  CHECK(*queue.descriptor() == *descriptor);
  const auto readable = [&] {
    pollfd watched{*descriptor, POLLIN, 0};
    return ::poll(&watched, 1, 0) == 1;
  };
  std::vector<uint64_t> tokens;
  CHECK_FALSE(readable());
  for (int round = 0; round < 3; ++round) {
    queue.push(1);
    queue.push(2);
    CHECK(readable());
    take_tokens(queue, tokens, 1, 0);
    CHECK(readable());  // the second one is still there
    take_tokens(queue, tokens, 4, 0);
    CHECK(tokens == std::vector<uint64_t>{2});
    CHECK_FALSE(readable());
  }
  queue.close();
  CHECK(readable());
  CHECK(take_tokens(queue, tokens, 1, 0) == Waited::kClosed);
  CHECK(readable());
}

TEST_CASE("happening: a descriptor that is made late tells of what is there") {
  EventQueue queue;
  queue.push(1);
  pollfd watched{*queue.descriptor(), POLLIN, 0};
  CHECK(::poll(&watched, 1, 0) == 1);
}

}  // namespace
}  // namespace tw::test

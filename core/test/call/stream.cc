// SPDX-License-Identifier: Apache-2.0
// Streams from end to end: order, flow control, half-close, metadata, gathered messages.
#include <atomic>

#include "test/call/world.h"

namespace tw::test {
namespace {

void echo_stream(ServerCall& call) {
  InMessage message;
  while (receive(call, message))
    if (!send(call, outs(message.segments))) return;
  finish(call, Code::kOk, "all of it");
}

TEST_CASE_TEMPLATE("stream: messages of all sizes go both ways in order", Way, TENSORWIRE_LINKS) {
  ArenaWatch arena;
  {
    House house(echo_stream);
    Closing link(house.connect<Way>());
    const auto call = start(*link, "/t/Echo");
    constexpr uint32_t kMessages = 200;
    const auto size_of = [](uint32_t i) {
      const size_t sizes[] = {0, 8, 700, 8192, 20'000, 70'000, 300'000};
      return sizes[i * i % 7] + i % 3;
    };
    std::thread sender([&] {
      for (uint32_t i = 0; i < kMessages; ++i) {
        const auto bytes = bytes_of(size_of(i), i);
        REQUIRE(send(*call, {out(bytes)}, i + 1 == kMessages));
      }
    });
    InMessage message;
    for (uint32_t i = 0; i < kMessages; ++i) {
      REQUIRE(receive(*call, message));
      REQUIRE(message.segments.size() == 1);
      REQUIRE(same(message.segments[0], bytes_of(size_of(i), i)));
    }
    sender.join();
    CHECK_FALSE(receive(*call, message));
    REQUIRE(call->wait_ended(patience()) == Waited::kDone);
    CHECK(call->outcome().code == Code::kOk);
    CHECK(call->outcome().details == "all of it");
  }
  CHECK(arena.restored());
}

TEST_CASE_TEMPLATE("stream: several at once on one link do not mix", Way, TENSORWIRE_LINKS) {
  House house(echo_stream);
  Closing link(house.connect<Way>());
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (uint32_t t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      const auto call = start(*link, "/t/Echo");
      InMessage message;
      for (uint32_t i = 0; i < 100; ++i) {
        const auto bytes = bytes_of(i % 9 == 0 ? 50'000 : i, t * 1000 + i);
        wrong += !send(*call, {out(bytes)}, i == 99);
        wrong += !receive(*call, message) || !same(message.segments.at(0), bytes);
      }
      wrong += call->wait_ended(patience()) != Waited::kDone;
    });
  for (auto& thread : threads) thread.join();
  CHECK(wrong == 0);
}

TEST_CASE_TEMPLATE("stream: a slow reader closes the window, and opens it again", Way,
                   TENSORWIRE_LINKS) {
  Slot<Ref<ServerCall>> arrived;
  House house(
      [&](Ref<ServerCall> call) {
        arrived.put(call);
        return Ref<ServerCall>{};
      },
      1);
  Closing link(house.connect<Way>());
  const size_t window = runtime().settings().stream_window_bytes;
  constexpr size_t kSize = 2 << 20;
  const auto bytes = bytes_of(kSize);

  const auto fill_window = [&](auto&& sendable, auto&& send_it) {
    size_t sent = 0;
    while (sendable()) {
      REQUIRE(send_it());
      sent += kSize;
      REQUIRE(sent < 2 * window);
    }
    return sent;
  };
  const auto check = [&](Call& reader, auto&& sendable, auto&& send_it, auto&& wait_sendable) {
    const size_t sent = fill_window(sendable, send_it);
    CHECK(sent >= window - kSize);
    CHECK_FALSE(sendable());
    CHECK(wait_sendable(now() + kMillisecond) == Waited::kTimeout);
    InMessage message;
    size_t received = 0;
    while (received < sent) {
      REQUIRE(receive(reader, message));
      REQUIRE(same(message.segments[0], bytes));
      received += message.payload_bytes;
    }
    CHECK(wait_sendable(patience()) == Waited::kDone);
    REQUIRE(send_it());
    REQUIRE(receive(reader, message));
  };
  const auto call = start(*link, "/t/Slow");
  const auto served = arrived.take();
  check(
      *served, [&] { return call->sendable(); }, [&] { return send(*call, {out(bytes)}); },
      [&](Nanos deadline) { return call->wait_sendable(deadline); });
  check(
      *call, [&] { return served->sendable(); }, [&] { return send(*served, {out(bytes)}); },
      [&](Nanos deadline) { return served->wait_sendable(deadline); });
  // What is larger than the window passes, alone.
  const auto huge = bytes_of(window + 1000);
  REQUIRE(send(*call, {out(huge)}, true));
  InMessage message;
  REQUIRE(receive(*served, message));
  CHECK(same(message.segments[0], huge));
  finish(*served);
  REQUIRE(call->wait_ended(patience()) == Waited::kDone);
}

TEST_CASE_TEMPLATE("stream: empty messages are bounded by the window too", Way, TENSORWIRE_LINKS) {
  House house(echo_stream);
  constexpr uint64_t kWindow = 6400;
  Closing link(house.connect<Way>(1 << 20, kWindow));
  const auto call = start(*link, "/t/Echo");
  for (size_t i = 0; i < kWindow / kMessageOverhead; ++i) {
    REQUIRE(call->sendable());
    REQUIRE(call->send_message({}, false, false).ok());
  }
  CHECK_FALSE(call->sendable());
}

TEST_CASE_TEMPLATE("stream: threads that send on one stream pay for each message", Way,
                   TENSORWIRE_LINKS) {
  constexpr int kThreads = 4, kMessages = 8;
  std::atomic<int> received{0};
  House house(
      [&](Ref<ServerCall> call) {
        InMessage message;
        while (receive(*call, message)) ++received;
        finish(*call);
        return Ref<ServerCall>{};
      },
      1);
  Closing link(house.connect<Way>());
  const auto call = start(*link, "/t/Count");
  // Each credit comes for one message, and tells all threads of room for another one.
  const auto bytes = bytes_of(runtime().settings().stream_window_bytes / 4);
  std::vector<std::thread> threads;
  std::atomic<int> sent{0};
  for (int i = 0; i < kThreads; ++i)
    threads.emplace_back([&] {
      for (int j = 0; j < kMessages; ++j) sent += send(*call, {out(bytes)}, false);
    });
  for (std::thread& thread : threads) thread.join();
  CHECK(sent == kThreads * kMessages);
  CHECK(call->end_send().ok());
  CHECK(call->wait_ended(patience()) == Waited::kDone);
  CHECK(received == kThreads * kMessages);
  CHECK(link->link().alive());
}

TEST_CASE_TEMPLATE("stream: a message that waits for company goes out by itself", Way,
                   TENSORWIRE_LINKS) {
  Slot<Ref<ServerCall>> arrived;
  House house(
      [&](Ref<ServerCall> call) {
        arrived.put(call);
        return Ref<ServerCall>{};
      },
      1);
  Closing link(house.connect<Way>());
  const auto call = start(*link, "/t/Quiet");
  const auto served = arrived.take();
  InMessage message;
  const auto one = bytes_of(10, 1), two = bytes_of(10, 2);
  for (int round = 0; round < 5; ++round) {
    std::vector<OutSegment> segments{out(one)};
    REQUIRE(call->send_message(segments, false, true).ok());
    segments = {out(two)};
    REQUIRE(call->send_message(segments, false, true).ok());
    REQUIRE(receive(*served, message));
    CHECK(same(message.segments[0], one));
    REQUIRE(receive(*served, message));
    CHECK(same(message.segments[0], two));
    segments = {out(one)};
    REQUIRE(served->send_message(segments, true).ok());
    REQUIRE(eventually([&] { return call->take(message); }));
    CHECK(same(message.segments[0], one));
  }
}

TEST_CASE_TEMPLATE("stream: small messages whose memory is lent do not wait for company", Way,
                   TENSORWIRE_WAYS) {
  Slot<Ref<ServerCall>> arrived;
  House house(
      [&](Ref<ServerCall> call) {
        arrived.put(call);
        return Ref<ServerCall>{};
      },
      1);
  // Nothing is copied along, hence the sender lends all that the transport does not map.
  house.thresholds.fill(0);
  house.thresholds[static_cast<size_t>(Threshold::kChunk)].reset();
  Closing link(house.connect<Way>());
  const auto call = start(*link, "/t/Quiet");
  const auto served = arrived.take();
  const auto one = bytes_of(256);
  constexpr int kMessages = 64;
  for (int i = 0; i < kMessages; ++i) REQUIRE(send(*call, {out(one)}, false));
  InMessage message;
  for (int i = 0; i < kMessages; ++i) {
    REQUIRE(receive(*served, message));
    CHECK(same(message.segments[0], one));
  }
}

TEST_CASE_TEMPLATE("stream: replies that nobody waits for are sent to the last byte", Way,
                   TENSORWIRE_LINKS) {
  // Small ones are copied and handed over at once; when the pipe is full, the rest of them is the
  // background's.
  constexpr int kCalls = 8, kReplies = 300;
  const auto part = bytes_of(8000);
  House house(
      [&](Ref<ServerCall> call) {
        for (int i = 0; i < kReplies; ++i) {
          std::vector<OutSegment> segments{out(part)};
          REQUIRE(call->send_message(segments, false).ok());
        }
        finish(*call);
        return Ref<ServerCall>{};
      },
      4);
  Closing link(house.connect<Way>());
  auto queue = make_ref<EventQueue>();
  std::vector<Ref<ClientCall>> calls;
  for (int i = 0; i < kCalls; ++i) {
    calls.push_back(start(*link, "/t/Flood"));
    calls.back()->notify(Call::Happening::kEnded, queue, static_cast<uint64_t>(i));
  }
  // The client sends nothing and drives nothing either.
  size_t ended = 0;
  std::vector<uint64_t> tokens;
  while (ended < kCalls) {
    REQUIRE(take_tokens(*queue, tokens, 100, patience()) == Waited::kDone);
    ended += tokens.size();
  }
  for (auto& call : calls) {
    CHECK(call->outcome().code == Code::kOk);
    int got = 0;
    InMessage message;
    while (call->take(message)) got += same(message.segments[0], part);
    CHECK(got == kReplies);
  }
}

TEST_CASE_TEMPLATE("stream: last replies that nobody waits for arrive as well", Way,
                   TENSORWIRE_LINKS) {
  constexpr size_t kCalls = 1500;
  const auto part = bytes_of(15'000);
  House house(
      [&](Ref<ServerCall> call) {
        std::vector<OutSegment> segments{out(part)};
        call->finish(Code::kOk, {}, {}, true, segments);
        return Ref<ServerCall>{};
      },
      2);
  Closing link(house.connect<Way>());
  auto queue = make_ref<EventQueue>();
  std::vector<Ref<ClientCall>> calls;
  for (size_t i = 0; i < kCalls; ++i) {
    calls.push_back(start(*link, "/t/One"));
    calls.back()->notify(Call::Happening::kEnded, queue, i);
  }
  size_t ended = 0;
  std::vector<uint64_t> tokens;
  while (ended < kCalls) {
    REQUIRE(take_tokens(*queue, tokens, 100, patience()) == Waited::kDone);
    ended += tokens.size();
  }
  size_t got = 0;
  InMessage message;
  for (auto& call : calls) got += call->take(message) && same(message.segments[0], part);
  CHECK(got == kCalls);
}

TEST_CASE_TEMPLATE("stream: initial metadata comes ahead of the first message", Way,
                   TENSORWIRE_LINKS) {
  Slot<int> go;
  House house(
      [&](Ref<ServerCall> call) {
        REQUIRE(call->send_initial(Entries{{"early", "bird"}}).ok());
        CHECK(call->send_initial(Entries{{"again", ""}}).code() == Code::kFailedPrecondition);
        go.take();
        echo_stream(*call);
        return Ref<ServerCall>{};
      },
      1);
  Closing link(house.connect<Way>());
  const auto call = start(*link, "/t/Echo");
  REQUIRE(call->wait_initial(patience()) == Waited::kDone);
  CHECK_FALSE(call->ended());
  REQUIRE(call->initial().view.size() == 1);
  CHECK((*call->initial().view.begin()).value == "bird");
  go.put(1);
  REQUIRE(call->end_send().ok());
  REQUIRE(call->wait_ended(patience()) == Waited::kDone);
}

}  // namespace
}  // namespace tw::test

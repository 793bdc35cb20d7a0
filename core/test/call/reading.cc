// SPDX-License-Identifier: Apache-2.0
// Calls that last until their messages have been taken, whatever ends them.
#include <atomic>

#include "test/call/world.h"

namespace tw::test {
namespace {

// A call whose server has sent `messages`, and has finished with OUT_OF_RANGE.
struct Told {
  static constexpr uint32_t kMessages = 3;

  template <class Way>
  static Told by(House& house, Nanos deadline = kForever) {
    Told told{Ref<CallPort>(house.connect<Way>()), {}};
    told.call = start(*told.link, "/t/Many", deadline, {}, true);
    REQUIRE(eventually([&] { return told.call->over(); }));
    return told;
  }
  ~Told() {
    if (link) link->link().close({Code::kCancelled, "the test is over"});
  }

  Ref<CallPort> link;
  Ref<ClientCall> call;
};

void many(ServerCall& call) {
  for (uint32_t i = 0; i < Told::kMessages; ++i)
    if (!send(call, {out(bytes_of(100, i))})) return;
  finish(call, Code::kOutOfRange, "no more");
}

bool nothing_left(ClientCall& call) {
  InMessage message;
  return !call.take(message) && !receive(call, message);
}

TEST_CASE_TEMPLATE("reading: a call lasts until its messages have been taken", Way,
                   TENSORWIRE_LINKS) {
  House house(many);
  Told told = Told::by<Way>(house);
  ClientCall& call = *told.call;
  auto queue = make_ref<EventQueue>();
  call.notify(Call::Happening::kEnded, queue, 7);
  std::vector<uint64_t> tokens;
  InMessage message;
  for (uint32_t i = 0; i < Told::kMessages; ++i) {
    CHECK_FALSE(call.ended());
    CHECK(take_tokens(*queue, tokens, 1, 0) == Waited::kTimeout);
    REQUIRE(receive(call, message));
    CHECK(same(message.segments.at(0), bytes_of(100, i)));
  }
  CHECK(call.ended());
  CHECK(take_tokens(*queue, tokens, 1, 0) == Waited::kDone);
  CHECK(nothing_left(call));
  CHECK(call.outcome().code == Code::kOutOfRange);
  CHECK(call.outcome().details == "no more");
  CHECK_FALSE(call.cancel(Code::kCancelled, "too late"));
  CHECK(told.link->calls() == 0);
}

TEST_CASE_TEMPLATE("reading: nothing more is sent to a server that is done", Way,
                   TENSORWIRE_LINKS) {
  House house(many);
  Told told = Told::by<Way>(house);
  CHECK_FALSE(send(*told.call, {out(bytes_of(10))}));
  CHECK(told.call->end_send().ok());
  CHECK(told.call->wait_initial(patience()) == Waited::kDone);
  CHECK_FALSE(told.call->ended());
}

TEST_CASE_TEMPLATE("reading: cancellation drops what nobody has taken", Way, TENSORWIRE_LINKS) {
  House house(many);
  Told told = Told::by<Way>(house);
  InMessage message;
  REQUIRE(receive(*told.call, message));
  CHECK(told.call->cancel(Code::kCancelled, "enough"));
  CHECK(told.call->ended());
  CHECK(nothing_left(*told.call));
  CHECK(told.call->outcome().code == Code::kCancelled);
  CHECK(told.call->outcome().details == "enough");
}

TEST_CASE_TEMPLATE("reading: a deadline that passes drops what nobody has taken", Way,
                   TENSORWIRE_LINKS) {
  House house(many);
  until_enough(100 * kMillisecond, [&](Nanos time) {
    Told told = Told::by<Way>(house, now() + time);
    if (told.call->ended()) return false;  // before all had come
    CHECK(told.call->wait_ended(patience()) == Waited::kDone);
    CHECK(nothing_left(*told.call));
    CHECK(told.call->outcome().code == Code::kDeadlineExceeded);
    return true;
  });
}

TEST_CASE_TEMPLATE("reading: a lost link takes nothing of a call that has come whole", Way,
                   TENSORWIRE_LINKS) {
  House house(many);
  Told told = Told::by<Way>(house);
  house.close();
  REQUIRE(eventually([&] { return !told.link->link().alive(); }));
  told.link->link().close({Code::kUnavailable, "for good"});
  InMessage message;
  for (uint32_t i = 0; i < Told::kMessages; ++i) REQUIRE(receive(*told.call, message));
  CHECK(nothing_left(*told.call));
  CHECK(told.call->outcome().code == Code::kOutOfRange);
}

TEST_CASE_TEMPLATE("reading: the user's close cancels a call that has not been read", Way,
                   TENSORWIRE_LINKS) {
  House house(many);
  Told told = Told::by<Way>(house);
  told.link->link().close({Code::kCancelled, "the channel was closed"});
  CHECK(told.call->wait_ended(patience()) == Waited::kDone);
  CHECK(nothing_left(*told.call));
  CHECK(told.call->outcome().code == Code::kCancelled);
}

TEST_CASE_TEMPLATE("reading: what came before a message that is too large is handed up", Way,
                   TENSORWIRE_LINKS) {
  House house(+[](ServerCall& call) {
    if (send(call, {out(bytes_of(10))})) send(call, {out(bytes_of(5000))});
    finish(call);
  });
  Closing link(house.connect<Way>(1000));
  const auto call = start(*link, "/t/Large", kForever, {}, true);
  REQUIRE(eventually([&] { return call->over(); }));
  CHECK_FALSE(call->ended());
  InMessage message;
  REQUIRE(receive(*call, message));
  CHECK(same(message.segments.at(0), bytes_of(10)));
  CHECK(nothing_left(*call));
  CHECK(call->outcome().code == Code::kResourceExhausted);
}

TEST_CASE_TEMPLATE("reading: whoever takes the last message or cancels, it ends once", Way,
                   TENSORWIRE_LINKS) {
  House house(many);
  Closing link(house.connect<Way>());
  auto queue = make_ref<EventQueue>();
  constexpr uint64_t kRounds = 100;
  for (uint64_t i = 0; i < kRounds; ++i) {
    const auto call = start(*link, "/t/Many", kForever, {}, true);
    call->notify(Call::Happening::kEnded, queue, i);
    std::atomic<bool> cancelled{false};
    std::thread canceller([&] {
      if (i % 2) (void)eventually([&] { return call->over(); });
      cancelled = call->cancel(Code::kAborted, "cancelled");
    });
    InMessage message;
    uint32_t taken = 0;
    while (receive(*call, message)) ++taken;
    canceller.join();
    REQUIRE(call->wait_ended(patience()) == Waited::kDone);
    CHECK(call->outcome().code == (cancelled ? Code::kAborted : Code::kOutOfRange));
    CHECK(taken <= Told::kMessages);
    CHECK((cancelled || taken == Told::kMessages));
  }
  std::vector<uint64_t> tokens;
  for (size_t seen = 0; seen < kRounds; seen += tokens.size())
    REQUIRE(take_tokens(*queue, tokens, 1000, patience()) == Waited::kDone);
  CHECK(take_tokens(*queue, tokens, 1, 0) == Waited::kTimeout);
}

}  // namespace
}  // namespace tw::test

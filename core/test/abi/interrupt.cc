// SPDX-License-Identifier: Apache-2.0
// Signals end every function that waits, and what it worked on goes on.
#include <pthread.h>
#include <signal.h>

#include "test/abi/world.h"

namespace tw::test::abi {
namespace {

thread_local volatile sig_atomic_t t_signals = 0;
void on_signal(int) { t_signals = t_signals + 1; }

// SIGUSR1 has a handler for as long as this lives.
class Handled {
 public:
  Handled() {
    struct sigaction action{};
    action.sa_handler = on_signal;  // no SA_RESTART, as Python's
    sigaction(SIGUSR1, &action, &before_);
  }
  ~Handled() { sigaction(SIGUSR1, &before_, nullptr); }

 private:
  struct sigaction before_{};
};

// Runs `operation` on a thread of its own and sends signals there until it has returned. False when
// it did not end by them.
template <class Operation>
bool interrupted(Operation&& operation) {
  const Handled handled;
  std::atomic<int> asked{0}, result{TW_OK};
  std::atomic<bool> done{false};
  std::thread thread([&] {
    const tw_wait wait{kPatience.timeout_ns,
                       [](void* count) {
                         ++*static_cast<std::atomic<int>*>(count);
                         return static_cast<int>(t_signals != 0);
                       },
                       &asked};
    t_signals = 0;
    result = operation(&wait);
    done = true;
  });
  const bool ended = eventually([&] {
    // It looks at its own signals only: whoever drives elsewhere is not disturbed.
    if (!done) pthread_kill(thread.native_handle(), SIGUSR1);
    return done.load();
  });
  thread.join();
  return ended && asked > 0 && result == TW_INTERRUPTED;
}

TEST_CASE_TEMPLATE("abi: a signal ends a unary call, and its link goes on", Way,
                   TENSORWIRE_ABI_WAYS) {
  std::atomic<int> cancelled{0};
  House house([&](Served call) {
    if (method_of(call.get()) == "/t/Echo") return echo(call.get());
    const Message request = receive(call.get());
    tw_message* none;
    CHECK(tw_call_receive(call.get(), &kPatience, &none, nullptr) == TW_OK);
    CHECK(none == nullptr);
    REQUIRE(eventually([&] { return tw_call_active(call.get()) == 0; }));
    CHECK(finish(call.get()) == TW_CODE_CANCELLED);
    ++cancelled;
  });
  const Link link = house.dial(Way::kName);
  for (const size_t size : {size_t{10}, size_t{2} << 20}) {
    const std::string text = text_of(size);
    tw_reply reply{};
    CHECK(interrupted([&](const tw_wait* wait) {
      return tw_peer_unary_into(link.get(), "/t/Hang", 7, {}, Payload({text}), nullptr, 0, wait,
                                &reply, nullptr);
    }));
    CHECK(reply.message == nullptr);
    CHECK(reply.trailing == nullptr);
    CHECK(echoes(link.get(), size));
  }
  house.close();
  CHECK(cancelled <= 2);  // one may have been withdrawn before it was whole
}

TEST_CASE_TEMPLATE("abi: a signal ends the waits of a call, which goes on", Way,
                   TENSORWIRE_ABI_WAYS) {
  Server server;
  const Link link = server.connect(Way::kName);
  const Call call = start(link.get(), "/t/Any");
  const Served served = server.next();
  tw_message* message = nullptr;
  tw_metadata* metadata = nullptr;
  int32_t code = -7;
  CHECK(interrupted(
      [&](const tw_wait* wait) { return tw_call_receive(call.get(), wait, &message, nullptr); }));
  CHECK(interrupted(
      [&](const tw_wait* wait) { return tw_call_receive(served.get(), wait, &message, nullptr); }));
  CHECK(message == nullptr);
  CHECK(interrupted(
      [&](const tw_wait* wait) { return tw_call_initial(call.get(), wait, &metadata, nullptr); }));
  CHECK(interrupted([&](const tw_wait* wait) {
    return tw_call_outcome(call.get(), wait, &code, &metadata, nullptr);
  }));
  CHECK(metadata == nullptr);
  CHECK(code == -7);
  CHECK_FALSE(tw_call_ended(call.get()));

  REQUIRE(tw_call_send(call.get(), Payload({"there"}), 1, &kPatience, nullptr) == TW_OK);
  CHECK(segment(receive(served.get())) == "there");
  CHECK(finish(served.get(), TW_CODE_NOT_FOUND, "and back", Payload({"back"})) == TW_OK);
  CHECK(segment(receive(call.get())) == "back");
  CHECK(tw_call_outcome(call.get(), &kPatience, &code, &metadata, nullptr) == TW_OK);
  CHECK(code == TW_CODE_NOT_FOUND);
}

TEST_CASE_TEMPLATE("abi: a signal ends a send against a full window", Way, TENSORWIRE_ABI_WAYS) {
  House house([](Served call) {
    if (method_of(call.get()) == "/t/Echo") return echo(call.get());
    // Takes nothing.
    REQUIRE(eventually([&] { return tw_call_active(call.get()) == 0; }));
  });
  const Link link = house.dial(Way::kName);
  const Call call = start(link.get(), "/t/Full");
  const std::string text = text_of(1 << 20);
  int sent = 0;
  for (; tw_call_sendable(call.get()); ++sent) {
    REQUIRE(sent < 1000);
    REQUIRE(tw_call_send(call.get(), Payload({text}), 0, &kPatience, nullptr) == TW_OK);
  }
  CHECK(sent > 0);
  CHECK(interrupted([&](const tw_wait* wait) {
    return tw_call_send(call.get(), Payload({text}), 0, wait, nullptr);
  }));
  tw_status status{};
  CHECK(tw_call_send(call.get(), Payload({text}), 0, &kAtOnce, &status) ==
        TW_CODE_DEADLINE_EXCEEDED);
  CHECK(std::strlen(status.details) > 0);
  CHECK_FALSE(tw_call_ended(call.get()));
  CHECK(echoes(link.get()));
  CHECK(tw_call_cancel(call.get(), TW_CODE_CANCELLED, "enough") == 1);
  CHECK(tw_call_cancel(call.get(), TW_CODE_CANCELLED, "enough") == 0);
  CHECK(tw_call_send(call.get(), Payload({text}), 0, &kPatience, nullptr) == TW_CODE_CANCELLED);
}

TEST_CASE("abi: a signal in the middle of a message gives it up, and it may be sent again") {
  Server server;  // which nobody drives: the connection fills up
  const Link link = server.connect("tcp");
  const Call call = start(link.get(), "/t/Any");
  const Served served = server.next();
  const std::string text = text_of(64 << 20);
  CHECK(interrupted([&](const tw_wait* wait) {
    return tw_call_send(call.get(), Payload({text}), 1, wait, nullptr);
  }));
  CHECK(tw_call_sendable(call.get()));
  std::thread receiver([&] { CHECK(segment(receive(served.get())) == text); });
  CHECK(tw_call_send(call.get(), Payload({text}), 1, &kPatience, nullptr) == TW_OK);
  receiver.join();
  CHECK_FALSE(receive(served.get()));
}

TEST_CASE("abi: a signal ends the waits of servers, event queues and the arena") {
  Server server;
  tw_server_call* calls[1];
  size_t count = 7;
  CHECK(interrupted([&](const tw_wait* wait) {
    return tw_server_next(server.get(), wait, calls, 1, &count, nullptr);
  }));
  CHECK(count == 0);

  // An event queue has no result of its own for it: no tokens, and not closed.
  const Events events(tw_events_create());
  uint64_t token = 0;
  int closed = 7;
  CHECK(interrupted([&](const tw_wait* wait) {
    return tw_events_wait(events.get(), wait, &token, 1, &closed) == 0 && !closed ? TW_INTERRUPTED
                                                                                  : TW_OK;
  }));

  const size_t capacity = arena("capacity");
  std::vector<Buffer> all;
  tw_buffer* buffer = nullptr;
  const size_t most = capacity / 8;
  while (tw_allocate(nullptr, most, &kAtOnce, &buffer, nullptr) == TW_OK) {
    all.emplace_back(buffer);
    REQUIRE(all.size() <= 8);
  }
  tw_status status{};
  CHECK(tw_allocate(nullptr, most, &kAtOnce, &buffer, &status) == TW_CODE_RESOURCE_EXHAUSTED);
  CHECK(std::string_view(status.details).find("TENSORWIRE_BUFFER_BYTES") != std::string_view::npos);
  CHECK(interrupted(
      [&](const tw_wait* wait) { return tw_allocate(nullptr, most, wait, &buffer, nullptr); }));
  // Freed by another thread, the memory goes to whoever waits.
  std::thread giver([&] { all.pop_back(); });
  CHECK(tw_allocate(nullptr, most, &kPatience, &buffer, nullptr) == TW_OK);
  giver.join();
  tw_buffer_release(buffer);
}

}  // namespace
}  // namespace tw::test::abi

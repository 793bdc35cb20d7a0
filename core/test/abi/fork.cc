// SPDX-License-Identifier: Apache-2.0
// A forked child: the parent's handles fail there with a clear error, and releasing them does
// nothing.
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>

#include "test/abi/world.h"

namespace tw::test::abi {
namespace {

// What the child finds wrong; its exit status is the number of the first. doctest stays the
// parent's.
class Findings {
 public:
  void expect(bool right) {
    ++number_;
    if (!right && first_ == 0) first_ = number_;
  }
  // FAILED_PRECONDITION with a sentence about fork().
  void refused(int code, tw_status& status) {
    expect(code == TW_CODE_FAILED_PRECONDITION && std::strstr(status.details, "fork()") != nullptr);
    status = {};
  }
  int first() const { return first_; }

 private:
  int number_ = 0, first_ = 0;
};

TEST_CASE_TEMPLATE("abi: a forked child has none of its parent's handles", Way,
                   TENSORWIRE_ABI_WAYS) {
  const size_t before = arena_used();
  {
    Server server;
    const Link link = server.connect(Way::kName);
    const Call call = start(link.get(), "/t/Any");
    const Served served = server.next();
    const std::string text = text_of(1 << 20);
    REQUIRE(tw_call_send(call.get(), Payload({text}), 0, &kPatience, nullptr) == TW_OK);
    const Message message = receive(served.get());
    const Buffer received(tw_message_buffer(message.get(), 0));
    tw_buffer* own = nullptr;
    REQUIRE(tw_allocate(nullptr, 1 << 20, &kPatience, &own, nullptr) == TW_OK);
    const Buffer buffer(own);
    const Events events(tw_events_create());
    const size_t used = arena_used();

    const pid_t child = fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      Findings child_finds;
      tw_status status{};
      tw_reply reply{};
      tw_client_call* fresh = nullptr;
      tw_server_call* next = nullptr;
      tw_message* got = nullptr;
      tw_metadata* metadata = nullptr;
      int32_t code = 0;
      int port = 0;
      size_t count = 0;
      char path[128];
      uint8_t hello[TW_HELLO_SIZE]{}, session[TW_SESSION_SIZE], secret[TW_SECRET_SIZE];
      const Payload payload({text});
      child_finds.refused(tw_peer_unary_into(link.get(), "/t/Any", 6, {}, payload, nullptr, 0,
                                             nullptr, &reply, &status),
                          status);
      child_finds.refused(
          tw_peer_start(link.get(), "/t/Any", 6, {}, payload, 0, nullptr, &fresh, &status), status);
      child_finds.expect(!tw_peer_alive(link.get()));
      tw_peer_death(link.get(), &status);
      child_finds.refused(status.code, status);
      child_finds.refused(tw_call_receive(call.get(), nullptr, &got, &status), status);
      child_finds.expect(tw_call_take(call.get(), &got) == 0);
      child_finds.expect(!tw_call_sendable(call.get()) && tw_call_ended(call.get()));
      child_finds.refused(tw_call_send(call.get(), payload, 1, nullptr, &status), status);
      child_finds.refused(tw_call_end_send(call.get(), &status), status);
      child_finds.refused(tw_call_initial(call.get(), nullptr, &metadata, &status), status);
      child_finds.refused(tw_call_outcome(call.get(), nullptr, &code, &metadata, &status), status);
      child_finds.expect(tw_call_cancel(call.get(), TW_CODE_CANCELLED, "") == 0);
      child_finds.expect(!tw_call_active(served.get()));
      child_finds.refused(tw_call_send_initial(served.get(), {}, &status), status);
      child_finds.refused(tw_call_reply(served.get(), payload, nullptr, &status), status);
      child_finds.refused(
          tw_call_finish(served.get(), TW_CODE_OK, "", 0, {}, payload, &next, &status), status);
      child_finds.refused(tw_server_next(server.get(), nullptr, &next, 1, &count, &status), status);
      child_finds.refused(tw_server_listen_tcp(server.get(), "127.0.0.1", 0, &port, &status),
                          status);
      child_finds.refused(tw_server_listen_local(server.get(), path, sizeof path, &status), status);
      child_finds.refused(
          tw_server_admit(server.get(), hello, sizeof hello, "", 1, 1, session, secret, &status),
          status);
      // Memory stays readable, and stays the parent's.
      child_finds.expect(segment(message) == text);
      child_finds.expect(std::memcmp(tw_buffer_data(received.get()), text.data(), text.size()) ==
                         0);
      tw_peer_close(link.get());
      tw_server_close(server.get());
      tw_call_release(call.get());
      tw_call_release(served.get());
      tw_link_release(link.get());
      tw_server_release(server.get());
      tw_buffer_release(buffer.get());
      tw_buffer_release(received.get());
      tw_message_release(message.get());
      tw_events_release(events.get());
      // A fresh runtime serves the child.
      tw_buffer* mine = nullptr;
      child_finds.expect(tw_allocate(nullptr, 1000, &kAtOnce, &mine, nullptr) == TW_OK);
      if (mine) tw_buffer_release(mine);
      _exit(child_finds.first());
    }
    int how = -1;
    REQUIRE(waitpid(child, &how, 0) == child);
    CHECK(WIFEXITED(how));
    CHECK(WEXITSTATUS(how) == 0);

    // Nothing has happened to the parent's.
    CHECK(arena_used() == used);
    CHECK(segment(message) == text);
    CHECK(tw_peer_alive(link.get()));
    CHECK(tw_call_send(call.get(), Payload({"more"}), 1, &kPatience, nullptr) == TW_OK);
    CHECK(segment(receive(served.get())) == "more");
    CHECK(finish(served.get()) == TW_OK);
    int32_t code = -1;
    tw_metadata* trailing = nullptr;
    CHECK(tw_call_outcome(call.get(), &kPatience, &code, &trailing, nullptr) == TW_OK);
    CHECK(code == TW_CODE_OK);
  }
  CHECK(eventually([&] { return arena_used() <= before; }));
}

TEST_CASE("abi: a process that has used nothing has nothing to trim") {
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    tw_trim();
    // The first use reads the settings.
    setenv("TENSORWIRE_SPIN_US", "nonsense", 1);
    _exit(tw_trace(0, nullptr) == TW_CODE_INVALID_ARGUMENT ? 0 : 1);
  }
  int how = -1;
  REQUIRE(waitpid(child, &how, 0) == child);
  CHECK(WIFEXITED(how));
  CHECK(WEXITSTATUS(how) == 0);
}

}  // namespace
}  // namespace tw::test::abi

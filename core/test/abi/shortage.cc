// SPDX-License-Identifier: Apache-2.0
// What a caller has no memory for is a status, never an exception.
#include "test/shortage.h"

#include "test/abi/world.h"
#include "test/not_tried.h"

namespace tw::test::abi {
namespace {

void ignore_setting(void*, const tw_setting*) {}
void ignore_policy(void*, const tw_policy*, const tw_refusal*, size_t) {}
void ignore_fact(void*, const tw_fact*) {}
void ignore_stats(void*, const tw_statistics*) {}
void ignore_event(void*, const tw_trace_event*) {}
void ignore_incident(void*, const char*, const char*, uint64_t) {}

// Has whoever serves the links look at them once.
void drive(Server& server) {
  const tw_wait briefly{1'000'000, nullptr, nullptr};
  tw_server_call* call = nullptr;
  size_t count = 0;
  CHECK(tw_server_next(server.get(), &briefly, &call, 1, &count, nullptr) == TW_OK);
  CHECK(count == 0);
}

TEST_CASE_TEMPLATE("abi: each allocation of a caller may fail, and the next call works", Way,
                   TENSORWIRE_ABI_WAYS) {
  if (!kFailsOnDemand)
    return not_tried("ThreadSanitizer insists on its own allocator: none fails on demand");
  House house;
  const std::string text = text_of(60'000);
  const std::vector<std::string_view> parts(20, text);
  const Payload payload(parts);
  Link link = house.dial(Way::kName);
  bool failed = true;
  int refused = 0;
  for (int n = 1; failed; ++n) {
    REQUIRE(n < 500);
    CAPTURE(n);
    // The link may have been lost by what failed last.
    if (unary(link.get(), "/t/Echo", kNothing).code != TW_CODE_OK) link = house.dial(Way::kName);
    REQUIRE(unary(link.get(), "/t/Echo", kNothing).code == TW_CODE_OK);
    suffer(true);
    fail_allocation(n);
    tw_reply reply{};
    tw_status status{};
    const int code = tw_peer_unary_into(link.get(), "/t/Echo", 7, {}, payload, nullptr, 0,
                                        &kPatience, &reply, &status);
    failed = allocation_failed();
    fail_allocation(0);
    suffer(false);
    const Message message(reply.message);
    const Metadata initial(reply.initial), trailing(reply.trailing);
    CHECK(
        (code == TW_CODE_OK || code == TW_CODE_UNAVAILABLE || code == TW_CODE_RESOURCE_EXHAUSTED));
    refused += code != TW_CODE_OK;
  }
  CHECK(refused != 0);
}

TEST_CASE_TEMPLATE("abi: a message that finds no memory can still be taken", Way,
                   TENSORWIRE_ABI_WAYS) {
  if (!kFailsOnDemand)
    return not_tried("ThreadSanitizer insists on its own allocator: none fails on demand");
  Server server;
  const Link link = server.connect(Way::kName);
  const Call call = start(link.get(), "/t/Stream");
  const Served served = server.next();
  REQUIRE(served);
  int left = 0;
  bool failed = true;
  for (int n = 1; failed; ++n) {
    REQUIRE(n < 100);
    CAPTURE(n);
    const std::string text = text_of(100, static_cast<unsigned>(n));
    const Payload several({text, text, text, text, text});  // the usual few need no list
    REQUIRE(tw_call_send(call.get(), several, 0, &kPatience, nullptr) == TW_OK);
    tw_message* taken = nullptr;
    for (;;) {
      Failing failing(n);
      const int got = tw_call_take(served.get(), &taken);
      failed = failing.end();
      if (got || failed) break;
      drive(server);
    }
    left += taken == nullptr;
    if (!taken) REQUIRE(tw_call_take(served.get(), &taken) == 1);
    CHECK(segment(Message(taken)) == text);
  }
  CHECK(left == 2);  // its handle, and the list of its segments
}

TEST_CASE("abi: what has no status throws nothing") {
  if (!kFailsOnDemand)
    return not_tried("ThreadSanitizer insists on its own allocator: none fails on demand");
  Server server;
  const Link link = server.connect("shm");
  const std::string text = text_of(5000);
  const tw_pair pair{"key", 3, "value", 5};
  tw_client_call* started = nullptr;
  REQUIRE(tw_peer_start(link.get(), "/t/Call", 7, {&pair, 1}, Payload({text}), 0, nullptr, &started,
                        nullptr) == TW_OK);
  const Call call(started);
  const Served served = server.next();
  REQUIRE(served);
  const Message message = receive(served.get());
  const Events events(tw_events_create());
  uint8_t hello[TW_HELLO_SIZE], session[TW_SESSION_SIZE], secret[TW_SECRET_SIZE];
  REQUIRE(tw_hello(hello, nullptr) == TW_OK);
  REQUIRE(tw_server_admit(server.get(), hello, sizeof hello, "", 1, 60'000'000'000, session, secret,
                          nullptr) == TW_OK);
  const std::string name(100, 'n');

  tw_events* queue = nullptr;
  CHECK(fail_each([&] { queue = tw_events_create(); }) == 2);
  REQUIRE(queue);
  tw_events_release(queue);
  size_t noted = 0;
  const int notes = fail_each([&] {
    noted += tw_call_notify(call.get(), TW_ON_END, events.get(), 7) != 0;
    noted += tw_call_notify(call.get(), TW_ON_CUT, events.get(), 7) != 0;
  });
  CHECK(notes != 0);
  size_t pushed = 0;
  const int pushes = fail_each([&] {
    for (int i = 0; i < 200; ++i) pushed += tw_events_push(events.get(), 7) != 0;
  });
  CHECK(pushes != 0);

  int status = -1;
  tw_metadata* metadata = nullptr;
  CHECK(fail_each([&] { status = tw_call_metadata(served.get(), &metadata, nullptr); }) == 1);
  CHECK(status == TW_CODE_OK);
  size_t pairs = 0;
  tw_metadata_each(
      metadata, [](void* count, const tw_pair*) { ++*static_cast<size_t*>(count); }, &pairs);
  CHECK(pairs == 1);
  tw_metadata_release(metadata);

  tw_buffer* buffer = nullptr;
  CHECK(fail_each([&] { buffer = tw_message_buffer(message.get(), 0); }) == 1);
  tw_buffer_release(buffer);
  tw_peer* peer = nullptr;
  CHECK(fail_each([&] { peer = tw_call_process(served.get()); }) == 0);
  uint64_t size;
  uint32_t rights;
  CHECK(fail_each([&] { (void)tw_peer_region(peer, 99, &size, &rights); }) == 0);
  int told = 0;
  CHECK(fail_each([&] { told += tw_peer_notify_gone(peer, events.get(), 8); }) != 0);
  CHECK(fail_each([&] {
          told += tw_server_notify_peers(server.get(), events.get(), 9, nullptr) == TW_OK;
        }) != 0);
  CHECK(told == 2);
  tw_peer_release(peer);

  CHECK(fail_each([&] {
          status = tw_server_introduce(server.get(), session, name.c_str(), name.c_str(), nullptr);
        }) == 2);
  CHECK(status == TW_CODE_OK);
  fail_each([&] { tw_peer_stats(link.get(), ignore_stats, nullptr); });
  fail_each([&] { tw_server_stats(server.get(), ignore_stats, nullptr); });
  REQUIRE(tw_trace(100, nullptr) == TW_OK);
  REQUIRE(tw_call_send(call.get(), Payload({text}), 0, &kPatience, nullptr) == TW_OK);
  CHECK(fail_each([&] { tw_peer_trace(link.get(), ignore_event, nullptr); }) != 0);
  fail_each([&] {
    tw_server_trace(
        server.get(), [](void*, const char*, const char*, uint64_t) {}, ignore_event, nullptr);
  });
  fail_each([&] { (void)tw_trace(0, nullptr); });
  size_t active = 0;
  CHECK(fail_each([&] { active = tw_server_active(server.get()); }) == 0);
  CHECK(active == 1);

  tw_status why{};
  tw_peer_facts facts;
  fail_each([&] { tw_peer_death(link.get(), &why); });
  fail_each([&] { (void)tw_parse_hello(hello, sizeof hello, &facts, nullptr); });
  fail_each([&] { (void)tw_parse_hello(hello, 3, &facts, nullptr); });
  tw_welcome welcome{};
  std::ranges::copy(hello, welcome.hello);
  const char* const address = "shm:/a/path/that/fits/into/no/small/string";
  uint8_t bytes[TW_WELCOME_ROOM];
  size_t bytes_size = 0;
  CHECK(fail_each([&] {
          (void)tw_encode_welcome(&welcome, &address, 1, bytes, &bytes_size, nullptr);
        }) != 0);
  CHECK(fail_each([&] {
          (void)tw_decode_welcome(
              bytes, bytes_size, &welcome, [](void*, const char*) {}, nullptr, nullptr);
        }) != 0);
  fail_each([&] { (void)tw_settings(ignore_fact, nullptr, nullptr); });
  fail_each([&] { tw_each_setting(ignore_setting, nullptr); });
  char held[8];
  fail_each([&] { (void)tw_read_setting("TF_RDMA_ENABLED", held, sizeof held, nullptr); });
  fail_each([&] { (void)tw_choose_policy("tcp", "shm", ignore_policy, nullptr, nullptr); });
  fail_each([&] { tw_host(ignore_fact, nullptr); });
  fail_each([&] { tw_each_transport([](void*, const tw_transport*) {}, nullptr); });
  fail_each([&] { (void)tw_transport_why_not("tcp", nullptr); });
  uint64_t value;
  fail_each([&] { (void)tw_arena(&value, 1); });
  fail_each([&] { (void)tw_incidents(ignore_incident, nullptr, nullptr); });
  tw_audit_line line;
  fail_each([&] { (void)tw_audit_next(&kAtOnce, &line, nullptr); });
  void* block = nullptr;
  fail_each([&] {
    if (block) tw_arena_free(block);
    block = tw_arena_allocate(5000);
  });
  REQUIRE(block);
  int done = 0;
  fail_each([&] {
    done = tw_arena_holds(block, 5000) && tw_publish(block, 5000) && tw_published(block, 5000);
    tw_copy(block, text.data(), text.size());
  });
  CHECK(done);
  CHECK(std::memcmp(block, text.data(), text.size()) == 0);
  const tw_copying copying{block, text.data(), text.size()};
  int wrong = 0;
  CHECK(fail_each([&] {
          std::memset(block, 0, text.size());
          tw_copy_all(&copying, 1);
          wrong += std::memcmp(block, text.data(), text.size()) != 0;
        }) != 0);
  CHECK(wrong == 0);
  fail_each([] { tw_trim(); });
  CHECK(tw_arena_free(block));

  // All that was promised comes.
  CHECK(tw_call_cancel(call.get(), TW_CODE_CANCELLED, "enough") == 1);
  uint64_t tokens[1024];
  size_t came = 0;
  int closed = 0;
  CHECK(fail_each([&] {
          while (const size_t more = tw_events_wait(events.get(), &kAtOnce, tokens, 1024, &closed))
            came += more;
        }) == 0);
  CHECK(came == noted + pushed);
}

// Each way to end it all, with each allocation failing in turn.
TEST_CASE_TEMPLATE("abi: what closes and releases does so without memory", Way,
                   TENSORWIRE_ABI_WAYS) {
  if (!kFailsOnDemand)
    return not_tried("ThreadSanitizer insists on its own allocator: none fails on demand");
  using End = void (*)(Server&, Link&, Call&, Served&);
  const std::pair<const char*, End> ends[] = {
      {"cancel",
       [](Server&, Link&, Call& call, Served&) {
         (void)tw_call_cancel(call.get(), TW_CODE_CANCELLED, "a sentence that is not short");
       }},
      {"close the link", [](Server&, Link& link, Call&, Served&) { tw_peer_close(link.get()); }},
      {"release the link",
       [](Server&, Link& link, Call& call, Served&) {
         link.reset();
         (void)tw_call_cancel(call.get(), TW_CODE_CANCELLED, nullptr);
       }},
      {"close the server",
       [](Server& server, Link&, Call&, Served&) {
         tw_server_refuse(server.get());
         tw_server_close(server.get());
       }},
      {"release the server",
       [](Server& server, Link&, Call&, Served& served) {
         server.release();
         served.reset();
       }},
      {"finish",
       [](Server&, Link&, Call&, Served& served) {
         if (finish(served.get(), TW_CODE_NOT_FOUND, "a sentence that is not short") != TW_CODE_OK)
           (void)finish(served.get(), TW_CODE_NOT_FOUND);
       }},
  };
  for (const auto& entry : ends) {
    const std::string name = entry.first;
    const auto& end = entry.second;
    CAPTURE(name);
    bool failed = true;
    for (int n = 1; failed; ++n) {
      REQUIRE(n < 200);
      CAPTURE(n);
      Server server;
      Link link = server.connect(Way::kName);
      Call call = start(link.get(), "/t/Call");
      Served served = server.next();
      REQUIRE(served);
      const Events events(tw_events_create());
      REQUIRE(tw_call_notify(call.get(), TW_ON_END, events.get(), 1) == 1);
      REQUIRE(tw_call_notify(served.get(), TW_ON_END, events.get(), 2) == 1);
      {
        Failing failing(n);
        end(server, link, call, served);
        failed = failing.end();
      }
      // Both ends of the call end, by a message or with the link.
      std::atomic<bool> over{false};
      std::thread driver([&] {
        const tw_wait briefly{1'000'000, nullptr, nullptr};
        tw_server_call* none = nullptr;
        size_t count = 0;
        while (!over && server.get() &&
               tw_server_next(server.get(), &briefly, &none, 1, &count, nullptr) == TW_OK) {
        }
      });
      int32_t code = 0;
      tw_metadata* trailing = nullptr;
      CHECK(tw_call_outcome(call.get(), &kPatience, &code, &trailing, nullptr) == TW_OK);
      CHECK(code != TW_CODE_OK);
      const Metadata held(trailing);
      uint64_t tokens[2];
      int closed = 0;
      for (size_t came = 0; came < 2;) {
        const size_t more = tw_events_wait(events.get(), &kPatience, tokens, 2 - came, &closed);
        CHECK(more != 0);
        if (more == 0) break;
        came += more;
      }
      over = true;
      driver.join();
    }
  }
}

}  // namespace
}  // namespace tw::test::abi

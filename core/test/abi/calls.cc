// SPDX-License-Identifier: Apache-2.0
// Calls through the C ABI: replies, streams, time limits, cancellation, events.
#include <type_traits>

#include "engine/spin.h"
#include "test/abi/world.h"
#include "test/not_tried.h"
#include "test/process.h"

namespace tw::test::abi {
namespace {

std::vector<std::pair<std::string, std::string>> entries(const Metadata& metadata) {
  std::vector<std::pair<std::string, std::string>> out;
  tw_metadata_each(
      metadata.get(),
      [](void* list, const tw_pair* pair) {
        static_cast<decltype(&out)>(list)->emplace_back(std::string(pair->key, pair->key_size),
                                                        std::string(pair->value, pair->value_size));
      },
      &out);
  return out;
}

// A call of the wrong end does not compile.
static_assert(std::is_invocable_v<decltype(tw_call_ended), tw_client_call*>);
static_assert(std::is_invocable_v<decltype(tw_call_ended), tw_server_call*>);
static_assert(std::is_invocable_v<decltype(tw_call_end_send), tw_client_call*, tw_status*>);
static_assert(!std::is_invocable_v<decltype(tw_call_end_send), tw_server_call*, tw_status*>);
static_assert(!std::is_invocable_v<decltype(tw_call_end_send), tw_call*, tw_status*>);
static_assert(std::is_invocable_v<decltype(tw_call_active), tw_server_call*>);
static_assert(!std::is_invocable_v<decltype(tw_call_active), tw_client_call*>);
static_assert(!std::is_invocable_v<decltype(tw_call_active), tw_call*>);

TEST_CASE_TEMPLATE("abi: messages of all sizes come back as they were", Way, TENSORWIRE_ABI_WAYS) {
  const size_t before = arena_used();
  {
    House house;
    const Link link = house.dial(Way::kName);
    CHECK(std::string_view(tw_peer_transport(link.get())) == Way::kName);
    for (const size_t size : {0, 1, 8192, 20'000, 5 << 20, 40 << 20}) {
      CAPTURE(size);
      CHECK(echoes(link.get(), size));
    }
    const std::string large = text_of(300'000), small = text_of(9);
    const Reply reply = unary(link.get(), "/t/Echo", Payload({small, large, "", small}));
    REQUIRE(tw_message_count(reply.message.get()) == 4);
    CHECK(tw_message_size(reply.message.get()) == 300'018);
    CHECK(segment(reply.message, 1) == large);
    CHECK(segment(reply.message, 2).empty());
    std::string joined(300'018 + 1, '.');
    tw_message_copy(reply.message.get(), joined.data());
    CHECK(joined == small + large + small + '.');
    Stats stats;
    tw_peer_stats(link.get(), visit_stats, &stats);
    CHECK(stats.transport == Way::kName);
    CHECK(stats.values.at("messages_sent") == 7);
  }
  CHECK(eventually([&] { return arena_used() <= before; }));
}

TEST_CASE_TEMPLATE("abi: status and metadata travel both ways", Way, TENSORWIRE_ABI_WAYS) {
  const std::vector<std::pair<std::string, std::string>> want = {{"key", "value"},
                                                                 {"raw-bin", {"\0\xff", 2}}};
  std::vector<tw_pair> pairs;
  for (const auto& [key, value] : want)
    pairs.push_back({key.data(), key.size(), value.data(), value.size()});
  const tw_pairs list{pairs.data(), pairs.size()};
  House house([&](Served call) {
    CHECK(method_of(call.get()) == "/t/Any");
    tw_metadata* metadata = nullptr;
    CHECK(tw_call_metadata(call.get(), &metadata, nullptr) == TW_OK);
    CHECK(entries(Metadata(metadata)) == want);
    CHECK(std::string_view(tw_call_transport(call.get())) == Way::kName);
    CHECK(std::string_view(tw_call_peer(call.get())).size() > 0);
    CHECK(tw_call_send_initial(call.get(), list, nullptr) == TW_OK);
    CHECK(tw_call_finish(call.get(), TW_CODE_NOT_FOUND, "nothing here", 12, list, kNothing, nullptr,
                         nullptr) == TW_OK);
    // A call ends once.
    CHECK(finish(call.get()) == TW_CODE_CANCELLED);
  });
  const Link link = house.dial(Way::kName);
  const Reply reply = unary(link.get(), "/t/Any", kNothing, nullptr, list);
  CHECK(reply.code == TW_CODE_NOT_FOUND);
  CHECK(reply.details == "nothing here");
  CHECK_FALSE(reply.message);
  CHECK(entries(reply.initial) == want);
  CHECK(entries(reply.trailing) == want);
  CHECK(entries(nullptr).empty());
}

TEST_CASE_TEMPLATE("abi: details that a status cuts are there as a whole", Way,
                   TENSORWIRE_ABI_WAYS) {
  const std::string details = std::string(20'000, 'x') + std::string("\0a", 2);
  House house([&](Served call) { (void)finish(call.get(), TW_CODE_DATA_LOSS, details); });
  const Link link = house.dial(Way::kName);
  const Reply reply = unary(link.get(), "/t/Any", kNothing);
  CHECK(reply.code == TW_CODE_DATA_LOSS);
  CHECK(reply.details == details);

  const Call call = start(link.get(), "/t/Any");
  int32_t code = -1;
  tw_metadata* trailing = nullptr;
  tw_status status{};
  CHECK(tw_call_outcome(call.get(), &kPatience, &code, &trailing, &status) == TW_OK);
  CHECK(code == TW_CODE_DATA_LOSS);
  CHECK(status.details == details.substr(0, sizeof status.details - 1));
  CHECK(details_of(call.get()) == details);
}

TEST_CASE_TEMPLATE("abi: a stream in both directions, with an end", Way, TENSORWIRE_ABI_WAYS) {
  House house([](Served call) {
    int count = 0;
    while (const Message message = receive(call.get())) {
      ++count;
      CHECK(tw_call_reply(call.get(), Payload({segment(message)}), &kPatience, nullptr) == TW_OK);
    }
    CHECK(finish(call.get(), TW_CODE_OK, std::to_string(count)) == TW_OK);
  });
  const Link link = house.dial(Way::kName);
  const Call call = start(link.get(), "/t/Stream");
  const auto size_of = [](unsigned i) { return i % 7 == 0 ? size_t{400'000} : size_t{i * 10}; };
  std::thread sender([&] {
    for (unsigned i = 0; i < 200; ++i)
      CHECK(tw_call_send(call.get(), Payload({text_of(size_of(i), i)}), 0, &kPatience, nullptr) ==
            TW_OK);
    CHECK(tw_call_end_send(call.get(), nullptr) == TW_OK);
  });
  bool same = true;
  for (unsigned i = 0; i < 200; ++i) {
    const Message message = receive(call.get());
    REQUIRE(message);
    same = same && segment(message) == text_of(size_of(i), i);
  }
  CHECK(same);
  sender.join();
  CHECK_FALSE(receive(call.get()));
  tw_message* message = nullptr;
  CHECK(tw_call_take(call.get(), &message) == 0);
  int32_t code = -1;
  tw_metadata* trailing = nullptr;
  tw_status status{};
  CHECK(tw_call_outcome(call.get(), &kPatience, &code, &trailing, &status) == TW_OK);
  CHECK(code == TW_CODE_OK);
  CHECK(std::string_view(status.details) == "200");
}

// A server whose handlers go on with the next call of the link they have answered.
struct Relay {
  std::atomic<int> served{0}, handed_on{0};
  House house{[this](Served call) {
    while (call) {
      tw_server_call* next = nullptr;
      echo(call.get(), &next);
      ++served;
      handed_on += next != nullptr;
      call.reset(next);
    }
  }};
};

TEST_CASE_TEMPLATE("abi: who finishes a call is given the next one, and none is lost", Way,
                   TENSORWIRE_ABI_WAYS) {
  Relay relay;
  const Link link = relay.house.dial(Way::kName);
  // While a call is answered, others come: soon one does where it is taken.
  std::vector<std::thread> callers;
  std::atomic<int> right{0}, made{0};
  for (int t = 0; t < 3; ++t)
    callers.emplace_back([&] {
      CHECK(eventually([&] {
        const int i = made++;
        right += echoes(link.get(), i % 10 ? 8 : 300'000);
        return i >= 300 && relay.handed_on > 20;
      }));
    });
  for (auto& caller : callers) caller.join();
  CHECK(right == made);
  CHECK(eventually([&] { return relay.served == made; }));
}

TEST_CASE("helper: polls for long" * doctest::skip()) {
  Relay relay;
  const Link link = relay.house.dial(read_thing<char>(kFromTest) == 's' ? "shm" : "tcp");
  REQUIRE(eventually([&] {
    REQUIRE(echoes(link.get(), relay.served % 10 ? 8 : 300'000));
    return relay.handed_on > 20;
  }));
  write_thing(kToTest, 'k');
}

// The caller is alone: its next call comes after the reply, so it is the polling that takes it.
TEST_CASE_TEMPLATE("abi: who finishes a call polls for the next one of a lone caller", Way,
                   TENSORWIRE_ABI_WAYS) {
  if (single_cpu()) return not_tried("there is one CPU only");
  Helper helper("polls for long", "TENSORWIRE_SPIN_US=10000");
  helper.tell(*Way::kName);
  CHECK(helper.hear<char>() == 'k');
}

TEST_CASE_TEMPLATE("abi: time limits end waits and calls", Way, TENSORWIRE_ABI_WAYS) {
  Server server;
  const Link link = server.connect(Way::kName);
  tw_server_call* calls[1];
  size_t count = 7;
  CHECK(tw_server_next(server.get(), &kAtOnce, calls, 1, &count, nullptr) == TW_OK);
  CHECK(count == 0);
  const tw_wait short_time{1'000'000, nullptr, nullptr};
  const Reply late = unary(link.get(), "/t/Any", Payload({"x"}), &short_time);
  CHECK(late.code == TW_CODE_DEADLINE_EXCEEDED);
  CHECK_FALSE(late.message);
  CHECK_FALSE(late.details.empty());

  const Call call = start(link.get(), "/t/Any");
  CHECK(tw_call_time_left(call.get()) == -1);
  Served served = server.next();
  if (tw_call_time_left(served.get()) != -1) served = server.next();  // the one that was late
  tw_message* message = nullptr;
  tw_metadata* metadata = nullptr;
  int32_t code = -7;
  CHECK(tw_call_receive(call.get(), &short_time, &message, nullptr) == TW_CODE_DEADLINE_EXCEEDED);
  CHECK(tw_call_receive(served.get(), &short_time, &message, nullptr) == TW_CODE_DEADLINE_EXCEEDED);
  CHECK(tw_call_initial(call.get(), &short_time, &metadata, nullptr) == TW_CODE_DEADLINE_EXCEEDED);
  CHECK(tw_call_outcome(call.get(), &short_time, &code, &metadata, nullptr) ==
        TW_CODE_DEADLINE_EXCEEDED);
  CHECK(code == -7);
  CHECK_FALSE(tw_call_ended(call.get()));
  // The time of tw_peer_start is the call's own.
  const Call timed = start(link.get(), "/t/Any", &short_time);
  CHECK(tw_call_outcome(timed.get(), &kPatience, &code, &metadata, nullptr) == TW_OK);
  CHECK(code == TW_CODE_DEADLINE_EXCEEDED);
  CHECK(tw_call_time_left(timed.get()) == 0);

  CHECK(finish(served.get()) == TW_OK);
  CHECK(tw_call_outcome(call.get(), &kPatience, &code, &metadata, nullptr) == TW_OK);
  CHECK(code == TW_CODE_OK);
}

TEST_CASE_TEMPLATE("abi: the ends of calls are told to a queue", Way, TENSORWIRE_ABI_WAYS) {
  Server server;
  const Link link = server.connect(Way::kName);
  const Events events(tw_events_create());
  uint64_t tokens[4];
  int closed = 7;
  const tw_wait short_time{1'000'000, nullptr, nullptr};
  CHECK(tw_events_wait(events.get(), &short_time, tokens, 4, &closed) == 0);
  CHECK(closed == 0);

  const Call call = start(link.get(), "/t/Any");
  const Served served = server.next();
  CHECK(tw_call_notify(call.get(), TW_ON_END, events.get(), 11) == 1);
  CHECK(tw_call_notify(served.get(), TW_ON_END, events.get(), 12) == 1);
  CHECK(tw_call_cancel(call.get(), TW_CODE_CANCELLED, nullptr) == 1);
  REQUIRE(tw_events_wait(events.get(), &kPatience, tokens, 1, &closed) == 1);
  CHECK(tokens[0] == 11);
  // The server hears of it when its link is driven.
  CHECK(eventually([&] {
    tw_server_call* none;
    size_t count;
    CHECK(tw_server_next(server.get(), &kAtOnce, &none, 1, &count, nullptr) == TW_OK);
    return tw_call_ended(served.get()) != 0;
  }));
  REQUIRE(tw_events_wait(events.get(), &kPatience, tokens, 4, &closed) == 1);
  CHECK(tokens[0] == 12);
  CHECK_FALSE(tw_call_active(served.get()));
  CHECK(tw_call_reply(served.get(), Payload({"x"}), &kPatience, nullptr) == TW_CODE_CANCELLED);
  CHECK(tw_call_notify(call.get(), TW_ON_END, events.get(), 13) == 1);  // has ended already
  tw_events_close(events.get());
  CHECK(tw_events_wait(events.get(), &kPatience, tokens, 4, &closed) == 1);
  CHECK(tokens[0] == 13);
  CHECK(tw_events_wait(events.get(), &kPatience, tokens, 4, &closed) == 0);
  CHECK(closed == 1);
}

TEST_CASE_TEMPLATE("abi: a closed server ends its calls, and its links", Way, TENSORWIRE_ABI_WAYS) {
  House house([](Served call) {
    tw_message* none;
    (void)tw_call_receive(call.get(), &kPatience, &none, nullptr);
    CHECK(none == nullptr);
  });
  const Link link = house.dial(Way::kName);
  const Call call = start(link.get(), "/t/Any");
  CHECK(eventually([&] { return tw_server_active(house.server().get()) == 1; }));
  std::vector<Stats> links;
  tw_server_stats(
      house.server().get(),
      [](void* to, const tw_statistics* found) {
        visit_stats(&static_cast<std::vector<Stats>*>(to)->emplace_back(), found);
      },
      &links);
  REQUIRE(links.size() == 1);
  CHECK(links[0].transport == Way::kName);
  house.close();
  int32_t code = -1;
  tw_metadata* trailing = nullptr;
  CHECK(tw_call_outcome(call.get(), &kPatience, &code, &trailing, nullptr) == TW_OK);
  CHECK(code == TW_CODE_UNAVAILABLE);
  CHECK(eventually([&] { return tw_peer_alive(link.get()) == 0; }));
  tw_status why{};
  tw_peer_death(link.get(), &why);
  CHECK(why.code == TW_CODE_UNAVAILABLE);
  CHECK(std::strlen(why.details) > 0);
  CHECK(unary(link.get(), "/t/Any", kNothing).code == TW_CODE_UNAVAILABLE);
}

}  // namespace
}  // namespace tw::test::abi

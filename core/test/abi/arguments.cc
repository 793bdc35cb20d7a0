// SPDX-License-Identifier: Apache-2.0
// Arguments that the header permits but nobody sensible passes, and sentences that are too long.
#include <limits>

#include "test/abi/world.h"

namespace tw::test::abi {
namespace {

TEST_CASE_TEMPLATE("abi: empty messages, and none", Way, TENSORWIRE_ABI_WAYS) {
  House house;
  const Link link = house.dial(Way::kName);
  tw_reply reply{};
  // No message at all, whatever the count says.
  tw_payload none{};
  none.count = 5;
  CHECK(tw_peer_unary_into(link.get(), "/t/Echo", 7, {}, none, nullptr, 0, nullptr, &reply,
                           nullptr) == TW_OK);
  CHECK(reply.message == nullptr);
  // A message of no segments, and one of segments without bytes.
  Reply empty = unary(link.get(), "/t/Echo", Payload({}));
  REQUIRE(empty.message);
  CHECK(tw_message_count(empty.message.get()) == 0);
  CHECK(tw_message_size(empty.message.get()) == 0);
  empty = unary(link.get(), "/t/Echo", Payload({std::string_view(), std::string_view()}));
  REQUIRE(empty.message);
  CHECK(tw_message_count(empty.message.get()) == 2);
  const Buffer buffer(tw_message_buffer(empty.message.get(), 1));
  CHECK(tw_buffer_size(buffer.get()) == 0);
  CHECK(tw_buffer_separate(buffer.get(), nullptr) == TW_OK);
  tw_buffer_expose(buffer.get());
  // Very many, and too many.
  std::vector<std::string_view> parts(65'535, "ab");
  const Reply many = unary(link.get(), "/t/Echo", Payload(parts));
  REQUIRE(many.message);
  CHECK(tw_message_count(many.message.get()) == 65'535);
  parts.push_back("ab");
  const Reply more = unary(link.get(), "/t/Echo", Payload(parts));
  CHECK((more.code == TW_CODE_INVALID_ARGUMENT || more.code == TW_CODE_RESOURCE_EXHAUSTED));
  CHECK_FALSE(more.details.empty());
  CHECK(echoes(link.get()));
}

TEST_CASE_TEMPLATE("abi: methods and metadata that cannot be sent are refused, the link goes on",
                   Way, TENSORWIRE_ABI_WAYS) {
  House house;
  const Link link = house.dial(Way::kName);
  const std::vector<std::string> methods = {"", "/\xff", "/" + std::string(5000, 'm')};
  for (const std::string& method : methods) {
    const Reply reply = unary(link.get(), method, Payload({"x"}));
    CHECK(reply.code == TW_CODE_INVALID_ARGUMENT);
    CHECK_FALSE(reply.details.empty());
    tw_client_call* call = nullptr;
    CHECK(tw_peer_start(link.get(), method.data(), method.size(), {}, kNothing, 0, nullptr, &call,
                        nullptr) == TW_CODE_INVALID_ARGUMENT);
    CHECK(call == nullptr);
  }
  CHECK(unary(link.get(), {}, kNothing).code == TW_CODE_INVALID_ARGUMENT);
  const std::string large(70'000, 'v');
  const auto with = [&](std::string_view key, std::string_view value) {
    const tw_pair pair{key.data(), key.size(), value.data(), value.size()};
    return unary(link.get(), "/t/Echo", Payload({"x"}), &kPatience, {&pair, 1}).code;
  };
  CHECK(with({}, "x") == TW_CODE_INVALID_ARGUMENT);
  CHECK(with("Upper", "x") == TW_CODE_INVALID_ARGUMENT);
  CHECK(with("key", "\n") == TW_CODE_INVALID_ARGUMENT);
  CHECK(with("key", large) == TW_CODE_RESOURCE_EXHAUSTED);
  CHECK(with("key", {}) == TW_CODE_OK);
  CHECK(echoes(link.get()));
  CHECK(eventually([&] { return tw_server_active(house.server().get()) == 0; }));
}

TEST_CASE_TEMPLATE("abi: codes that are none, and sentences of any length", Way,
                   TENSORWIRE_ABI_WAYS) {
  // The cut of a status would fall into a two-byte character.
  std::string words = "x";
  while (words.size() < 3000) words += "\xc3\xa9";
  House house([&](Served call) {
    const std::string_view method = method_of(call.get());
    if (method == "/t/Code") {
      CHECK(finish(call.get(), 99, "no code") == TW_OK);
    } else if (method == "/t/Negative") {
      CHECK(finish(call.get(), -1, "no code") == TW_OK);
    } else if (method == "/t/Long") {
      CHECK(finish(call.get(), TW_CODE_NOT_FOUND, words) == TW_OK);
    } else if (method == "/t/Raw") {
      CHECK(finish(call.get(), TW_CODE_NOT_FOUND, "\xff\xfe") == TW_OK);
    } else if (method == "/t/Empty") {
      CHECK(finish(call.get(), TW_CODE_NOT_FOUND, {}) == TW_OK);
    } else if (method == "/t/Wait") {
      tw_message* none;
      (void)tw_call_receive(call.get(), &kPatience, &none, nullptr);
    } else {
      echo(call.get());
    }
  });
  const Link link = house.dial(Way::kName);
  CHECK(unary(link.get(), "/t/Code", kNothing).code == TW_CODE_UNKNOWN);
  CHECK(unary(link.get(), "/t/Negative", kNothing).code == TW_CODE_UNKNOWN);
  const Reply whole = unary(link.get(), "/t/Long", kNothing);
  CHECK(whole.code == TW_CODE_NOT_FOUND);
  CHECK(whole.details == words);
  const Call cut = start(link.get(), "/t/Long");
  int32_t code = -1;
  tw_metadata* trailing = nullptr;
  tw_status status{};
  CHECK(tw_call_outcome(cut.get(), &kPatience, &code, &trailing, &status) == TW_OK);
  CHECK(status.details == words.substr(0, 1019));
  const Reply raw = unary(link.get(), "/t/Raw", kNothing);
  CHECK(raw.code != TW_CODE_OK);
  CHECK_FALSE(raw.details.empty());
  CHECK(unary(link.get(), "/t/Empty", kNothing).code == TW_CODE_NOT_FOUND);
  const Call call = start(link.get(), "/t/Wait");
  CHECK(tw_call_cancel(call.get(), 1000, "\xff") == 1);
  CHECK(tw_call_outcome(call.get(), &kPatience, &code, &trailing, nullptr) == TW_OK);
  CHECK(code == TW_CODE_UNKNOWN);
  CHECK(echoes(link.get()));
}

TEST_CASE("abi: a welcome comes back as it was sent, and nothing is told of a wrong one") {
  tw_welcome sent{};
  REQUIRE(tw_hello(sent.hello, nullptr) == TW_OK);
  sent.instance[0] = 1;
  sent.session[15] = 2;
  sent.secret[31] = 3;
  const char* const addresses[] = {"shm:/run/a", "tcp:[::1]:7"};
  uint8_t bytes[TW_WELCOME_ROOM];
  size_t size = 0;
  REQUIRE(tw_encode_welcome(&sent, addresses, 2, bytes, &size, nullptr) == TW_OK);

  tw_welcome got{};
  std::vector<std::string> visited;
  const auto visit = [](void* context, const char* address) {
    static_cast<std::vector<std::string>*>(context)->push_back(address);
  };
  REQUIRE(tw_decode_welcome(bytes, size, &got, visit, &visited, nullptr) == TW_OK);
  CHECK(std::memcmp(&got, &sent, sizeof sent) == 0);
  CHECK(visited == std::vector<std::string>{"shm:/run/a", "tcp:[::1]:7"});

  visited.clear();
  tw_status status{};
  CHECK(tw_decode_welcome(bytes, size - 1, &got, visit, &visited, &status) ==
        TW_CODE_INVALID_ARGUMENT);
  CHECK(std::string_view(status.details).find("cut short") != std::string_view::npos);
  CHECK(tw_decode_welcome(nullptr, 0, &got, visit, &visited, nullptr) == TW_CODE_INVALID_ARGUMENT);
  bytes[0] ^= 2;
  CHECK(tw_decode_welcome(bytes, size, &got, visit, &visited, nullptr) ==
        TW_CODE_FAILED_PRECONDITION);
  CHECK(visited.empty());
  const std::vector<const char*> many(33, "tcp:h:1");
  CHECK(tw_encode_welcome(&sent, many.data(), many.size(), bytes, &size, nullptr) ==
        TW_CODE_INVALID_ARGUMENT);
  const std::string longest(512, 'a');
  const std::vector<const char*> most(32, longest.c_str());
  REQUIRE(tw_encode_welcome(&sent, most.data(), most.size(), bytes, &size, nullptr) == TW_OK);
  CHECK(size == TW_WELCOME_ROOM);
  sent.hello[0] ^= 1;
  CHECK(tw_encode_welcome(&sent, addresses, 2, bytes, &size, nullptr) == TW_CODE_INVALID_ARGUMENT);
}

TEST_CASE("abi: memory, hellos and servers asked for the impossible") {
  tw_buffer* buffer = nullptr;
  tw_status status{};
  CHECK(tw_allocate(nullptr, std::numeric_limits<size_t>::max(), &kPatience, &buffer, &status) ==
        TW_CODE_RESOURCE_EXHAUSTED);
  CHECK(std::strlen(status.details) > 0);
  CHECK(buffer == nullptr);
  CHECK(tw_publish(nullptr, 0) == 0);
  CHECK(tw_published(nullptr, std::numeric_limits<size_t>::max()) == 0);

  uint8_t hello[TW_HELLO_SIZE];
  REQUIRE(tw_hello(hello, nullptr) == TW_OK);
  tw_peer_facts facts{};
  CHECK(tw_parse_hello(hello, sizeof hello, &facts, nullptr) == TW_OK);
  CHECK(facts.same_host == 1);
  CHECK(facts.same_user == 1);
  CHECK(tw_parse_hello(nullptr, 0, &facts, nullptr) == TW_CODE_INVALID_ARGUMENT);
  CHECK(tw_parse_hello(hello, sizeof hello - 1, &facts, nullptr) == TW_CODE_INVALID_ARGUMENT);
  hello[0] ^= 1;
  CHECK(tw_parse_hello(hello, sizeof hello, &facts, &status) == TW_CODE_INVALID_ARGUMENT);

  Server server;
  char path[4];
  CHECK(tw_server_listen_local(server.get(), path, sizeof path, &status) == TW_CODE_INTERNAL);
  size_t count = 7;
  CHECK(tw_server_next(server.get(), &kAtOnce, nullptr, 0, &count, nullptr) == TW_OK);
  CHECK(count == 0);
  uint8_t session[TW_SESSION_SIZE], secret[TW_SECRET_SIZE];
  CHECK(tw_server_admit(server.get(), hello, sizeof hello, "", 1, 1, session, secret, nullptr) ==
        TW_CODE_INVALID_ARGUMENT);
  const Events events(tw_events_create());
  int closed = 7;
  CHECK(tw_events_wait(events.get(), &kAtOnce, nullptr, 0, &closed) == 0);
  tw_server_close(server.get());
  tw_server_close(server.get());
  CHECK(tw_server_next(server.get(), &kPatience, nullptr, 0, &count, nullptr) ==
        TW_CODE_UNAVAILABLE);
}

}  // namespace
}  // namespace tw::test::abi

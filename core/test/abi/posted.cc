// SPDX-License-Identifier: Apache-2.0
// Memory that is posted for what arrives.
#include <array>

#include "test/abi/world.h"

namespace tw::test::abi {
namespace {

constexpr size_t kSize = 5 << 20;

// A buffer that is posted, and how often its owner was told.
class Desk {
 public:
  explicit Desk(size_t size = kSize) : bytes(size, '.') {}
  Desk(const Desk&) = delete;
  Desk& operator=(const Desk&) = delete;
  void post() {
    const tw_owner owner{[](void* desk) { ++static_cast<Desk*>(desk)->told; }, this};
    tw_post(bytes.data(), bytes.size(), &owner);
  }

  std::string bytes;
  std::atomic<int> told{0};
};

// What was posted and is not needed stays for a minute: later tests would find it.
void sweep() {
  std::array<Desk, 4> others;
  for (size_t i = 0; i < others.size(); ++i) {
    others[i].bytes.resize(kSize + 1 + i);
    others[i].post();
  }
  std::array<Desk, 4> last;
  for (Desk& desk : last) desk.post();
  House house(
      [](Served call) { (void)finish(call.get(), TW_CODE_OK, {}, Payload({text_of(kSize)})); });
  const Link link = house.dial("tcp");
  for (size_t i = 0; i < last.size(); ++i) {
    const Reply reply = unary(link.get(), "/t/Get", kNothing);
    CHECK(tw_message_posted(reply.message.get()) == &last[i]);
  }
  for (const Desk& desk : others) CHECK(desk.told == 1);
}

TEST_CASE("abi: a message that is received by copy lands in memory that was posted for it") {
  std::vector<std::string> replies;
  House house([&](Served call) {
    const Message request = receive(call.get());
    std::vector<std::string_view> parts(replies.begin(), replies.end());
    (void)finish(call.get(), TW_CODE_OK, {}, Payload(parts));
  });
  const Link link = house.dial("tcp");
  const auto get = [&] {
    Reply reply = unary(link.get(), "/t/Get", kNothing);
    CHECK(reply.code == TW_CODE_OK);
    return reply;
  };

  SUBCASE("of its size") {
    replies = {text_of(kSize)};
    Desk desk;
    desk.post();
    Reply reply = get();
    CHECK(segment(reply.message).data() == desk.bytes.data());
    CHECK_FALSE(tw_message_leased(reply.message.get()));
    CHECK(tw_message_posted(reply.message.get()) == &desk);
    reply.message.reset();
    CHECK(desk.told == 0);
    CHECK(desk.bytes == replies[0]);
    reply = get();
    CHECK(tw_message_posted(reply.message.get()) == nullptr);
    CHECK(segment(reply.message) == replies[0]);
  }
  SUBCASE("and that stays where all that lies idle goes back") {
    replies = {text_of(kSize)};
    Desk desk;
    desk.post();
    tw_trim();
    CHECK(desk.told == 0);
    Reply reply = get();
    CHECK(tw_message_posted(reply.message.get()) == &desk);
  }
  SUBCASE("and that nobody claims") {
    replies = {text_of(kSize)};
    Desk desk;
    desk.post();
    Reply reply = get();
    const Buffer buffer(tw_message_buffer(reply.message.get(), 0));
    reply.message.reset();
    CHECK(desk.told == 0);
    CHECK(std::memcmp(tw_buffer_data(buffer.get()), replies[0].data(), kSize) == 0);
  }
  SUBCASE("of another size") {
    replies = {text_of(kSize + 1)};
    Desk desk;
    desk.post();
    const Reply reply = get();
    CHECK(tw_message_posted(reply.message.get()) == nullptr);
    CHECK(segment(reply.message) == replies[0]);
    CHECK(desk.told == 0);
    sweep();
    CHECK(desk.told == 1);
  }
  SUBCASE("of several segments") {
    replies = {text_of(kSize), text_of(100)};
    Desk desk;
    desk.post();
    Reply reply = get();
    CHECK(tw_message_posted(reply.message.get()) == nullptr);
    CHECK(segment(reply.message, 0) == replies[0]);
    CHECK(segment(reply.message, 1) == replies[1]);
    reply.message.reset();
    CHECK(eventually([&] { return desk.told == 1; }));
  }
  SUBCASE("too small") {
    Desk desk(TW_SMALLEST_POSTED - 1);
    desk.post();
    CHECK(desk.told == 1);
  }
}

TEST_CASE("abi: a message in the sender's memory lands nowhere") {
  const std::string text = text_of(kSize);
  House house([&](Served call) { (void)finish(call.get(), TW_CODE_OK, {}, Payload({text})); });
  const Link link = house.dial("shm");
  Desk desk;
  desk.post();
  const Reply reply = unary(link.get(), "/t/Get", kNothing);
  CHECK(tw_message_leased(reply.message.get()));
  CHECK(tw_message_posted(reply.message.get()) == nullptr);
  CHECK(segment(reply.message) == text);
  sweep();
  CHECK(desk.told == 1);
}

}  // namespace
}  // namespace tw::test::abi

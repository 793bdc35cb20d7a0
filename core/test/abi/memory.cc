// SPDX-License-Identifier: Apache-2.0
// Buffers through the C ABI: published and received memory, and handles released in any order.
#include "test/abi/world.h"

namespace tw::test::abi {
namespace {

constexpr size_t kLarge = 1 << 20;

Buffer allocate(size_t size) {
  tw_buffer* buffer = nullptr;
  REQUIRE(tw_allocate(nullptr, size, &kPatience, &buffer, nullptr) == TW_OK);
  return Buffer(buffer);
}

std::string_view view(const Buffer& buffer) {
  return {static_cast<const char*>(tw_buffer_data(buffer.get())), tw_buffer_size(buffer.get())};
}

TEST_CASE("abi: memory within a quota outlives the handle of the quota") {
  tw_quota* const quota = tw_quota_create(kLarge);
  REQUIRE(quota);
  CHECK(tw_quota_leased(quota) == 0);
  CHECK(tw_quota_copied(quota) == 0);
  tw_buffer* made = nullptr;
  REQUIRE(tw_allocate(quota, kLarge, &kPatience, &made, nullptr) == TW_OK);
  const Buffer buffer(made);
  tw_quota_release(quota);
  tw_quota_release(nullptr);
  CHECK(tw_buffer_size(buffer.get()) == kLarge);
  CHECK(tw_publish(tw_buffer_data(buffer.get()), kLarge) == 1);
}

TEST_CASE("abi: arena memory is aligned, writable, and published for good") {
  for (const size_t size : {size_t{0}, size_t{1}, size_t{4095}, size_t{4096}, kLarge}) {
    const Buffer buffer = allocate(size);
    CHECK(tw_buffer_size(buffer.get()) == size);
    CHECK(reinterpret_cast<uintptr_t>(tw_buffer_data(buffer.get())) % (size < 4096 ? 64 : 4096) ==
          0);
    CHECK_FALSE(tw_buffer_readonly(buffer.get()));
    CHECK_FALSE(tw_buffer_leased(buffer.get()));
    if (size == 0) continue;
    auto* const data = static_cast<char*>(tw_buffer_data(buffer.get()));
    std::memset(data, 7, size);
    CHECK_FALSE(tw_published(data, size));
    CHECK(tw_publish(data + size / 2, 1) == 1);
    CHECK(tw_published(data, size) == 1);
    CHECK(tw_buffer_readonly(buffer.get()));
    CHECK(tw_buffer_separate(buffer.get(), nullptr) == TW_OK);
    CHECK(tw_buffer_data(buffer.get()) == data);
  }
  const std::string outside = text_of(100);
  CHECK(tw_publish(outside.data(), outside.size()) == 0);
  CHECK(tw_published(outside.data(), outside.size()) == 0);
}

TEST_CASE("abi: what is published travels without a copy, and everything else with one") {
  House house;
  const Link link = house.dial("shm");
  const Buffer buffer = allocate(kLarge);
  std::memcpy(tw_buffer_data(buffer.get()), text_of(kLarge).data(), kLarge);
  const auto fact = [&](const char* name) {
    Stats stats;
    tw_peer_stats(link.get(), visit_stats, &stats);
    return stats.values.at(name);
  };
  CHECK(segment(unary(link.get(), "/t/Echo", Payload({view(buffer)})).message) == view(buffer));
  CHECK(fact("copies") == 1);
  CHECK(tw_publish(tw_buffer_data(buffer.get()), kLarge) == 1);
  CHECK(segment(unary(link.get(), "/t/Echo", Payload({view(buffer)})).message) == view(buffer));
  CHECK(fact("copies") == 1);
  CHECK(fact("segments_sent_mapped") == 2);
}

TEST_CASE_TEMPLATE("abi: writes to a received buffer reach neither sender nor other readers", Way,
                   TENSORWIRE_ABI_WAYS) {
  const size_t before = arena_used();
  {
    House house;
    const Link link = house.dial(Way::kName);
    const std::string text = text_of(kLarge);
    const Buffer lent = allocate(kLarge);
    std::memcpy(tw_buffer_data(lent.get()), text.data(), kLarge);
    CHECK(tw_publish(tw_buffer_data(lent.get()), kLarge) == 1);
    House lender(
        [&](Served call) { (void)finish(call.get(), TW_CODE_OK, {}, Payload({view(lent)})); });
    const Link from = lender.dial(Way::kName);
    const auto fetch = [&] {
      const Reply reply = unary(from.get(), "/t/Any", kNothing);
      REQUIRE(reply.message);
      return Buffer(tw_message_buffer(reply.message.get(), 0));  // outlives its message
    };
    Buffer first = fetch();
    const Buffer second = fetch();
    CHECK(tw_buffer_readonly(first.get()));
    CHECK(tw_buffer_leased(first.get()) == (std::string_view(Way::kName) == "shm"));
    CHECK(tw_buffer_separate(first.get(), nullptr) == TW_OK);
    tw_buffer_expose(second.get());
    auto* const mine = static_cast<char*>(tw_buffer_data(first.get()));
    CHECK(view(first) == text);
    if (tw_buffer_leased(first.get())) {
      std::memset(mine, 0, kLarge);
      CHECK(view(second) == text);
      CHECK(view(lent) == text);
    }
    first.reset();
    CHECK(view(fetch()) == text);
    CHECK(echoes(link.get()));
  }
  CHECK(eventually([&] { return arena_used() <= before; }));
}

TEST_CASE_TEMPLATE("abi: handles are released in any order", Way, TENSORWIRE_ABI_WAYS) {
  const size_t before = arena_used();
  const std::string text = text_of(kLarge), small = text_of(100);
  for (int order = 0; order < 4; ++order) {
    CAPTURE(order);
    auto house = std::make_unique<House>();
    Link link = house->dial(Way::kName);
    Reply reply = unary(link.get(), "/t/Echo", Payload({text, small}));
    REQUIRE(reply.code == TW_CODE_OK);
    Message message = std::move(reply.message);
    Buffer large(tw_message_buffer(message.get(), 0)), tiny(tw_message_buffer(message.get(), 1));
    Call open = start(link.get(), "/t/Echo");
    Call ended = start(link.get(), "/t/Echo");
    CHECK(tw_call_cancel(ended.get(), TW_CODE_CANCELLED, "") == 1);
    Buffer again(tw_message_buffer(message.get(), 0));
    switch (order) {
      case 0:  // the link first: it lives until its calls have ended
        link.reset();
        CHECK_FALSE(tw_call_ended(open.get()));
        CHECK(tw_call_send(open.get(), Payload({"on"}), 1, &kPatience, nullptr) == TW_OK);
        CHECK(segment(receive(open.get())) == "on");
        open.reset();
        message.reset();
        house.reset();
        break;
      case 1:  // the server first
        house.reset();
        CHECK(eventually([&] { return tw_call_ended(open.get()) != 0; }));
        link.reset();
        open.reset();
        break;
      case 2:  // messages last
        tw_peer_close(link.get());
        CHECK(tw_call_ended(open.get()));
        open.reset();
        ended.reset();
        link.reset();
        house.reset();
        CHECK(segment(message) == text);
        break;
      default:  // calls after everything
        message.reset();
        tw_peer_close(link.get());
        link.reset();
        house.reset();
    }
    CHECK(view(large) == text);
    large.reset();
    CHECK(view(again) == text);
    CHECK(view(tiny) == small);
    // The rest goes in the order of the block.
  }
  CHECK(eventually([&] { return arena_used() <= before; }));
}

}  // namespace
}  // namespace tw::test::abi

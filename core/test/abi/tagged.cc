// SPDX-License-Identifier: Apache-2.0
// Tagged messages through the C ABI: sends, receives, memory of the caller's, and handles.
#include "test/abi/world.h"

namespace tw::test::abi {
namespace {

using Receive = std::unique_ptr<tw_receive, Release<tw_receive_release>>;

int send(tw_peer* peer, uint64_t tag, std::string_view text, tw_status* status = nullptr) {
  const tw_segment segment{text.data(), text.size()};
  tw_payload payload{};
  payload.segments = &segment;
  payload.count = 1;
  return tw_peer_send(peer, tag, payload, &kPatience, status);
}

Receive receive(tw_peer* peer, uint64_t tag, void* into = nullptr, size_t size = 0,
                const tw_owner* owner = nullptr) {
  tw_receive* out = nullptr;
  REQUIRE(tw_peer_receive(peer, tag, into, size, owner, nullptr, 0, &out, nullptr) == TW_OK);
  return Receive(out);
}

std::string text_of(tw_receive* receive) {
  tw_message* message = nullptr;
  tw_status status{};
  const int ended = tw_receive_wait(receive, &kPatience, &message, &status);
  REQUIRE_MESSAGE(ended == TW_OK, status.details);
  REQUIRE(message);
  std::string text(tw_message_size(message), ' ');
  tw_message_copy(message, text.data());
  tw_message_release(message);
  return text;
}

TEST_CASE("abi: tagged messages go both ways, and are asked for by their tag") {
  for (const char* way : {"shm", "tcp"}) {
    CAPTURE(way);
    Ends ends(way);
    CHECK(send(ends.here.get(), 1, "first") == TW_OK);
    CHECK(send(ends.here.get(), TW_MAX_TAG, "other") == TW_OK);
    CHECK(send(ends.here.get(), 1, "second") == TW_OK);
    CHECK(send(ends.there.get(), 1, "back") == TW_OK);
    CHECK(text_of(receive(ends.there.get(), TW_MAX_TAG).get()) == "other");
    CHECK(text_of(receive(ends.there.get(), 1).get()) == "first");
    CHECK(text_of(receive(ends.there.get(), 1).get()) == "second");
    const Receive back = receive(ends.here.get(), 1);
    CHECK(text_of(back.get()) == "back");
    tw_message* again = nullptr;
    CHECK(tw_receive_wait(back.get(), &kPatience, &again, nullptr) == TW_OK);
    CHECK_FALSE(again);
  }
}

TEST_CASE("abi: memory to receive into is its owner's again in the end") {
  for (const char* way : {"shm", "tcp"}) {
    CAPTURE(way);
    Told told;
    const tw_owner owner = told.owner();
    Ends ends(way);
    const std::string large(3 << 20, 'x');
    std::string into(large.size(), ' ');
    {
      const Receive waits = receive(ends.there.get(), 4, into.data(), into.size(), &owner);
      std::thread sender([&] { CHECK(send(ends.here.get(), 4, large) == TW_OK); });
      tw_message* message = nullptr;
      REQUIRE(tw_receive_wait(waits.get(), &kPatience, &message, nullptr) == TW_OK);
      sender.join();
      CHECK(into == large);
      CHECK(tw_message_posted(message) == nullptr);
      tw_message_release(message);
    }
    CHECK(eventually([&] { return told.times == 1; }));

    char few[4];
    const Receive small = receive(ends.there.get(), 4, few, sizeof few, &owner);
    CHECK(send(ends.here.get(), 4, "a message") == TW_OK);
    tw_message* message = nullptr;
    tw_status status{};
    CHECK(tw_receive_wait(small.get(), &kPatience, &message, &status) == 11);
    CHECK(std::string_view(status.details) == "a message of 9 bytes came for memory of 4 bytes");

    const Receive cancelled = receive(ends.there.get(), 5, few, sizeof few, &owner);
    CHECK_FALSE(tw_receive_ended(cancelled.get()));
    CHECK(tw_receive_cancel(cancelled.get()) == 1);
    CHECK(tw_receive_cancel(cancelled.get()) == 0);
    CHECK(tw_receive_ended(cancelled.get()));
    CHECK(tw_receive_wait(cancelled.get(), &kPatience, &message, &status) == 1);
  }
}

TEST_CASE("abi: tagged messages: wrong arguments, deadlines, interruption and ends") {
  Ends ends("tcp");
  tw_status status{};
  CHECK(send(ends.here.get(), uint64_t{TW_MAX_TAG} + 1, "x", &status) == 3);
  char byte;
  tw_receive* none = nullptr;
  CHECK(tw_peer_receive(ends.here.get(), 1, &byte, 1, nullptr, nullptr, 0, &none, &status) == 3);
  CHECK(std::string_view(status.details) == "memory to receive into needs an owner");
  const tw_keeper keeper{nullptr, nullptr};
  tw_payload kept{};
  kept.keeper = &keeper;
  CHECK(tw_peer_send(ends.here.get(), 1, kept, &kPatience, &status) == 3);

  const Receive waits = receive(ends.here.get(), 1);
  tw_message* message = nullptr;
  const tw_wait brief{1'000'000, nullptr, nullptr};
  CHECK(tw_receive_wait(waits.get(), &brief, &message, &status) == 4);
  const tw_wait interrupted{-1, [](void*) { return 1; }, nullptr};
  CHECK(tw_receive_wait(waits.get(), &interrupted, &message, &status) == TW_INTERRUPTED);
  tw_peer_close(ends.link.get());
  CHECK(tw_receive_wait(waits.get(), &kPatience, &message, &status) == 1);
  CHECK(send(ends.here.get(), 1, "x", &status) == 1);
}

TEST_CASE("abi: the table has what the header has") {
  const tw_table* const table = tw_get_table();
  CHECK(table->version == TW_TABLE_VERSION);
  CHECK(table->size == sizeof(tw_table));
  CHECK((table->runtime_version == tw_version));
  CHECK((table->buffer_separate == tw_buffer_separate));
  CHECK((table->call_send == tw_call_send));
  CHECK((table->peer_access == tw_peer_access));
  CHECK((table->peer_send == tw_peer_send));
  CHECK((table->server_trace == tw_server_trace));
}

}  // namespace
}  // namespace tw::test::abi

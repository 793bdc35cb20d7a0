// SPDX-License-Identifier: Apache-2.0
// Memory that its owner lends to a message: it travels as it is, and the owner hears once when
// nobody reads it any more.
#include <atomic>

#include "tensorwire.h"
#include "test/call/world.h"

namespace tw::test {
namespace {

// Whom the runtime tells. What it does then is not the runtime's to know.
class Lender final : public RefCounted {
 public:
  Lender(std::atomic<int>& told, std::function<void()> then)
      : told_(told), then_(std::move(then)) {}

 private:
  ~Lender() override {
    if (then_) then_();
    ++told_;
  }
  std::atomic<int>& told_;
  const std::function<void()> then_;
};

OutSegment lent(std::span<const std::byte> bytes, std::atomic<int>& told,
                std::function<void()> then = {}) {
  OutSegment segment = out(bytes);
  segment.hold = make_ref<Lender>(told, std::move(then));
  return segment;
}

// Each call is answered with its own payload, which the answer lends from `from`.
struct Library {
  explicit Library(std::span<const std::byte> from)
      : house(
            [this, from](Ref<ServerCall> call) {
              answer(*call, {lent(from, told)});
              links.put(Ref<CallPort>::share(&call->port()));
              return Ref<ServerCall>{};
            },
            1) {}
  std::atomic<int> told{0};
  Slot<Ref<CallPort>> links;
  House house;
};

TEST_CASE("lending: arena memory goes without a copy, unpublished, and comes home by FIN") {
  ArenaWatch arena;
  {
    const auto bytes = bytes_of(300'000);
    const auto block = block_of(bytes);
    REQUIRE_FALSE(block->published());
    Library library({block->data(), bytes.size()});
    Closing link(library.house.connect<ShmWay>());
    Reply reply = unary(*link, "/t/Read", {});
    REQUIRE(reply.code == Code::kOk);
    REQUIRE(reply.segments.at(0).view() != nullptr);
    CHECK(same(reply.segments[0], bytes));
    const auto served = library.links.take();
    CHECK(served->stats().copies == 0);
    CHECK(served->stats().leases == 1);
    CHECK(library.told == 0);
    reply.segments.clear();
    CHECK(eventually([&] { return library.told == 1; }));
    CHECK(served->stats().leases == 0);
  }
  CHECK(arena.restored());
}

TEST_CASE("lending: the part of a block that is lent need not begin where the block does") {
  const auto bytes = bytes_of(300'000);
  const auto block = block_of(bytes);
  Library library({block->data() + 192, 200'000});
  Closing link(library.house.connect<ShmWay>());
  Reply reply = unary(*link, "/t/Read", {});
  REQUIRE(reply.segments.at(0).view() != nullptr);
  CHECK(same(reply.segments[0], std::span(bytes).subspan(192, 200'000)));
}

TEST_CASE_TEMPLATE("lending: other memory is free as soon as it is sent", Way, TENSORWIRE_LINKS) {
  ArenaWatch arena;
  {
    const auto bytes = bytes_of(9 << 20), few = bytes_of(700);
    for (const auto& from : {bytes, few}) {
      Library library(from);
      Closing link(library.house.connect<Way>());
      const Reply reply = unary(*link, "/t/Read", {});
      REQUIRE(reply.code == Code::kOk);
      CHECK(same(reply.segments.at(0), from));
      CHECK(eventually([&] { return library.told == 1; }));
    }
  }
  CHECK(arena.restored());
}

TEST_CASE("lending: with a full arena other memory is pushed, and nobody waits") {
  const auto bytes = bytes_of(3 << 20);
  Library library(bytes);
  Closing link(library.house.connect<ShmWay>());
  std::vector<Ref<Block>> blocks;
  for (size_t size = size_t{256} << 20; size >= 4096; size /= 2)
    while (auto block = runtime().arena().allocate(size)) blocks.push_back(std::move(*block));
  const Reply reply = unary(*link, "/t/Read", {});
  REQUIRE(reply.code == Code::kOk);
  CHECK(same(reply.segments.at(0), bytes));
  CHECK(reply.segments[0].view() == nullptr);
  CHECK(eventually([&] { return library.told == 1; }));
}

TEST_CASE_TEMPLATE("lending: the owner hears also when the message never leaves", Way,
                   TENSORWIRE_LINKS) {
  const auto bytes = bytes_of(300'000);
  std::atomic<int> told{0};
  House house(echo);
  const auto link = house.connect<Way>();
  link->link().close({Code::kCancelled, "the channel was closed"});
  CHECK(unary(*link, "/t/Echo", {lent(bytes, told)}).code != Code::kOk);
  CHECK(told == 1);
}

TEST_CASE_TEMPLATE("lending: the owner hears when the reader is lost", Way, TENSORWIRE_LINKS) {
  ArenaWatch arena;
  {
    const auto bytes = bytes_of(64 << 20);
    const auto block = block_of(bytes);
    std::atomic<int> told{0};
    Slot<bool> go_on;
    House house(
        [&](Ref<ServerCall> call) {
          go_on.take();  // nobody takes what is sent
          finish(*call);
          return Ref<ServerCall>{};
        },
        1);
    const auto link = house.connect<Way>();
    std::vector<OutSegment> segments{lent({block->data(), bytes.size()}, told)};
    auto call = link->new_call(kForever);
    REQUIRE(call.ok());
    stage((*call)->link(), segments);
    REQUIRE((*call)->begin("/t/Long", {}, segments, true, false, false).ok());
    segments.clear();
    go_on.put(true);
    house.close();
    CHECK(eventually([&] { return told == 1; }));
  }
  CHECK(arena.restored());
}

TEST_CASE("lending: an owner may give back leases of the very link that tells it") {
  ArenaWatch arena;
  {
    const auto bytes = bytes_of(300'000);
    std::atomic<int> told{0};
    House house(echo);
    Closing link(house.connect<ShmWay>());
    // What was received is lent on. Its last reference goes where the FIN of the second arrives.
    Reply first = unary(*link, "/t/Echo", {out(bytes)});
    REQUIRE(first.segments.at(0).view() != nullptr);
    const auto block = block_of(bytes);
    auto kept = std::make_shared<decltype(first.segments)>(std::move(first.segments));
    std::vector<OutSegment> message{
        lent({block->data(), bytes.size()}, told, [kept] { kept->clear(); })};
    kept.reset();
    Reply second = unary(*link, "/t/Echo", std::move(message));
    REQUIRE(second.code == Code::kOk);
    second.segments.clear();
    CHECK(eventually([&] { return told == 1; }));
    CHECK(eventually([&] { return link->stats().views == 0; }));
  }
  CHECK(arena.restored());
}

TEST_CASE("lending: the C ABI tells each owner once") {
  ArenaWatch arena;
  {
    auto* const data = static_cast<std::byte*>(tw_arena_allocate(100'000));
    REQUIRE(data != nullptr);
    CHECK(reinterpret_cast<uintptr_t>(data) % 4096 == 0);
    const auto bytes = bytes_of(100'000), few = bytes_of(100);
    std::memcpy(data, bytes.data(), bytes.size());
    std::atomic<int> told[2]{};
    const auto tell = [](void* context) { ++*static_cast<std::atomic<int>*>(context); };
    const tw_segment segments[]{{few.data(), few.size()}, {data, bytes.size()}, {few.data(), 1}};
    const tw_owner owners[]{{tell, &told[0]}, {tell, &told[1]}, {nullptr, nullptr}};
    const tw_payload payload{segments, 3, owners, nullptr};
    House house(echo);
    const auto link = house.connect<ShmWay>();
    auto* const handle = reinterpret_cast<tw_link*>(link.get());
    const tw_wait wait{patience() - now(), nullptr, nullptr};
    tw_reply reply{};
    tw_status status{};
    CHECK(tw_peer_unary_into(handle, "/t/Echo", 7, {}, payload, nullptr, 0, &wait, &reply,
                             &status) == TW_OK);
    REQUIRE(reply.message != nullptr);
    CHECK(tw_message_count(reply.message) == 3);
    CHECK(link->stats().sent.mapped_segments == 1);
    CHECK(told[0] == 1);
    tw_message_release(reply.message);
    CHECK(eventually([&] { return told[1] == 1; }));
    // The block outlives what its owner does with it, for as long as it is on lease.
    CHECK(tw_arena_free(data) == 1);
    tw_peer_close(handle);
    CHECK(tw_peer_unary_into(handle, "/t/Echo", 7, {}, payload, nullptr, 0, &wait, &reply,
                             &status) != TW_OK);
    CHECK(told[0] == 2);
    CHECK(told[1] == 2);
  }
  CHECK(arena.restored());
}

TEST_CASE("lending: memory that is freed while it is on lease stays what it was") {
  ArenaWatch arena;
  {
    const auto bytes = bytes_of(100'000);
    auto* const data = static_cast<std::byte*>(tw_arena_allocate(bytes.size()));
    REQUIRE(data != nullptr);
    std::memcpy(data, bytes.data(), bytes.size());
    Library library({data, bytes.size()});
    Closing link(library.house.connect<ShmWay>());
    const Reply reply = unary(*link, "/t/Read", {});
    REQUIRE(reply.segments.at(0).view() != nullptr);
    CHECK(tw_arena_free(data) == 1);
    auto* const next = static_cast<std::byte*>(tw_arena_allocate(bytes.size()));
    REQUIRE(next != nullptr);
    CHECK(next != data);
    std::memset(next, 0, bytes.size());
    CHECK(same(reply.segments[0], bytes));
    CHECK(tw_arena_free(next) == 1);
  }
  CHECK(arena.restored());
}

TEST_CASE("lending: the arena takes back only what it gave") {
  std::byte mine[64];
  CHECK(tw_arena_free(mine) == 0);
  auto* const data = static_cast<std::byte*>(tw_arena_allocate(8192));
  REQUIRE(data != nullptr);
  CHECK(tw_arena_free(data + 4096) == 0);
  CHECK(tw_arena_free(data) == 1);
  CHECK(tw_arena_free(data) == 0);
  CHECK(tw_arena_allocate(runtime().settings().buffer_bytes + 1) == nullptr);
}

TEST_CASE_TEMPLATE("ending: who serves hears of a call that is cut, not of one it finishes", Way,
                   TENSORWIRE_LINKS) {
  Slot<Ref<ServerCall>> calls;
  House house(
      [&](Ref<ServerCall> call) {
        calls.put(std::move(call));
        return Ref<ServerCall>{};
      },
      1);
  const auto queue = make_ref<EventQueue>();
  std::vector<uint64_t> tokens;
  {
    Closing link(house.connect<Way>());
    auto call = start(*link, "/t/Long");
    auto served = calls.take();
    served->notify(Call::Happening::kCut, queue, 1);
    CHECK(finish(*served));
    served->notify(Call::Happening::kCut, queue, 2);
    served->notify(Call::Happening::kEnded, queue, 3);
    REQUIRE(take_tokens(*queue, tokens, 8, patience()) == Waited::kDone);
    CHECK(tokens == std::vector<uint64_t>{3});

    call = start(*link, "/t/Long");
    served = calls.take();
    served->notify(Call::Happening::kCut, queue, 4);
    CHECK(call->cancel(Code::kCancelled, ""));
    REQUIRE(take_tokens(*queue, tokens, 8, patience()) == Waited::kDone);
    CHECK(tokens == std::vector<uint64_t>{4});
    served->notify(Call::Happening::kCut, queue, 5);
    REQUIRE(take_tokens(*queue, tokens, 8, patience()) == Waited::kDone);
    CHECK(tokens == std::vector<uint64_t>{5});

    call = start(*link, "/t/Long");
    served = calls.take();
    served->notify(Call::Happening::kCut, queue, 6);
  }
  REQUIRE(take_tokens(*queue, tokens, 8, patience()) == Waited::kDone);
  CHECK(tokens == std::vector<uint64_t>{6});
  house.close();
}

}  // namespace
}  // namespace tw::test

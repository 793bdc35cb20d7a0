// SPDX-License-Identifier: Apache-2.0
// Unary calls from end to end: payloads of all sizes, statuses, metadata, many callers at once.
#include <atomic>

#include "test/call/world.h"

namespace tw::test {
namespace {

TEST_CASE_TEMPLATE("unary: payloads of all sizes come back as they were", Way, TENSORWIRE_LINKS) {
  ArenaWatch arena;
  {
    House house(echo);
    Closing link(house.connect<Way>());
    const Settings& settings = runtime().settings();
    std::vector<size_t> sizes = {0, 1, 8, 100, 1 << 20, (4 << 20) + 1, 9 << 20};
    for (const size_t threshold : {settings.coalesce_bytes, settings.eager_bytes,
                                   settings.chunk_bytes, shm::Settings{}.ring_bytes})
      sizes.insert(sizes.end(), {threshold - 1, threshold, threshold + 1});
    for (const size_t size : sizes) {
      CAPTURE(size);
      const auto bytes = bytes_of(size, static_cast<uint32_t>(size));
      const Reply reply = unary(*link, "/t/Echo", {out(bytes)});
      REQUIRE(reply.code == Code::kOk);
      REQUIRE(reply.segments.size() == 1);
      CHECK(same(reply.segments[0], bytes));
      CHECK(reply.payload_bytes == size);
    }
  }
  CHECK(arena.restored());
}

TEST_CASE_TEMPLATE("unary: lists of segments keep their order and their bounds", Way,
                   TENSORWIRE_LINKS) {
  House house(echo);
  Closing link(house.connect<Way>());
  std::mt19937 random(4);
  for (int round = 0; round < 20; ++round) {
    std::vector<std::vector<std::byte>> parts(random() % 12);
    std::vector<OutSegment> segments;
    for (auto& part : parts) {
      const size_t most[] = {1, 300, 20'000, 200'000};
      part = bytes_of(random() % most[random() % 4], static_cast<uint32_t>(round));
      segments.push_back(out(part));
    }
    const Reply reply = unary(*link, "/t/Echo", segments);
    REQUIRE(reply.code == Code::kOk);
    REQUIRE(reply.segments.size() == parts.size());
    for (size_t i = 0; i < parts.size(); ++i) CHECK(same(reply.segments[i], parts[i]));
  }
}

TEST_CASE_TEMPLATE("unary: status, details and metadata travel in both directions", Way,
                   TENSORWIRE_LINKS) {
  House house([](ServerCall& call) {
    Entries back;
    for (const wire::MetadataEntry entry : call.metadata().view) back.push_back(entry);
    if (call.method() == "/t/Early") CHECK(call.send_initial(back).ok());
    finish(call, Code::kNotFound, "no such tensor", back);
  });
  Closing link(house.connect<Way>());
  const std::string binary("\0\xff\x80", 3);
  const Entries metadata = {{"key", "value"}, {"key", "again"}, {"raw-bin", binary}};
  for (const std::string method : {"/t/Late", "/t/Early"}) {
    const Reply reply = unary(*link, method, {}, patience(), metadata);
    CHECK(reply.code == Code::kNotFound);
    CHECK(reply.details == "no such tensor");
    CHECK(reply.segments.empty());
    const auto& early = reply.initial.view;
    const auto& late = reply.trailing.view;
    CHECK(std::equal(late.begin(), late.end(), metadata.begin(), metadata.end()));
    CHECK(early.size() == (method == "/t/Early" ? 3 : 0));
  }
}

TEST_CASE_TEMPLATE("unary: eight threads call on one link", Way, TENSORWIRE_LINKS) {
  ArenaWatch arena;
  {
    House house(echo);
    Closing link(house.connect<Way>());
    std::atomic<int> wrong{0};
    std::vector<std::thread> threads;
    for (uint32_t t = 0; t < 8; ++t)
      threads.emplace_back([&, t] {
        std::mt19937 random(t);
        for (uint32_t i = 0; i < 60; ++i) {
          const auto bytes = bytes_of(i % 10 ? random() % 500 : random() % 300'000, t * 1000 + i);
          const Reply reply = unary(*link, "/t/Echo", {out(bytes)});
          wrong += reply.code != Code::kOk || reply.segments.size() != 1 ||
                   !same(reply.segments[0], bytes);
        }
      });
    for (auto& thread : threads) thread.join();
    CHECK(wrong == 0);
    CHECK(eventually([&] { return link->calls() == 0 && house.server().active() == 0; }));
  }
  CHECK(arena.restored());
}

TEST_CASE_TEMPLATE("unary: a worker that polls takes the next call of its link", Way,
                   TENSORWIRE_LINKS) {
  House house(
      [](Ref<ServerCall> call) {
        InMessage request;
        Ref<ServerCall> next;
        if (!receive(*call, request)) return next;
        auto segments = outs(request.segments);
        stage(call->link(), segments);
        call->finish_and_poll(Code::kOk, {}, {}, true, segments, {}, next);
        return next;
      },
      2);
  Closing link(house.connect<Way>());
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (uint32_t t = 0; t < 3; ++t)
    threads.emplace_back([&, t] {
      for (uint32_t i = 0; i < 300; ++i) {
        const auto bytes = bytes_of(i % 20 ? 8 : 400'000, t * 1000 + i);
        const Reply reply = unary(*link, "/t/Echo", {out(bytes)});
        wrong += reply.code != Code::kOk || !same(reply.segments[0], bytes);
      }
    });
  for (auto& thread : threads) thread.join();
  CHECK(wrong == 0);
}

TEST_CASE("unary: published memory travels without a copy, other memory with one") {
  ArenaWatch arena;
  {
    House house([](ServerCall& call) {
      InMessage request;
      REQUIRE(receive(call, request));
      CHECK(request.segments[0].view() != nullptr);
      finish(call);
    });
    Closing link(house.connect<ShmWay>());
    const auto bytes = bytes_of(1 << 20);
    CHECK(unary(*link, "/t/Take", {out(bytes)}).code == Code::kOk);
    CHECK(link->stats().copies == 1);
    CHECK(link->stats().copied_bytes == 1 << 20);
    CHECK(link->stats().sent.mapped_segments == 1);

    const Ref<Block> block = block_of(bytes);
    const std::span<const std::byte> inside(block->data(), block->size());
    CHECK(unary(*link, "/t/Take", {out(inside)}).code == Code::kOk);
    CHECK(link->stats().copies == 2);  // its owner may still write there
    block->publish();
    CHECK(unary(*link, "/t/Take", {out(inside)}).code == Code::kOk);
    CHECK(unary(*link, "/t/Take", {out(inside.subspan(4096, 100'000))}).code == Code::kOk);
    CHECK(link->stats().copies == 2);
    CHECK(link->stats().sent.mapped_segments == 4);
    CHECK(eventually([&] { return link->stats().leases == 0; }));
    CHECK(link->stats().leased_bytes == 0);
  }
  CHECK(arena.restored());
}

TEST_CASE_TEMPLATE("unary: a message above the limit is refused, and the link goes on", Way,
                   TENSORWIRE_LINKS) {
  constexpr uint64_t kLimit = 100'000;
  House house(
      [](Ref<ServerCall> call) {
        if (call->method() == "/t/Large") {
          const auto bytes = bytes_of(kLimit + 1);
          answer(*call, {out(bytes)});
        } else {
          echo(*call);
        }
        return Ref<ServerCall>{};
      },
      2, kLimit);
  Closing link(house.connect<Way>(kLimit));
  const auto large = bytes_of(kLimit + 1), small = bytes_of(kLimit);
  for (int round = 0; round < 3; ++round) {
    const Reply there = unary(*link, "/t/Echo", {out(large)});
    CHECK(there.code == Code::kResourceExhausted);
    CHECK(there.details.find("100000") != std::string::npos);
    const Reply back = unary(*link, "/t/Large", {});
    CHECK(back.code == Code::kResourceExhausted);
    const Reply good = unary(*link, "/t/Echo", {out(small)});
    REQUIRE(good.code == Code::kOk);
    CHECK(same(good.segments[0], small));
  }
  CHECK(link->link().alive());
}

TEST_CASE_TEMPLATE("unary: what the caller chose wrongly is refused before it is sent", Way,
                   TENSORWIRE_LINKS) {
  House house(echo);
  Closing link(house.connect<Way>());
  CHECK(unary(*link, "", {}).code == Code::kInvalidArgument);
  CHECK(unary(*link, "/t/Echo", {}, patience(), {{"Upper", "x"}}).code == Code::kInvalidArgument);
  const std::string long_value(70'000, 'x');
  CHECK(unary(*link, "/t/Echo", {}, patience(), {{"key", long_value}}).code ==
        Code::kResourceExhausted);
  CHECK(unary(*link, "/t/Echo", {}).code == Code::kOk);
  CHECK(link->calls() == 0);
}

}  // namespace
}  // namespace tw::test

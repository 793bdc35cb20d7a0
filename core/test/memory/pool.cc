// SPDX-License-Identifier: Apache-2.0
#include "memory/pool.h"

#include <doctest/doctest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <thread>
#include <vector>

#include "memory/huge_pages.h"
#include "test/not_tried.h"
#include "test/shortage.h"
#include "test/units.h"

namespace tw {
namespace {

using test::kKiB;
using test::kMiB;

Ref<PoolBuffer> must(Result<Ref<PoolBuffer>> buffer) {
  REQUIRE(buffer.ok());
  return std::move(buffer).value();
}

size_t resident_pages(const PoolBuffer& buffer) {
  std::vector<unsigned char> map(buffer.capacity() / page_size());
  REQUIRE(mincore(buffer.data(), buffer.capacity(), map.data()) == 0);
  size_t count = 0;
  for (const unsigned char page : map) count += page & 1;
  return count;
}

TEST_CASE("pool: size classes") {
  static_assert(Pool::class_size(0) == 32 * kKiB);
  static_assert(Pool::class_of(1) == 0 && Pool::class_of(32 * kKiB) == 0);
  static_assert(Pool::class_of(32 * kKiB + 1) == 1);
  static_assert(Pool::class_of(64 * kKiB) == 4 && Pool::class_size(4) == 64 * kKiB);
  size_t last = 0;
  for (size_t index = 0; Pool::class_size(index) <= Pool::kLargest; ++index) {
    const size_t size = Pool::class_size(index);
    REQUIRE(size > last);
    REQUIRE(size % (8 * kKiB) == 0);
    REQUIRE(Pool::class_of(size) == index);
    REQUIRE(Pool::class_of(size - 1) == index);
    REQUIRE(Pool::class_of(size + 1) == index + 1);
    if (last) REQUIRE(size - last <= last / 4);
    last = size;
  }
}

TEST_CASE("pool: buffers") {
  auto pool = make_ref<Pool>(8 * kMiB);
  for (size_t size : {size_t{0}, size_t{1}, 32 * kKiB - 1, 32 * kKiB, 100 * kKiB, 5 * kMiB}) {
    CAPTURE(size);
    auto buffer = must(pool->get(size));
    CHECK(buffer->size() == size);
    CHECK(buffer->bytes().size() == size);
    CHECK(buffer->capacity() >= size);
    CHECK(reinterpret_cast<uintptr_t>(buffer->data()) %
              (size >= Pool::kSmallest ? page_size() : 64) ==
          0);
    if (size) std::memset(buffer->data(), 1, size);
  }
  CHECK(pool->get(Pool::kLargest + 1).status().code() == Code::kResourceExhausted);
  CHECK(pool->get(Pool::kLargest).status().code() == Code::kResourceExhausted);
  CHECK(pool->stats().used == 0);
}

TEST_CASE(
    "pool: buffers that are no larger than a huge page lie side by side, larger ones begin one") {
  auto pool = make_ref<Pool>(64 * kMiB);
  const auto first = must(pool->get(kMiB)), second = must(pool->get(640 * kKiB));
  CHECK(first->data() + first->capacity() == second->data());
  std::memset(first->data(), 1, first->capacity());
  std::memset(second->data(), 2, second->capacity());
  CHECK(first->data()[first->capacity() - 1] == std::byte{1});
  for (const size_t size : {kHugePage, 5 * kMiB})
    CHECK(reinterpret_cast<uintptr_t>(must(pool->get(size))->data()) % kHugePage == 0);
}

TEST_CASE("pool: memory is recycled by size, newest first, and not touched") {
  auto pool = make_ref<Pool>(64 * kMiB);
  auto a = must(pool->get(10 * kMiB));
  auto b = must(pool->get(10 * kMiB));
  std::byte* const at = b->data();
  std::memset(at, 7, 10 * kMiB);
  const size_t pages = resident_pages(*b);
  a = nullptr;
  b = nullptr;
  CHECK(pool->stats().idle == 20 * kMiB);
  b = must(pool->get(9 * kMiB));
  CHECK(b->data() == at);
  CHECK(b->size() == 9 * kMiB);
  CHECK(resident_pages(*b) == pages);
  CHECK(at[9 * kMiB] == std::byte{7});
  a = must(pool->get(10 * kMiB));
  // Nobody has written to it; a huge page may have been made to learn its price.
  CHECK(resident_pages(*a) <= kHugePage / page_size());
  const PoolStats stats = pool->stats();
  CHECK(stats.fresh == 2);
  CHECK(stats.recycled == 2);
  CHECK(stats.idle == 0);
  CHECK(stats.used == 20 * kMiB);
}

TEST_CASE("pool: what stays idle is bounded, the oldest goes first") {
  auto pool = make_ref<Pool>(4 * kMiB);
  std::vector<Ref<PoolBuffer>> buffers;
  for (int i = 0; i < 6; ++i) buffers.push_back(must(pool->get(kMiB)));
  std::byte* const newest = buffers.back()->data();
  buffers.clear();
  CHECK(pool->stats().idle == 4 * kMiB);
  CHECK(pool->stats().dropped == 2);
  auto other = must(pool->get(2 * kMiB));
  other = nullptr;
  CHECK(pool->stats().idle == 4 * kMiB);
  CHECK(pool->stats().dropped == 4);
  auto buffer = must(pool->get(kMiB));
  CHECK(buffer->data() == newest);

  SUBCASE("one larger than the bound does not push the others out") {
    must(pool->get(5 * kMiB)) = nullptr;
    CHECK(pool->stats().idle == 3 * kMiB);
    CHECK(pool->stats().dropped == 5);
  }
}

TEST_CASE("pool: trim") {
  auto pool = make_ref<Pool>(16 * kMiB);
  const Nanos before = now();
  must(pool->get(kMiB)) = nullptr;
  must(pool->get(2 * kMiB)) = nullptr;
  pool->trim(before);
  CHECK(pool->stats().idle == 3 * kMiB);
  pool->trim();
  CHECK(pool->stats().idle == 0);
  CHECK(pool->stats().dropped == 2);
}

TEST_CASE("pool: a buffer that there is no memory to note is not kept") {
  if (!test::kFailsOnDemand)
    return test::not_tried("ThreadSanitizer insists on its own allocator: none fails on demand");
  const auto pool = make_ref<Pool>(size_t{1} << 20);
  for (const int n : {1, 2}) {
    CAPTURE(n);
    Ref<PoolBuffer> buffer = pool->get(100'000).value();
    test::Failing failing(n);
    buffer = nullptr;
    REQUIRE(failing.end());
    CHECK(pool->stats().used == 0);
    CHECK(pool->stats().idle == 0);
    CHECK(pool->stats().dropped == static_cast<uint64_t>(n));
  }
}

TEST_CASE("pool: buffers keep it alive") {
  auto pool = make_ref<Pool>(16 * kMiB);
  auto buffer = must(pool->get(kMiB));
  pool = nullptr;
  std::memset(buffer->data(), 1, buffer->size());
}

// Memory that was posted, and how often it came home.
struct Home {
  class Owner final : public RefCounted {
   public:
    explicit Owner(int& returns) : returns_(returns) {}

   private:
    ~Owner() override { ++returns_; }
    int& returns_;
  };

  Ref<PostedBuffer> buffer(size_t size) {
    return make_ref<PostedBuffer>(&byte, size, make_ref<Owner>(returns));
  }
  std::byte byte{};
  int returns = 0;
};

TEST_CASE("pool: what is posted serves one of exactly its size, the first one first") {
  auto pool = make_ref<Pool>(64 * kMiB);
  CHECK_FALSE(pool->take_posted(4 * kMiB));
  Home first, second;
  pool->post(first.buffer(4 * kMiB));
  pool->post(second.buffer(4 * kMiB));
  CHECK(pool->stats().posted == 8 * kMiB);
  CHECK_FALSE(pool->take_posted(4 * kMiB - 1));
  CHECK_FALSE(pool->take_posted(4 * kMiB + 1));
  Ref<PostedBuffer> taken = pool->take_posted(4 * kMiB);
  REQUIRE(taken);
  CHECK(taken->data() == &first.byte);
  CHECK(first.returns == 0);
  taken = nullptr;
  CHECK(first.returns == 1);
  CHECK(pool->take_posted(4 * kMiB)->data() == &second.byte);
  CHECK(second.returns == 1);
  CHECK_FALSE(pool->take_posted(4 * kMiB));
  CHECK(pool->stats().posted == 0);
}

TEST_CASE("pool: what is posted is bounded, the oldest goes first, and what nobody needs goes") {
  auto pool = make_ref<Pool>(64 * kMiB);
  Home few[Pool::kMostPosted], more, large, huge;
  for (Home& home : few) pool->post(home.buffer(4 * kMiB));
  CHECK(few[0].returns == 0);
  pool->post(more.buffer(5 * kMiB));
  CHECK(few[0].returns == 1);
  CHECK(few[1].returns == 0);
  pool->post(large.buffer(60 * kMiB));
  CHECK(few[Pool::kMostPosted - 1].returns == 1);
  CHECK(more.returns == 1);
  CHECK(pool->stats().posted == 60 * kMiB);
  pool->post(huge.buffer(65 * kMiB));
  CHECK(huge.returns == 1);
  CHECK(pool->stats().posted == 0);

  const Nanos before = now();
  pool->post(more.buffer(5 * kMiB));
  must(pool->get(kMiB)) = nullptr;
  pool->trim(kForever, before);
  CHECK(more.returns == 1);
  CHECK(pool->stats().idle == 0);
  pool->trim();
  CHECK(more.returns == 2);
  pool->post(more.buffer(5 * kMiB));
  pool = nullptr;
  CHECK(more.returns == 3);
}

TEST_CASE("pool: threads") {
  auto pool = make_ref<Pool>(2 * kMiB);
  std::vector<std::thread> threads;
  std::atomic<int> failures{0};
  for (int id = 1; id <= 3; ++id) {
    threads.emplace_back([&, id] {
      std::vector<Ref<PoolBuffer>> held;
      for (size_t i = 0; i < 2000; ++i) {
        auto buffer = pool->get(1 + i * 7919 % (256 * kKiB));
        if (!buffer) {
          ++failures;
          continue;
        }
        (*buffer)->data()[0] = static_cast<std::byte>(id);
        held.push_back(std::move(*buffer));
        if (held.size() == 4) {
          for (const auto& kept : held) failures += kept->data()[0] != static_cast<std::byte>(id);
          held.clear();
        }
      }
    });
  }
  for (auto& thread : threads) thread.join();
  CHECK(failures == 0);
  const PoolStats stats = pool->stats();
  CHECK(stats.used == 0);
  CHECK(stats.idle <= stats.capacity);
  CHECK(stats.recycled > 0);
}

TEST_CASE("pool: a forked child leaves it alone") {
  auto pool = make_ref<Pool>(16 * kMiB);
  auto buffer = must(pool->get(kMiB));
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    const auto refused = pool->get(kMiB);
    bool good = !refused.ok() && refused.status().code() == Code::kFailedPrecondition;
    buffer = nullptr;
    good = good && pool->stats().idle == 0;
    _exit(good ? 0 : 1);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(status == 0);
  CHECK(pool->stats().used == kMiB);
}

}  // namespace
}  // namespace tw

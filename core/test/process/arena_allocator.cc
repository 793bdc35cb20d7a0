// SPDX-License-Identifier: Apache-2.0
#include "process/arena_allocator.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "memory/memfd.h"

namespace tw::test {
namespace {

Runtime& runtime() {
  auto got = Runtime::get();
  REQUIRE(got.ok());
  return **got;
}

TEST_CASE(
    "arena allocator: a block has at least a page of its own, and is there until it is freed") {
  Arena& arena = runtime().arena();
  for (const size_t size : {size_t{0}, size_t{1}, page_size(), size_t{1} << 20}) {
    CAPTURE(size);
    std::byte* const data = arena_allocate(runtime(), size);
    REQUIRE(data);
    CHECK(reinterpret_cast<uintptr_t>(data) % 4096 == 0);
    std::memset(data, 1, std::max(size, page_size()));
    {
      const Ref<Block> block = arena.find(data, size);
      REQUIRE(block);
      CHECK(block->size() == std::max(size, page_size()));
      CHECK(block->leasable());
    }
    CHECK(arena_free(runtime(), data));
    CHECK_FALSE(arena.find(data, size));
  }
}

TEST_CASE("arena allocator: what is no block's beginning is not freed") {
  std::byte* const data = arena_allocate(runtime(), 2 * page_size());
  REQUIRE(data);
  CHECK_FALSE(arena_free(runtime(), data + page_size()));
  CHECK(runtime().arena().find(data, 1));
  std::byte local{};
  CHECK_FALSE(arena_free(runtime(), &local));
  CHECK_FALSE(arena_free(runtime(), nullptr));
  CHECK(arena_free(runtime(), data));
  CHECK_FALSE(arena_free(runtime(), data));
}

TEST_CASE("arena allocator: who keeps a block that is freed has it on") {
  std::byte* const data = arena_allocate(runtime(), 1);
  REQUIRE(data);
  Ref<Block> lent = runtime().arena().find(data, 1);
  CHECK(arena_free(runtime(), data));
  CHECK(runtime().arena().find(data, 1));
  lent = nullptr;
  CHECK_FALSE(runtime().arena().find(data, 1));
}

TEST_CASE("arena allocator: what the arena has no room for somebody else serves") {
  CHECK(arena_allocate(runtime(), runtime().settings().buffer_bytes + 1) == nullptr);
}

}  // namespace
}  // namespace tw::test

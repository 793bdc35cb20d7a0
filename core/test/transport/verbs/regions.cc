// Exposed regions: the device itself sees to bounds and rights.
#include <array>
#include <span>
#include <vector>

#include "test/transport/verbs/world.h"

namespace tw::test {
namespace {

constexpr size_t kRegion = 64 << 10;
constexpr size_t kSize = kRegion + 4096;

struct Exposed {
  // Any memory of this process can be exposed: a part of a block of the arena, or of no block.
  explicit Exposed(Rights rights, bool of_arena) : pair(Verbs::make()) {
    if (of_arena) {
      auto found = verbs_world().arena->allocate(kSize);
      REQUIRE(found.ok());
      block = std::move(*found);
      memory = {block->data(), kSize};
    } else {
      own.resize(kSize);
      memory = own;
    }
    for (size_t i = 0; i < memory.size(); ++i) memory[i] = pattern(i);
    auto exposed = pair.a->expose(memory.data() + 64, kRegion, rights);
    INFO((exposed.ok() ? std::string{} : exposed.status().details()));
    REQUIRE(exposed.ok());
    key = *exposed;
    // The peer learns of it by what is sent afterwards.
    REQUIRE(send_pattern(*pair.a, 0, 1) == 1);
    while (receive_pattern(*pair.b, 0, 1) == 0)
      REQUIRE(pair.b->sleep(false, patience()) == Wake::kReady);
  }

  Operation operation(Operation::Kind kind, std::byte* local, size_t length, uint64_t offset) {
    Operation out;
    out.kind = kind;
    out.id = ++id;
    out.local = local;
    out.length = length;
    out.remote = {key.address + offset, key.key};
    return out;
  }

  Status run(const Operation& operation) {
    auto begun = pair.b->start(operation);
    REQUIRE(begun.ok());
    REQUIRE(*begun);
    std::array<Completion, 2> out;
    for (;;) {
      const size_t n = pair.b->completed(out);
      if (n == 0) {
        REQUIRE(pair.b->sleep(false, patience()) == Wake::kReady);
        continue;
      }
      REQUIRE(n == 1);
      CHECK(out[0].id == operation.id);
      return out[0].status;
    }
  }

  TransportPair pair;
  Ref<Block> block;
  std::vector<std::byte> own;
  std::span<std::byte> memory;
  RemoteKey key;
  uint64_t id = 0;
};

using Kind = Operation::Kind;

TEST_CASE("verbs regions: reads, writes and atomics do what they say") {
  TENSORWIRE_NEEDS_VERBS;
  bool of_arena = false;
  SUBCASE("in the arena") { of_arena = true; }
  SUBCASE("anywhere") {}
  Exposed region(kMayRead | kMayWrite | kMayUpdate, of_arena);
  std::array<std::byte, 5000> mine{};
  REQUIRE(region.run(region.operation(Kind::kRead, mine.data(), 5000, 100)).ok());
  for (size_t i = 0; i < 5000; ++i) REQUIRE(mine[i] == pattern(64 + 100 + i));

  for (const size_t size : {size_t{1}, size_t{100}, size_t{5000}}) {
    mine.fill(static_cast<std::byte>(size));
    REQUIRE(region.run(region.operation(Kind::kWrite, mine.data(), size, 200)).ok());
    for (size_t i = 0; i < size; ++i) REQUIRE(region.memory[64 + 200 + i] == mine[0]);
  }
  CHECK(region.memory[63] == pattern(63));
  CHECK(region.memory[64 + kRegion] == pattern(64 + kRegion));

  Operation told = region.operation(Kind::kWriteImmediate, mine.data(), 8, 0);
  told.immediate = 0xdead'beef;
  REQUIRE(region.run(told).ok());
  std::array<uint32_t, 4> values{};
  size_t n;
  char byte;
  const iovec room = run_of(&byte, 1);
  for (;;) {
    REQUIRE(region.pair.a->receive({&room, 1}).ok());
    n = region.pair.a->immediates(values);
    if (n != 0) break;
    REQUIRE(region.pair.a->sleep(false, patience()) == Wake::kReady);
  }
  CHECK(n == 1);
  CHECK(values[0] == 0xdead'beef);

  auto* const word = region.memory.data() + 64 + 256;  // aligned to 8
  const uint64_t before = 40;
  std::memcpy(word, &before, sizeof before);
  uint64_t old = 0;
  const auto local = [&] { return reinterpret_cast<std::byte*>(&old); };
  Operation add = region.operation(Kind::kFetchAdd, local(), 8, 256);
  add.operand = 2;
  REQUIRE(region.run(add).ok());
  CHECK(old == 40);
  Operation swap = region.operation(Kind::kCompareSwap, local(), 8, 256);
  swap.expected = 42;
  swap.operand = 7;
  REQUIRE(region.run(swap).ok());
  CHECK(old == 42);
  swap.id = ++region.id;
  REQUIRE(region.run(swap).ok());  // 7 is there now: nothing is swapped
  CHECK(old == 7);
  CHECK(counters(region.pair.a).windows + counters(region.pair.a).whole == 1);
}

TEST_CASE("verbs regions: what is outside, or not permitted, is refused and breaks the link") {
  TENSORWIRE_NEEDS_VERBS;
  std::array<std::byte, 64> mine{};
  Rights rights = kMayRead | kMayWrite;
  Kind kind = Kind::kRead;
  uint64_t offset = 0;
  SUBCASE("a read that begins before it") { offset = ~uint64_t{0}; }
  SUBCASE("a read that ends behind it") { offset = kRegion - 63; }
  SUBCASE("a write that ends behind it") {
    kind = Kind::kWrite;
    offset = kRegion - 63;
  }
  SUBCASE("a write without the right") {
    kind = Kind::kWrite;
    rights = kMayRead;
  }
  SUBCASE("a read without the right") { rights = kMayWrite; }
  SUBCASE("after it was concealed") { rights = 0; }
  for (const bool of_arena : {false, true}) {
    CAPTURE(of_arena);
    Exposed region(rights == 0 ? Rights{kMayRead} : rights, of_arena);
    if (rights == 0) region.pair.a->conceal(region.key);
    const Status status = region.run(region.operation(kind, mine.data(), mine.size(), offset));
    CHECK(status.code() == Code::kPermissionDenied);
    for (size_t i = 0; i < region.memory.size(); ++i) REQUIRE(region.memory[i] == pattern(i));
    for (const std::byte value : mine) CHECK(value == std::byte{});
    char byte;
    const iovec room = run_of(&byte, 1);
    CHECK(region.pair.b->receive({&room, 1}).status().code() == Code::kUnavailable);
  }
}

TEST_CASE("verbs regions: another peer has no use for the key") {
  TENSORWIRE_NEEDS_VERBS;
  Exposed region(kMayRead | kMayWrite, true);
  if (counters(region.pair.a).windows == 0) {
    MESSAGE("this device has no memory windows");
    return;
  }
  TransportPair stranger = Verbs::make();
  std::array<std::byte, 8> mine{};
  Operation guess = region.operation(Kind::kRead, mine.data(), mine.size(), 0);
  region.pair.b.swap(stranger.b);
  CHECK(region.run(guess).code() == Code::kPermissionDenied);
  for (const std::byte value : mine) CHECK(value == std::byte{});
}

}  // namespace
}  // namespace tw::test

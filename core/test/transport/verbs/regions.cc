// SPDX-License-Identifier: Apache-2.0
// Exposed regions: the device itself sees to bounds and rights.
#include <sys/mman.h>

#include <array>
#include <cstring>
#include <span>
#include <thread>
#include <vector>

#include "test/not_tried.h"
#include "test/transport/verbs/world.h"

namespace tw::test {
namespace {

constexpr size_t kRegion = 64 << 10;
constexpr size_t kSize = kRegion + 4096;

struct Exposed {
  // Any memory of this process can be exposed: a part of a block of the arena, or of no block.
  Exposed(Rights rights, bool of_arena, VerbsWorld& world = verbs_world())
      : Exposed(rights, of_arena, world, world) {}
  // `a` has the memory and comes from the one world, `b` from the other.
  Exposed(Rights rights, bool of_arena, VerbsWorld& world, VerbsWorld& peer)
      : pair(world.join(peer)) {
    if (of_arena) {
      auto found = world.arena->allocate(kSize);
      REQUIRE(found.ok());
      block = std::move(*found);
      memory = {block->data(), kSize};
    } else {
      own.resize(kSize);
      memory = own;
    }
    for (size_t i = 0; i < memory.size(); ++i) memory[i] = pattern(i);
    let_in(memory.data() + 64, rights);
  }
  // kRegion bytes that others have as well, as they are.
  Exposed(Rights rights, std::byte* shared, VerbsWorld& world) : pair(world.join()) {
    let_in(shared, rights);
  }

  void let_in(std::byte* data, Rights rights) {
    auto exposed = pair.a->expose(data, kRegion, rights);
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
}

TEST_CASE("verbs regions: links share the registration of what they expose, and no rights") {
  TENSORWIRE_NEEDS_VERBS;
  VerbsWorld own;  // whose registrations are those of this test
  REQUIRE(own.here());
  if (!own.context->rails().value().front().domain->device().windows)
    return not_tried("this device has no memory windows of type 2");
  std::vector<std::byte> memory(kRegion);
  for (size_t i = 0; i < kRegion; ++i) memory[i] = pattern(i);
  std::array<std::byte, 64> mine{};
  const auto reads = [&](Exposed& link) {
    mine.fill({});
    REQUIRE(link.run(link.operation(Kind::kRead, mine.data(), mine.size(), kRegion - 64)).ok());
    for (size_t i = 0; i < mine.size(); ++i) REQUIRE(mine[i] == pattern(kRegion - 64 + i));
  };
  const auto refuses = [&](Exposed& link, Kind kind) {
    CHECK(link.run(link.operation(kind, mine.data(), mine.size(), 0)).code() ==
          Code::kPermissionDenied);
    for (size_t i = 0; i < kRegion; ++i) REQUIRE(memory[i] == pattern(i));
  };
  const auto registrations = [&] { return own.context->stats().registrations; };

  Exposed first(kMayRead, memory.data(), own);
  const size_t with_one = registrations();
  Exposed second(kMayRead | kMayWrite, memory.data(), own), third(kMayRead, memory.data(), own);
  // Each end of a link has its buffers besides.
  CHECK(registrations() == with_one + 4);
  CHECK(own.context->stats().windows == 3);
  for (Exposed* const link : {&first, &second, &third}) reads(*link);

  first.pair.a->conceal(first.key);
  CHECK(own.context->stats().windows == 2);
  refuses(first, Kind::kRead);
  reads(second);
  reads(third);
  std::memcpy(mine.data(), memory.data(), mine.size());
  REQUIRE(second.run(second.operation(Kind::kWrite, mine.data(), mine.size(), 0)).ok());
  const size_t with_two = registrations();
  second.pair.a->conceal(second.key);
  CHECK(registrations() == with_two);
  reads(third);
  third.pair.a->conceal(third.key);
  CHECK(registrations() == with_two - 1);
  CHECK(own.context->stats().windows == 0);

  // What a peer may not do is not made good by what another one may; and a link that is lost takes
  // nothing from the others.
  Exposed reader(kMayRead, memory.data(), own), writer(kMayRead | kMayWrite, memory.data(), own);
  refuses(reader, Kind::kWrite);
  reads(writer);
  const size_t shared = registrations();
  reader.pair.a->revoke();
  Exposed late(kMayRead, memory.data(), own);
  CHECK(registrations() == shared + 2);
  writer.pair.a->revoke();
  reads(late);
  late.pair.a->revoke();
  // All have taken the memory back, so that something else may lie there.
  Exposed fresh(kMayRead, memory.data(), own);
  CHECK(registrations() == shared + 2 + 3);
  reads(fresh);
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

// The real library over a device that has neither windows nor atomics.
const verbs::Library& plain_library() {
  static const verbs::Library library = [] {
    verbs::Library copy = **verbs::Library::get();
    copy.query_device = [](ibv_context* context, ibv_device_attr* out) {
      const int error = (*verbs::Library::get())->query_device(context, out);
      out->device_cap_flags &=
          ~static_cast<unsigned>(IBV_DEVICE_MEM_WINDOW_TYPE_2A | IBV_DEVICE_MEM_WINDOW_TYPE_2B);
      out->atomic_cap = IBV_ATOMIC_NONE;
      return error;
    };
    return copy;
  }();
  return library;
}

TEST_CASE(
    "verbs regions: a device without windows and atomics does what it can, and says the rest") {
  TENSORWIRE_NEEDS_VERBS;
  VerbsWorld plain({}, plain_library());
  REQUIRE(plain.here());
  std::array<std::byte, 64> mine{};
  {
    Exposed region(kMayRead | kMayWrite, true, plain);
    CHECK(plain.context->stats().windows == 0);
    REQUIRE(region.run(region.operation(Kind::kRead, mine.data(), 64, 100)).ok());
    for (size_t i = 0; i < 64; ++i) REQUIRE(mine[i] == pattern(64 + 100 + i));
    REQUIRE(region.run(region.operation(Kind::kWrite, mine.data(), 64, 0)).ok());
    CHECK(std::memcmp(region.memory.data() + 64, mine.data(), 64) == 0);

    CHECK(region.pair.a->expose(region.memory.data(), 64, kMayUpdate).status().code() ==
          Code::kUnimplemented);
    CHECK(region.pair.b->start(region.operation(Kind::kFetchAdd, mine.data(), 8, 0))
              .status()
              .code() == Code::kUnimplemented);
    // Which is no end of the link.
    REQUIRE(region.run(region.operation(Kind::kRead, mine.data(), 64, 100)).ok());
    CHECK(region.run(region.operation(Kind::kRead, mine.data(), 64, kRegion)).code() ==
          Code::kPermissionDenied);
  }
  {
    Exposed region(kMayRead, false, plain);
    CHECK(region.run(region.operation(Kind::kWrite, mine.data(), 8, 0)).code() ==
          Code::kPermissionDenied);
  }
  Exposed region(kMayRead, true, plain);
  region.pair.a->conceal(region.key);
  CHECK(region.run(region.operation(Kind::kRead, mine.data(), 8, 0)).code() ==
        Code::kPermissionDenied);
}

TEST_CASE("verbs regions: memory that may only be read is refused, whatever the rights") {
  TENSORWIRE_NEEDS_VERBS;
  auto map = MemoryMap::map(-1, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS);
  REQUIRE(map.ok());
  TransportPair pair = Verbs::make();
  for (const Rights rights : {kMayRead, kMayWrite})
    CHECK(pair.a->expose(map->data(), 4096, rights).status().code() == Code::kInvalidArgument);
  CHECK(send_pattern(*pair.a, 0, 1) == 1);  // the link lives
}

TEST_CASE("verbs regions: a region that is concealed while its bind is queued ends no link") {
  TENSORWIRE_NEEDS_VERBS;
  constexpr size_t kLarge = 4 << 20;
  Exposed there(kMayWrite, false);
  auto source = verbs_world().arena->allocate(kLarge);
  auto target = verbs_world().arena->allocate(kLarge);
  REQUIRE(source.ok());
  REQUIRE(target.ok());
  // What a has to write for a while is ahead of the bind.
  auto open = there.pair.b->expose((*target)->data(), kLarge, kMayWrite);
  REQUIRE(open.ok());
  REQUIRE(send_pattern(*there.pair.b, 0, 1) == 1);
  while (receive_pattern(*there.pair.a, 0, 1) == 0)
    REQUIRE(there.pair.a->sleep(false, patience()) == Wake::kReady);
  Operation write;
  write.kind = Kind::kWrite;
  write.id = 7;
  write.local = (*source)->data();
  write.length = kLarge;
  write.remote = {open->address, open->key};
  REQUIRE(*there.pair.a->start(write));
  auto brief = there.pair.a->expose(there.memory.data(), 64, kMayRead);
  REQUIRE(brief.ok());
  there.pair.a->conceal(*brief);
  std::array<Completion, 2> out;
  size_t n;
  while ((n = there.pair.a->completed(out)) == 0)
    REQUIRE(there.pair.a->sleep(false, patience()) == Wake::kReady);
  CHECK(n == 1);
  CHECK(out[0].status.ok());
  char byte;
  const iovec room = run_of(&byte, 1);
  CHECK(there.pair.a->receive({&room, 1}).ok());
}

TEST_CASE("verbs regions: whoever was refused for want of credit hears when it comes") {
  TENSORWIRE_NEEDS_VERBS;
  VerbsWorld quiet;
  REQUIRE(quiet.here());
  Exposed region(kMayWrite, false, quiet, verbs_world());
  region.pair.a->disarm();  // from here on it is up to this end, and to nobody else, to poll
  std::array<std::byte, 8> mine{};
  size_t begun = 0, ended = 0;
  std::array<Completion, 8> out;
  const auto start = [&] {
    auto started = region.pair.b->start(region.operation(Kind::kWriteImmediate, mine.data(), 8, 0));
    REQUIRE(started.ok());
    begun += *started;
    return *started;
  };
  const auto end = [&] {
    const size_t n = region.pair.b->completed(out);
    ended += n;
    return n;
  };
  // The peer looks at nothing: all that its credit admits completes, and the next one is refused.
  while (start() || ended < begun) {
    REQUIRE(begun < 1000);
    if (end() == 0 && ended < begun)
      REQUIRE(region.pair.b->sleep(false, patience()) == Wake::kReady);
  }
  while (end() != 0) {
  }
  REQUIRE_FALSE(start());
  std::thread peer([&] {
    std::array<uint32_t, 64> values{};
    size_t taken = 0;
    const Nanos deadline = patience();
    while (taken < begun && now() < deadline) {
      char byte;
      const iovec room = run_of(&byte, 1);
      (void)region.pair.a->receive({&room, 1});
      taken += region.pair.a->immediates(values);
    }
  });
  CHECK(region.pair.b->sleep(false, patience()) == Wake::kReady);
  peer.join();
  (void)end();
  CHECK(start());
}

TEST_CASE("verbs regions: another peer has no use for the key") {
  TENSORWIRE_NEEDS_VERBS;
  Exposed region(kMayRead | kMayWrite, true);
  if (!verbs_world().context->rails().value().front().domain->device().windows)
    return not_tried("this device has no memory windows of type 2");
  TransportPair stranger = Verbs::make();
  std::array<std::byte, 8> mine{};
  Operation guess = region.operation(Kind::kRead, mine.data(), mine.size(), 0);
  region.pair.b.swap(stranger.b);
  CHECK(region.run(guess).code() == Code::kPermissionDenied);
  for (const std::byte value : mine) CHECK(value == std::byte{});
}

}  // namespace
}  // namespace tw::test

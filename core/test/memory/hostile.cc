// SPDX-License-Identifier: Apache-2.0
// Peers that lie about the memory they share.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <filesystem>
#include <string>

#include "memory/arena.h"
#include "memory/mapping.h"
#include "test/shortage.h"
#include "test/units.h"

namespace tw {
namespace {

using test::kMiB;

std::string refusal(Fd fd, uint64_t size = kMiB) {
  const auto mapping = SlabMapping::map(std::move(fd), {3, 5, size});
  REQUIRE_FALSE(mapping.ok());
  CHECK(mapping.status().code() == Code::kInvalidArgument);
  return mapping.status().details();
}

bool says(const std::string& text, const char* part) {
  CAPTURE(text);
  return text.find(part) != std::string::npos;
}

Fd sealed(int seals, size_t size = kMiB) {
  auto fd = make_memfd("test", size);
  REQUIRE(fd.ok());
  REQUIRE(seal_memfd(fd->get(), seals).ok());
  auto readable = reopen_read_only(fd->get());
  REQUIRE(readable.ok());
  return std::move(*readable);
}

TEST_CASE("hostile: descriptors that are no slab are not mapped") {
  CHECK(SlabMapping::map(sealed(kOwnedSeals), {0, 1, kMiB}).ok());

  SUBCASE(
      "seals missing: it could shrink under a read, grow at our cost, or be written by others") {
    for (const int missing :
         {F_SEAL_SHRINK, F_SEAL_GROW, kOwnedSeals & ~kSharedSeals, F_SEAL_SEAL, kOwnedSeals}) {
      CAPTURE(missing);
      CHECK(says(refusal(sealed(kOwnedSeals & ~missing)), "lacks seals"));
    }
  }
  SUBCASE("another size than announced") {
    CHECK(says(refusal(sealed(kOwnedSeals), 2 * kMiB), "1048576 bytes, 2097152 were announced"));
    CHECK(says(refusal(sealed(kOwnedSeals, 2 * kMiB)), "2097152 bytes"));
    CHECK(says(refusal(sealed(kOwnedSeals, 0), 0), "no whole number of pages"));
    CHECK(says(refusal(sealed(kOwnedSeals, 100), 100), "no whole number of pages"));
    CHECK(says(refusal(sealed(kOwnedSeals), ~uint64_t{0}), "no whole number of pages"));
  }
  SUBCASE("writable") {
    auto fd = make_memfd("test", kMiB);
    REQUIRE(fd.ok());
    REQUIRE(seal_memfd(fd->get(), kOwnedSeals).ok());
    CHECK(says(refusal(std::move(*fd)), "is not read-only"));
  }
  SUBCASE("a path only") {
    const Fd fd = sealed(kOwnedSeals);
    const std::string path = "/proc/self/fd/" + std::to_string(fd.get());
    CHECK(says(refusal(Fd(open(path.c_str(), O_PATH | O_CLOEXEC))), "is not read-only"));
  }
  SUBCASE("no memory file") {
    char path[] = "/tmp/tensorwire-test-XXXXXX";
    const Fd writable(mkstemp(path));
    Fd file(open(path, O_RDONLY | O_CLOEXEC));
    unlink(path);
    REQUIRE(ftruncate(writable.get(), kMiB) == 0);
    CHECK(says(refusal(std::move(file)), ""));
    CHECK(says(refusal(Fd(open("/dev/zero", O_RDONLY | O_CLOEXEC))), "is not a memory file"));
    int ends[2];
    REQUIRE(pipe(ends) == 0);
    const Fd other(ends[1]);
    CHECK(says(refusal(Fd(ends[0])), "is not a memory file"));
  }
  SUBCASE("no descriptor") { refusal(Fd(-1)); }
}

TEST_CASE("hostile: a slab cannot be written, grown or cut by whoever has its descriptor") {
  auto arena = make_ref<Arena>(kMiB, kMiB);
  auto block = arena->allocate(4096);
  REQUIRE(block.ok());
  const int fd = (*block)->slab().fd();
  CHECK(check_memfd(fd, kMiB, kOwnedSeals, O_RDONLY).ok());
  CHECK(mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) == MAP_FAILED);
  CHECK(ftruncate(fd, 0) != 0);
  // Reopening for writing gets round the mode of the descriptor, not round the seals.
  const std::string path = "/proc/self/fd/" + std::to_string(fd);
  const Fd again(open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (again) {
    CHECK(mmap(nullptr, 4096, PROT_WRITE, MAP_SHARED, again.get(), 0) == MAP_FAILED);
    CHECK(pwrite(again.get(), "x", 1, 0) < 0);
    CHECK(ftruncate(again.get(), 2 * kMiB) != 0);
    CHECK(fallocate(again.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096) != 0);
  }
}

TEST_CASE("hostile: announcements") {
  auto peer = make_ref<PeerArena>(4 * kMiB);
  const auto add = [&](uint32_t index, uint32_t generation, size_t size = kMiB) {
    return peer->add(sealed(kOwnedSeals, size), {index, generation, size});
  };
  REQUIRE(add(0, 5).ok());
  CHECK(add(0, 5).code() == Code::kInvalidArgument);
  CHECK(add(0, 4).code() == Code::kInvalidArgument);
  CHECK(add(4096, 6).code() == Code::kInvalidArgument);
  CHECK(add(0, 6).ok());  // replaces the dead one, whose space does not count
  CHECK(add(1, 7, 3 * kMiB).ok());
  CHECK(add(2, 8).code() == Code::kResourceExhausted);
  CHECK(peer->locate({2, 8, 0, 1}).status().code() == Code::kResourceExhausted);
  CHECK(peer->add(Fd(), {3, 9, ~uint64_t{0} - 4095}).code() == Code::kResourceExhausted);
  CHECK(peer->drop(1, 6).code() == Code::kInternal);
  CHECK(peer->drop(9, 1).code() == Code::kInternal);
  CHECK(peer->drop(1, 7).ok());
  CHECK(peer->drop(1, 7).code() == Code::kInternal);
  CHECK(peer->locate({2, 8, 0, 1}).status().code() == Code::kResourceExhausted);
  CHECK(peer->drop(2, 8).ok());
  CHECK(peer->drop(2, 8).code() == Code::kInternal);
  CHECK(add(2, 9).ok());
  CHECK(add(1, 7).code() == Code::kInvalidArgument);  // a dead generation does not come back
  const Status status = peer->add(Fd(open("/dev/zero", O_RDONLY)), {3, 10, kMiB});
  CHECK(status.code() == Code::kInvalidArgument);
  CHECK(says(status.details(), "slab 3, generation 10"));
}

// Of memory that sealed() has made: what another case has left may be closed meanwhile.
size_t open_descriptors() {
  size_t count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code closed;
    count += std::filesystem::read_symlink(entry, closed).string().find("memfd:test") !=
             std::string::npos;
  }
  return count;
}

TEST_CASE("hostile: a peer makes this process keep a few descriptors, never all it may open") {
  const size_t before = open_descriptors();
  auto peer = make_ref<PeerArena>(size_t{1} << 40, 3);
  const auto add = [&](uint32_t index, uint32_t generation) {
    return peer->add(sealed(kOwnedSeals), {index, generation, kMiB});
  };
  class Nobody final : public LeaseReturn {
    void lease_done(uint64_t) noexcept override {}
  };
  // Replaced and dropped ones count as long as a view keeps them.
  REQUIRE(add(0, 1).ok());
  auto view = LeasedView::make(*peer->locate({0, 1, 0, 1}), make_ref<Nobody>(), 1);
  REQUIRE(view.ok());
  for (uint32_t generation = 2; generation < 50; ++generation) REQUIRE(add(0, generation).ok());
  REQUIRE(add(1, 1).ok());
  for (uint32_t index = 2; index < 200; ++index)
    CHECK(says(add(index, 1).details(), "more than the 3 slabs"));
  CHECK(open_descriptors() == before + 3);
  CHECK(peer->refuse({300, 1, kMiB}).code() == Code::kResourceExhausted);
  CHECK(peer->refuse({4096, 1, kMiB}).code() == Code::kInvalidArgument);
  CHECK(says(peer->locate({300, 1, 0, 1}).status().details(), "ulimit -n"));
  *view = nullptr;
  CHECK(add(2, 2).ok());
  peer = nullptr;
  CHECK(open_descriptors() == before);
  CHECK(PeerArena::fair_descriptors() >= 8);
}

TEST_CASE("hostile: what is remembered of slabs that are not kept is little") {
  constexpr size_t kSlabs = 4096, kOnTheWire = 32;
  const size_t before = test::live_bytes();
  auto peer = make_ref<PeerArena>(kMiB);
  for (uint32_t round = 1; round <= 3; ++round) {
    for (uint32_t index = 0; index < kSlabs; ++index)
      CHECK(peer->add(Fd(), {index, round, 2 * kMiB}).code() == Code::kResourceExhausted);
    const size_t held = test::live_bytes() - before;
    CAPTURE(held);
    CHECK(held <= 2 * round * kSlabs * kOnTheWire + kMiB);
  }
  CHECK(peer->add(Fd(), {kSlabs, 1, kMiB}).code() == Code::kInvalidArgument);
  CHECK(says(peer->locate({5, 3, 0, 1}).status().details(), "slab 5"));
}

TEST_CASE("hostile: regions") {
  auto peer = make_ref<PeerArena>();
  REQUIRE(peer->add(sealed(kOwnedSeals), {2, 7, kMiB}).ok());
  const auto refused = [&](const RegionRef& region, const char* why) {
    const auto located = peer->locate(region);
    REQUIRE_FALSE(located.ok());
    CHECK(located.status().code() == Code::kInternal);
    return says(located.status().details(), why);
  };
  CHECK(peer->locate({2, 7, 0, kMiB}).ok());
  CHECK(peer->locate({2, 7, kMiB, 0}).ok());
  CHECK(peer->locate({2, 7, kMiB - 1, 1})->bytes.size() == 1);
  CHECK(refused({2, 7, kMiB, 1}, "the slab has 1048576 bytes"));
  CHECK(refused({2, 7, 0, kMiB + 1}, "slab 2, generation 7, offset 0, length 1048577"));
  CHECK(refused({2, 7, 1, ~uint64_t{0}}, "the slab has"));
  CHECK(refused({2, 7, ~uint64_t{0}, 2}, "the slab has"));
  CHECK(refused({3, 7, 0, 1}, "has not shared"));
  CHECK(refused({2, 8, 0, 1}, "has not shared"));
  CHECK(refused({2, 6, 0, 1}, "is dead"));
  REQUIRE(peer->drop(2, 7).ok());
  CHECK(refused({2, 7, 0, 1}, "is dead"));
}

}  // namespace
}  // namespace tw

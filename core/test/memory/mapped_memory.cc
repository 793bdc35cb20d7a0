// SPDX-License-Identifier: Apache-2.0
// Shared memory, as a peer has it mapped, and the door by which that ends.
#include "memory/mapped_memory.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

namespace tw {
namespace {

struct Both {
  explicit Both(size_t size = 10'000, bool writable = true)
      : owner(memories.make(size).value()), door(make_ref<Door>()) {
    Fd file = writable ? Fd(dup(owner->file())) : reopen_read_only(owner->file()).value();
    peer = MappedMemory::map(std::move(file), door->build().value(), owner->file_size(), tally)
               .value();
  }

  SharedMemories memories{1 << 20};
  Ref<MappingTally> tally = make_ref<MappingTally>();
  Ref<SharedMemory> owner;
  Ref<Door> door;
  Ref<MappedMemory> peer;
};

TEST_CASE("shared memory: both ends see what either stores") {
  Both both;
  both.owner->data()[9'999] = std::byte{3};
  CHECK(both.peer->data()[9'999] == std::byte{3});
  both.peer->data()[0] = std::byte{4};
  CHECK(both.owner->data()[0] == std::byte{4});
  both.peer->words().changes = 5;
  CHECK(both.owner->words().changes == 5);
  CHECK(both.tally->mappings == 1);
  both.peer = nullptr;
  CHECK(both.tally->mappings == 0);
  CHECK(both.tally->bytes == 0);
}

TEST_CASE("shared memory: is counted against its limit, and found by its bytes") {
  SharedMemories memories(100'000);
  CHECK(memories.make(0).status().code() == Code::kInvalidArgument);
  CHECK(memories.make(100'001).status().code() == Code::kResourceExhausted);
  CHECK(memories.make(SIZE_MAX).status().code() == Code::kResourceExhausted);
  auto first = memories.make(60'000).value();
  const auto second = memories.make(60'000);
  CHECK(second.status().code() == Code::kResourceExhausted);
  CHECK(second.status().details().find("TENSORWIRE_SHARED_MEMORY_BYTES") != std::string::npos);
  CHECK(memories.find(first->data() + 100, 59'900).get() == first.get());
  CHECK_FALSE(memories.find(first->data() + 100, 59'901));
  CHECK_FALSE(memories.find(first->data() - 1, 1));
  CHECK(memories.stats().capacity == 100'000);
  CHECK(memories.stats().used == 60'000);
  CHECK(memories.stats().memories == 1);
  const std::byte* const was = first->data();
  first = nullptr;
  CHECK_FALSE(memories.find(was, 1));
  CHECK(memories.stats().used == 0);
  CHECK(memories.stats().memories == 0);
  CHECK(memories.make(100'000).ok());
}

TEST_CASE("shared memory: whoever may only read cannot write") {
  Both both(100, false);
  CHECK_FALSE(both.peer->writable());
  const pid_t child = fork();
  if (child == 0) _exit(0);  // the mapping is not inherited: see below
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  both.owner->data()[1] = std::byte{8};
  CHECK(both.peer->data()[1] == std::byte{8});
  // The page is there, and is not writable.
  int ends[2];
  REQUIRE(pipe(ends) == 0);
  const char byte = 1;
  REQUIRE(write(ends[1], &byte, 1) == 1);
  CHECK(read(ends[0], both.peer->data(), 1) == -1);
  CHECK(errno == EFAULT);
  close(ends[0]);
  close(ends[1]);
}

TEST_CASE("shared memory: a forked child has no mapping of a peer's") {
  Both both;
  const pid_t child = fork();
  if (child == 0) {
    // A system call tells without a signal whether the page is there.
    int ends[2];
    if (pipe(ends) != 0) _exit(2);
    _exit(write(ends[1], both.peer->data(), 1) == -1 && errno == EFAULT ? 0 : 1);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
}

TEST_CASE("shared memory: a shut door lets nobody in, and tells who is inside") {
  Both both;
  {
    const MappedMemory::Visit visit(both.peer);
    CHECK(visit.state() == Door::kOpen);
    CHECK_FALSE(both.door->empty());
    both.door->shut(Door::kConcealed);
    const MappedMemory::Visit late(both.peer);
    CHECK(late.state() == Door::kConcealed);
    both.door->shut(Door::kLinkOver);  // nobody waits for who is inside any more
    both.door->shut(Door::kConcealed);
    CHECK(visit.state_since() == Door::kLinkOver);
    CHECK_FALSE(both.door->empty());
  }
  CHECK(both.door->empty());
}

}  // namespace
}  // namespace tw

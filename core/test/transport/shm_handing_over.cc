// SPDX-License-Identifier: Apache-2.0
// Memory that a shared-memory end hands over to its peer, and takes over from it.
#include <sys/syscall.h>

#include <cerrno>
#include <cstring>
#include <thread>

#include "test/base/descriptors.h"
#include "test/base/forbidden.h"
#include "test/transport/shm_client.h"

namespace tw::test {
namespace {

wire::ShmFrame region_frame(uint64_t size, uint32_t region = 1) {
  wire::ShmFrame frame;
  frame.type = wire::ShmFrameType::kRegion;
  frame.slab = region;
  frame.size = size;
  return frame;
}

TEST_CASE("shm: memory that is handed over is taken over once") {
  const size_t size = 3 * page_size();
  ShmClient client;
  const Fd file = ring_memory(size), door = ring_memory(page_size());
  const int fds[] = {file.get(), door.get()};
  REQUIRE(send_shm_frame(client.socket.get(), region_frame(size, 7), fds).ok());
  const auto handed = client.server->take_over(7);
  REQUIRE(handed.ok());
  REQUIRE(handed->memory);
  CHECK(handed->memory->size() == size - page_size());
  CHECK(handed->memory->writable());
  handed->memory->data()[5] = std::byte{9};
  std::byte seen{};
  REQUIRE(pread(file.get(), &seen, 1, 5) == 1);
  CHECK(seen == std::byte{9});
  for (const uint64_t region : {7, 8}) {
    const auto none = client.server->take_over(region);
    REQUIRE(none.ok());
    CHECK_FALSE(none->memory);
    CHECK(none->why_not.code() == Code::kNotFound);
  }
}

TEST_CASE("hostile: memory that is handed over and is not what it must be ends the link") {
  const size_t size = 3 * page_size();
  ShmClient client;
  const auto say = [&](Fd file, Fd door, uint64_t said) {
    const int fds[] = {file.get(), door.get()};
    REQUIRE(send_shm_frame(client.socket.get(), region_frame(said), fds).ok());
  };
  std::string why;
  SUBCASE("it can be cut") {
    say(ring_memory(size, F_SEAL_GROW), ring_memory(page_size()), size);
    why = "lacks seals";
  }
  SUBCASE("its seals can be undone by more seals") {
    say(ring_memory(size, F_SEAL_GROW | F_SEAL_SHRINK), ring_memory(page_size()), size);
    why = "lacks seals";
  }
  SUBCASE("it is smaller than it is said to be") {
    say(ring_memory(size), ring_memory(page_size()), size + page_size());
    why = "were announced";
  }
  SUBCASE("it has no room for its words") {
    say(ring_memory(page_size()), ring_memory(page_size()), page_size());
    why = "too few";
  }
  SUBCASE("it is no whole number of pages") {
    say(ring_memory(size + 1), ring_memory(page_size()), size + 1);
    why = "whole number";
  }
  SUBCASE("its door is larger than a door") {
    say(ring_memory(size), ring_memory(2 * page_size()), size);
    why = "were announced";
  }
  SUBCASE("its door cannot be written") {
    say(ring_memory(size), reopen_read_only(ring_memory(page_size()).get()).value(), size);
    why = "is not readable and writable";
  }
  SUBCASE("it comes twice under one number") {
    say(ring_memory(size), ring_memory(page_size()), size);
    say(ring_memory(size), ring_memory(page_size()), size);
    why = "twice";
  }
  SUBCASE("a slab comes with two descriptors") {
    const Fd file = ring_memory(size);
    wire::ShmFrame slab = region_frame(size);
    slab.type = wire::ShmFrameType::kSlab;
    const int fds[] = {file.get(), file.get()};
    REQUIRE(send_shm_frame(client.socket.get(), slab, fds).ok());
    why = "2 descriptors";
  }
  SUBCASE("it comes without its door") {
    const Fd file = ring_memory(size);
    const int fds[] = {file.get()};
    REQUIRE(send_shm_frame(client.socket.get(), region_frame(size), fds).ok());
    why = "1 descriptors";
  }
  CHECK(client.end().find(why) != std::string::npos);
}

// A client that has an arena, by hand: one block in it, whose slab is announced as 3, generation 4.
struct Lender : ShmClient {
  Lender() {
    std::memset(block->data(), 7, block->size());
    announce(wire::ShmFrameType::kSlab, 4);
  }
  void announce(wire::ShmFrameType type, uint32_t generation) {
    wire::ShmFrame frame;
    frame.type = type;
    frame.slab = 3;
    frame.generation = generation;
    const bool slab = type == wire::ShmFrameType::kSlab;
    if (slab) frame.size = block->slab().size();
    const int fds[] = {block->slab().fd()};
    REQUIRE(send_shm_frame(socket.get(), frame, std::span(fds).first(slab ? 1 : 0)).ok());
  }
  void lend(uint64_t region, uint32_t generation = 4, Fd door = ring_memory(page_size())) {
    wire::ShmFrame frame;
    frame.type = wire::ShmFrameType::kBlock;
    frame.slab = 3;
    frame.generation = generation;
    frame.size = region;
    const int fds[] = {door.get()};
    REQUIRE(send_shm_frame(socket.get(), frame, fds).ok());
  }

  Ref<Arena> arena = make_ref<Arena>(size_t{1} << 20, size_t{1} << 20);
  Ref<Block> block = arena->allocate(10'000).value();
  uint64_t offset = block->region().offset;
};

TEST_CASE(
    "shm: memory of a slab is taken over once, for reading, and shows what its owner stores") {
  Lender client;
  client.lend(uint64_t{9} << 32);
  // Its owner may give the slab up before the region's frame is read.
  client.announce(wire::ShmFrameType::kSlabGone, 4);
  const auto handed = client.server->take_over(uint64_t{9} << 32, client.offset + 5, 5000);
  REQUIRE(handed.ok());
  REQUIRE(handed->memory);
  CHECK(handed->memory->size() == 5000);
  CHECK_FALSE(handed->memory->writable());
  CHECK(handed->memory->data()[4999] == std::byte{7});
  client.block->data()[5 + 4999] = std::byte{8};
  CHECK(handed->memory->data()[4999] == std::byte{8});
  for (const uint64_t region : {uint64_t{9} << 32, uint64_t{8}}) {
    const auto none = client.server->take_over(region, client.offset, 1);
    REQUIRE(none.ok());
    CHECK_FALSE(none->memory);
    CHECK(none->why_not.code() == Code::kNotFound);
  }
}

TEST_CASE("shm: memory of a slab for whose door there is no descriptor left is not taken over") {
  Lender client;
  CHECK(client.server->locate({3, 4, 0, 1}).ok());
  client.lend(1);
  {
    const NoMoreDescriptors limit;
    const auto none = client.server->take_over(1, client.offset, 1);
    REQUIRE(none.ok());
    CHECK_FALSE(none->memory);
    CHECK(none->why_not.code() == Code::kResourceExhausted);
    CHECK(none->why_not.details().find("ulimit -n") != std::string::npos);
  }
  client.lend(2);
  CHECK(client.server->take_over(2, client.offset, 1).value().memory);
}

TEST_CASE("hostile: a region that does not lie in its slab ends the link") {
  Lender client;
  const uint64_t size = client.block->slab().size();
  uint64_t region = 0;
  for (const auto& [offset, length] :
       {std::pair{size, uint64_t{1}}, std::pair{size - 1, uint64_t{2}},
        std::pair{uint64_t{1}, size}, std::pair{UINT64_MAX - 1, uint64_t{1}},
        std::pair{uint64_t{1}, UINT64_MAX}}) {
    client.lend(++region);
    const auto memory = client.server->take_over(region, offset, length);
    REQUIRE_FALSE(memory.ok());
    CHECK(memory.status().code() == Code::kInternal);
    CHECK(memory.status().details().find("protocol error") != std::string::npos);
  }
  client.lend(++region);
  CHECK(client.server->take_over(region, size - 1, 1).value().memory);
}

TEST_CASE("shm: memory for which there is no descriptor left is refused once, with a reason") {
  const size_t size = 3 * page_size();
  ShmClient client;
  const Fd file = ring_memory(size), door = ring_memory(page_size());
  const int fds[] = {file.get(), door.get()};
  REQUIRE(send_shm_frame(client.socket.get(), region_frame(size, 7), fds).ok());
  {
    const NoMoreDescriptors limit;
    const auto refused = client.server->take_over(7);
    REQUIRE(refused.ok());
    CHECK_FALSE(refused->memory);
    CHECK(refused->why_not.code() == Code::kResourceExhausted);
    CHECK(refused->why_not.details().find("ulimit -n") != std::string::npos);
  }
  CHECK(client.server->take_over(7).value().why_not.code() == Code::kNotFound);
  REQUIRE(send_shm_frame(client.socket.get(), region_frame(size, 8), fds).ok());
  CHECK(client.server->take_over(8).value().memory);
}

TEST_CASE("shm: memory that cannot be handed over once the peer has room costs nothing else") {
  SharedMemories home{1 << 20};
  const auto memory = home.make(64).value();
  ShmClient client;
  uint64_t region = 0;
  while (++region <= 1000)  // more than the kernel takes for a peer that reads nothing
    REQUIRE(client.server->hand_over(region, memory, true, make_ref<Door>()).ok());
  REQUIRE(client.server->not_handed().count == 0);
  ShmFrameReader reader;
  ShmMessage message;
  while (reader.read(client.socket.get(), message).value() == ShmFrameReader::Got::kFrame) continue;
  std::thread sender([&] {
    forbid(SYS_memfd_create, EPERM);
    CHECK(eventually([&] {
      client.watched->poller->poll(now() + kMillisecond);  // which tells of the room
      const iovec byte = run_of("", 1);
      const auto sent = client.server->send({&byte, 1});
      if (!sent) FAIL_CHECK(sent.status().details());
      return !sent || client.server->not_handed().count != 0;
    }));
  });
  sender.join();
  CHECK(client.server->not_handed().why.details().find("memfd_create") != std::string::npos);
}

TEST_CASE("shm: memory waits a moment for descriptors that others have on their way") {
  SharedMemories home{1 << 20};
  const auto memory = home.make(64).value();
  ShmClient client;
  const auto hand = [&](uint64_t region) {
    return client.server->hand_over(region, memory, true, make_ref<Door>());
  };
  const auto sends_when = [&](const auto& holds) {
    return eventually([&] {
      client.watched->poller->poll(now() + kMillisecond);  // which tells when to look again
      const iovec byte = run_of("", 1);
      return !client.server->send({&byte, 1}) || holds();
    });
  };
  const auto crowded = [](const auto& then) {
    std::thread([&] {
      forbid(SYS_sendmsg, ETOOMANYREFS);
      then();
    }).join();
  };
  ShmFrameReader reader;
  ShmMessage message;
  const auto comes = [&](uint64_t region) {
    return reader.read(client.socket.get(), message).value() == ShmFrameReader::Got::kFrame &&
           message.frame.type == wire::ShmFrameType::kRegion && message.frame.slab == region;
  };
  const auto not_handed = [&] { return client.server->not_handed(); };

  crowded([&] {
    const Nanos begun = now();
    for (uint64_t region = 1; region <= 3; ++region) CHECK(hand(region).ok());
    CHECK(sends_when([&] { return not_handed().count != 0; }));
    CHECK(now() - begun >= ShmTransport::kCrowdedPatience);
    CHECK(not_handed().count == 3);
    CHECK(not_handed().why.details().find("ulimit -n") != std::string::npos);
    CHECK(hand(4).code() == Code::kResourceExhausted);  // it has been crowded for too long
  });
  CHECK(hand(5).ok());
  CHECK(comes(5));
  crowded([&] { CHECK(hand(6).ok()); });
  CHECK(sends_when([&] { return comes(6); }));
  CHECK(not_handed().count == 3);
}

TEST_CASE("shm: a slab of an index that no peer takes in is not shared, and the link goes on") {
  TransportPair pair = Shm::make();
  const auto last = Slab::make(PeerArena::kMaxSlabs - 1, 1, page_size()).value();
  const auto more = Slab::make(PeerArena::kMaxSlabs, 2, page_size()).value();
  CHECK(pair.a->share(*more).code() == Code::kResourceExhausted);
  CHECK(pair.a->hand_over(1, more, make_ref<Door>()).code() == Code::kResourceExhausted);
  CHECK(pair.a->share(*last).ok());
  CHECK(pair.b->locate({last->index(), 1, 0, 8}).ok());
}

TEST_CASE("hostile: memory of a slab that is not what it must be ends the link") {
  Lender client;
  std::string why;
  SUBCASE("of an older generation") {
    client.lend(1, 3);
    why = "that generation of the slab is dead";
  }
  SUBCASE("of a generation that is not there yet") {
    client.lend(1, 5);
    why = "it has not shared that slab";
  }
  SUBCASE("of a slab that was dropped") {
    client.announce(wire::ShmFrameType::kSlabGone, 4);
    client.lend(1);
    why = "that generation of the slab is dead";
  }
  SUBCASE("of a slab that was dropped and made anew") {
    client.announce(wire::ShmFrameType::kSlabGone, 4);
    client.announce(wire::ShmFrameType::kSlab, 5);
    client.lend(1);
    why = "that generation of the slab is dead";
  }
  SUBCASE("its door can be cut") {
    client.lend(1, 4, ring_memory(page_size(), F_SEAL_GROW));
    why = "lacks seals";
  }
  SUBCASE("its door cannot be written") {
    client.lend(1, 4, reopen_read_only(ring_memory(page_size()).get()).value());
    why = "is not readable and writable";
  }
  SUBCASE("it comes twice under one number") {
    client.lend(1);
    client.lend(1);
    why = "twice";
  }
  SUBCASE("it comes as memory of its own, too") {
    client.lend(1);
    const Fd file = ring_memory(3 * page_size()), door = ring_memory(page_size());
    const int fds[] = {file.get(), door.get()};
    REQUIRE(send_shm_frame(client.socket.get(), region_frame(3 * page_size()), fds).ok());
    why = "twice";
  }
  CHECK(client.end().find(why) != std::string::npos);
}

}  // namespace
}  // namespace tw::test

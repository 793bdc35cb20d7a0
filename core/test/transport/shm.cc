// SPDX-License-Identifier: Apache-2.0
// What a shared-memory end refuses from the process at the other end of its socket.
#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "memory/memfd.h"
#include "test/base/descriptors.h"
#include "test/base/forbidden.h"
#include "test/transport/pair.h"

namespace tw::test {
namespace {

constexpr size_t kCapacity = 4096;

// A server's end of the socket, and what a client may say on the other one.
struct Door {
  Door() {
    int ends[2];
    REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) == 0);
    mine.reset(ends[0]);
    theirs.reset(ends[1]);
  }

  Result<std::unique_ptr<Transport>> accept(wire::ShmFrame frame, std::vector<Fd> descriptors) {
    return ShmTransport::accept(std::move(mine), {frame, std::move(descriptors)}, {});
  }

  Fd mine, theirs;
};

wire::ShmFrame rings_frame(uint64_t size = kCapacity) {
  wire::ShmFrame frame;
  frame.type = wire::ShmFrameType::kRings;
  frame.size = size;
  return frame;
}

std::vector<Fd> alone(Fd memory) {
  std::vector<Fd> list;
  list.push_back(std::move(memory));
  return list;
}

Fd ring_memory(size_t size = ring_memory_size(kCapacity), int seals = kSharedSeals) {
  auto file = make_memfd("rings", size);
  REQUIRE(file.ok());
  REQUIRE(seal_memfd(file->get(), seals).ok());
  return std::move(*file);
}

TEST_CASE("shm: rings are taken as the protocol has them") {
  Door door;
  CHECK(door.accept(rings_frame(), alone(ring_memory())).ok());
}

TEST_CASE("shm: rings that are not what they must be are refused") {
  const auto refused = [](wire::ShmFrame frame, Fd memory, Code code) {
    Door door;
    const auto accepted = door.accept(frame, alone(std::move(memory)));
    REQUIRE_FALSE(accepted.ok());
    CHECK(accepted.status().code() == code);
    CHECK_FALSE(accepted.status().details().empty());
  };
  wire::ShmFrame other = rings_frame();
  other.type = wire::ShmFrameType::kSlab;
  refused(other, ring_memory(), Code::kInternal);
  refused(rings_frame(kCapacity - 1), ring_memory(), Code::kInternal);
  refused(rings_frame(0), ring_memory(), Code::kInternal);
  refused(rings_frame(~uint64_t{0}), ring_memory(), Code::kInternal);
  refused(rings_frame(kCapacity * 2), ring_memory(), Code::kInvalidArgument);
  refused(rings_frame(), ring_memory(4096), Code::kInvalidArgument);
  refused(rings_frame(), ring_memory(ring_memory_size(kCapacity), F_SEAL_SHRINK),
          Code::kInvalidArgument);
  refused(rings_frame(), reopen_read_only(ring_memory().get()).value(), Code::kInvalidArgument);
  refused(rings_frame(), Fd(open("/dev/zero", O_RDWR | O_CLOEXEC)), Code::kInvalidArgument);
}

// An accepted end whose client is this test, by hand.
struct Client {
  Client() {
    Door door;
    socket = std::move(door.theirs);
    memory = ring_memory();
    auto accepted = door.accept(rings_frame(), alone(Fd(dup(memory.get()))));
    REQUIRE(accepted.ok());
    server = std::move(*accepted);
    watched = std::make_unique<Watched>(*server);
    server->arm(false);
  }

  void says(const void* bytes, size_t size) {
    REQUIRE(::send(socket.get(), bytes, size, MSG_NOSIGNAL) == static_cast<ssize_t>(size));
  }

  // Why the server's end has ended.
  std::string end(Code code = Code::kInternal) {
    REQUIRE(watched->wait());
    char byte;
    const iovec room = run_of(&byte, 1);
    const auto got = server->receive({&room, 1});
    REQUIRE_FALSE(got.ok());
    CHECK(got.status().code() == code);
    return got.status().details();
  }

  Fd socket, memory;
  std::unique_ptr<Transport> server;
  std::unique_ptr<Watched> watched;
};

TEST_CASE("shm: who talks nonsense beside the rings is dropped, with the reason") {
  Client client;
  SUBCASE("no frame at all") {
    const char text[wire::kShmFrameSize + 1] = "GET / HTTP/1.1 Host: localhost  ";
    client.says(text, wire::kShmFrameSize);
    CHECK(client.end().find("magic") != std::string::npos);
  }
  SUBCASE("rings again") {
    const Fd memory = ring_memory();
    const int fds[] = {memory.get()};
    REQUIRE(send_shm_frame(client.socket.get(), rings_frame(), fds).ok());
    CHECK(client.end().find("out of place") != std::string::npos);
  }
  SUBCASE("a process after the rings") {
    wire::ShmFrame process;
    process.type = wire::ShmFrameType::kProcess;
    REQUIRE(send_shm_frame(client.socket.get(), process, {}).ok());
    CHECK(client.end().find("out of place") != std::string::npos);
  }
  SUBCASE("a process for a slab") {
    wire::ShmFrame slab;
    slab.type = wire::ShmFrameType::kSlab;
    slab.size = 4096;
    const Fd self(static_cast<int>(syscall(SYS_pidfd_open, getpid(), 0)));
    REQUIRE(self);
    const int fds[] = {self.get()};
    REQUIRE(send_shm_frame(client.socket.get(), slab, fds).ok());
    CHECK(client.end().find("slab 0, generation 0") != std::string::npos);
  }
  SUBCASE("a slab that is none") {
    wire::ShmFrame slab;
    slab.type = wire::ShmFrameType::kSlab;
    slab.size = 4096;
    const Fd memory = ring_memory(4096);
    const int fds[] = {memory.get()};
    REQUIRE(send_shm_frame(client.socket.get(), slab, fds).ok());
    CHECK(client.end().find("slab 0, generation 0") != std::string::npos);
  }
  SUBCASE("a frame without its descriptor") {
    wire::ShmFrame slab;
    slab.type = wire::ShmFrameType::kSlab;
    slab.size = 4096;
    REQUIRE(send_shm_frame(client.socket.get(), slab, {}).ok());
    CHECK(client.end().find("0 descriptors") != std::string::npos);
  }
  SUBCASE("half a frame, and then nothing more") {
    client.says("TWSHM001", 8);
    CHECK_FALSE(client.watched->reports_now());
    client.socket.reset();
    CHECK(client.end(Code::kUnavailable) == "the peer hung up");
  }
}

// A slab frame with a descriptor that is no memory file.
void hand_over(const Client& client, const Fd& fd) {
  wire::ShmFrame slab;
  slab.type = wire::ShmFrameType::kSlab;
  slab.size = 4096;
  const int fds[] = {fd.get()};
  REQUIRE(send_shm_frame(client.socket.get(), slab, fds).ok());
}

TEST_CASE("shm: no descriptor of a peer's holds this end up") {
  Client client;
  Fd keep;
  SUBCASE("a socket that lingers for an hour over what its peer does not read") {
    auto [sender, receiver] = tcp_sockets();
    const std::vector<char> bytes(1 << 16);
    while (::send(sender.get(), bytes.data(), bytes.size(), MSG_DONTWAIT) > 0) {
    }
    const linger hour{1, 3600};
    REQUIRE(setsockopt(sender.get(), SOL_SOCKET, SO_LINGER, &hour, sizeof hour) == 0);
    hand_over(client, sender);
    sender.reset();  // the last descriptor of it is now the server's
    keep = std::move(receiver);
  }
  SUBCASE("what was a doorbell once") { hand_over(client, Fd(eventfd(0, EFD_CLOEXEC))); }
  SUBCASE("three of them") {
    wire::ShmFrame slab;
    slab.type = wire::ShmFrameType::kSlab;
    slab.size = 4096;
    std::array<std::byte, wire::kShmFrameSize> bytes;
    wire::encode(bytes, slab);
    // With the first bytes, and again with the others.
    for (const size_t part : {size_t{0}, size_t{8}, size_t{16}}) {
      iovec run{bytes.data() + part, part == 16 ? size_t{16} : size_t{8}};
      alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
      msghdr message{};
      message.msg_iov = &run;
      message.msg_iovlen = 1;
      message.msg_control = control;
      message.msg_controllen = sizeof control;
      cmsghdr* const head = CMSG_FIRSTHDR(&message);
      head->cmsg_level = SOL_SOCKET;
      head->cmsg_type = SCM_RIGHTS;
      head->cmsg_len = CMSG_LEN(sizeof(int));
      const int fd = client.memory.get();
      std::memcpy(CMSG_DATA(head), &fd, sizeof fd);
      REQUIRE(sendmsg(client.socket.get(), &message, MSG_NOSIGNAL) ==
              static_cast<ssize_t>(run.iov_len));
    }
  }
  CHECK(client.end().find("of no kind that belongs here, or one too many") != std::string::npos);
}

TEST_CASE("shm: a peer that takes no ring and makes its socket block does not stop who rings") {
  Client client;
  // Its own end only: flags are not shared.
  REQUIRE(fcntl(client.socket.get(), F_SETFL, 0) == 0);
  auto map = MemoryMap::map(client.memory.get(), ring_memory_size(kCapacity),
                            PROT_READ | PROT_WRITE, MAP_SHARED);
  REQUIRE(map.ok());
  auto& header = *reinterpret_cast<RingHeader<HardwareAtomics>*>(map->data());
  char byte = 'x';
  const iovec run = run_of(&byte, 1);
  // Many more rings than a socket holds, each for a peer that says it sleeps.
  for (int i = 0; i < 20'000; ++i) {
    header.sleep[0].word.store(static_cast<uint32_t>(Sleeper::kBackground));
    const auto sent = client.server->send({&run, 1});
    REQUIRE(sent.ok());
    REQUIRE(*sent == 1);
    header.rings[1].head.store(header.rings[1].tail.load());
  }
}

TEST_CASE("shm: a peer that rings without end is served no more at a time than others") {
  Client client;
  REQUIRE(fcntl(client.socket.get(), F_SETFL, O_NONBLOCK) == 0);
  std::atomic<bool> over{false};
  std::thread ringer([&] {
    while (!over.load()) ring_shm_bell(client.socket.get());
  });
  // Each poll ends although there is always another ring.
  for (int i = 0; i < 1000; ++i) REQUIRE(client.watched->wait());
  over = true;
  ringer.join();
  CHECK(client.server->receive({}).ok());
}

TEST_CASE("shm: a driver that nobody can wake still hears that its peer has gone") {
  Client client;
  auto map = MemoryMap::map(client.memory.get(), ring_memory_size(kCapacity),
                            PROT_READ | PROT_WRITE, MAP_SHARED);
  REQUIRE(map.ok());
  auto& word = reinterpret_cast<RingHeader<HardwareAtomics>*>(map->data())->sleep[1].word;
  client.server->disarm();
  std::thread driver([&] {
    // Ends by no deadline of its own.
    char byte = 0;
    const iovec room = run_of(&byte, 1);
    while (client.server->receive({&room, 1}).ok()) (void)client.server->sleep(false, kForever);
  });
  // The peer overwrites the word by which the driver is to be woken, as soon as it sleeps.
  while (word.load() != static_cast<uint32_t>(Sleeper::kDriver)) {
  }
  word.store(77);
  client.server->peer_gone("it has died");
  driver.join();
}

TEST_CASE("shm: a slab for which this process has no descriptor left is refused, not the link") {
  Client client;
  auto arena = make_ref<Arena>(size_t{1} << 20, size_t{1} << 20);
  const auto block = arena->allocate(4096);
  REQUIRE(block.ok());
  wire::ShmFrame slab;
  slab.type = wire::ShmFrameType::kSlab;
  slab.slab = 3;
  slab.generation = 4;
  slab.size = (*block)->slab().size();
  const int fds[] = {(*block)->slab().fd()};
  REQUIRE(send_shm_frame(client.socket.get(), slab, fds).ok());
  {
    const NoMoreDescriptors limit;
    const auto located = client.server->locate({3, 4, 0, 1});
    REQUIRE_FALSE(located.ok());
    CHECK(located.status().code() == Code::kResourceExhausted);
    CHECK(located.status().details().find("ulimit -n") != std::string::npos);
  }
  slab.generation = 5;
  REQUIRE(send_shm_frame(client.socket.get(), slab, fds).ok());
  CHECK(client.server->locate({3, 5, 0, 1}).ok());
}

wire::ShmFrame region_frame(uint64_t size, uint32_t region = 1) {
  wire::ShmFrame frame;
  frame.type = wire::ShmFrameType::kRegion;
  frame.slab = region;
  frame.size = size;
  return frame;
}

TEST_CASE("shm: memory that is handed over is taken over once") {
  const size_t size = 3 * page_size();
  Client client;
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
  Client client;
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
struct Lender : Client {
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
  Client client;
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
  Client client;
  uint64_t region = 0;
  while (++region <= 1000)  // more than the kernel takes for a peer that reads nothing
    REQUIRE(client.server->hand_over(region, memory, true, make_ref<tw::Door>()).ok());
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

TEST_CASE("shm: a slab of an index that no peer takes in is not shared, and the link goes on") {
  TransportPair pair = Shm::make();
  const auto last = Slab::make(PeerArena::kMaxSlabs - 1, 1, page_size()).value();
  const auto more = Slab::make(PeerArena::kMaxSlabs, 2, page_size()).value();
  CHECK(pair.a->share(*more).code() == Code::kResourceExhausted);
  CHECK(pair.a->hand_over(1, more, make_ref<tw::Door>()).code() == Code::kResourceExhausted);
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

TEST_CASE("shm: a frame may come in pieces") {
  Client client;
  wire::ShmFrame gone;
  gone.type = wire::ShmFrameType::kSlabGone;
  std::array<std::byte, wire::kShmFrameSize> bytes;
  wire::encode(bytes, gone);
  for (const std::byte byte : bytes) {
    CHECK_FALSE(client.watched->reports_now());
    client.says(&byte, 1);
  }
  CHECK(client.end().find("does not share") != std::string::npos);
}

}  // namespace
}  // namespace tw::test

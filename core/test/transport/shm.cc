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
#include "test/transport/shm_client.h"

namespace tw::test {
namespace {

TEST_CASE("shm: rings are taken as the protocol has them") {
  ShmDoor door;
  CHECK(door.accept(rings_frame(), alone(ring_memory())).ok());
}

TEST_CASE("shm: rings that are not what they must be are refused") {
  const auto refused = [](wire::ShmFrame frame, Fd memory, Code code) {
    ShmDoor door;
    const auto accepted = door.accept(frame, alone(std::move(memory)));
    REQUIRE_FALSE(accepted.ok());
    CHECK(accepted.status().code() == code);
    CHECK_FALSE(accepted.status().details().empty());
  };
  wire::ShmFrame other = rings_frame();
  other.type = wire::ShmFrameType::kSlab;
  refused(other, ring_memory(), Code::kInternal);
  refused(rings_frame(kShmCapacity - 1), ring_memory(), Code::kInternal);
  refused(rings_frame(0), ring_memory(), Code::kInternal);
  refused(rings_frame(~uint64_t{0}), ring_memory(), Code::kInternal);
  refused(rings_frame(kShmCapacity * 2), ring_memory(), Code::kInvalidArgument);
  refused(rings_frame(), ring_memory(4096), Code::kInvalidArgument);
  refused(rings_frame(), ring_memory(ring_memory_size(kShmCapacity), F_SEAL_SHRINK),
          Code::kInvalidArgument);
  refused(rings_frame(), reopen_read_only(ring_memory().get()).value(), Code::kInvalidArgument);
  refused(rings_frame(), Fd(open("/dev/zero", O_RDWR | O_CLOEXEC)), Code::kInvalidArgument);
}

TEST_CASE("shm: who talks nonsense beside the rings is dropped, with the reason") {
  ShmClient client;
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
void hand_over(const ShmClient& client, const Fd& fd) {
  wire::ShmFrame slab;
  slab.type = wire::ShmFrameType::kSlab;
  slab.size = 4096;
  const int fds[] = {fd.get()};
  REQUIRE(send_shm_frame(client.socket.get(), slab, fds).ok());
}

TEST_CASE("shm: no descriptor of a peer's holds this end up") {
  ShmClient client;
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
  ShmClient client;
  // Its own end only: flags are not shared.
  REQUIRE(fcntl(client.socket.get(), F_SETFL, 0) == 0);
  auto map = MemoryMap::map(client.memory.get(), ring_memory_size(kShmCapacity),
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
  ShmClient client;
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
  ShmClient client;
  auto map = MemoryMap::map(client.memory.get(), ring_memory_size(kShmCapacity),
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
  ShmClient client;
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

TEST_CASE("shm: a frame may come in pieces") {
  ShmClient client;
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

// What a shared-memory end refuses from the process at the other end of its socket.
#include <fcntl.h>
#include <sys/eventfd.h>

#include "memory/memfd.h"
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

std::vector<Fd> with_bells(Fd memory) {
  std::vector<Fd> list;
  list.push_back(std::move(memory));
  list.emplace_back(eventfd(0, EFD_CLOEXEC));
  list.emplace_back(eventfd(0, EFD_CLOEXEC));
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
  auto descriptors = with_bells(ring_memory());
  const Fd bell(dup(descriptors[1].get()));
  const auto accepted = door.accept(rings_frame(), std::move(descriptors));
  REQUIRE(accepted.ok());
  // Whatever the peer does to its doorbell, writing to it does not hang this process.
  CHECK((fcntl(bell.get(), F_GETFL) & O_NONBLOCK) != 0);
}

TEST_CASE("shm: rings that are not what they must be are refused") {
  const auto refused = [](wire::ShmFrame frame, Fd memory, Code code) {
    Door door;
    const auto accepted = door.accept(frame, with_bells(std::move(memory)));
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
    auto accepted = door.accept(rings_frame(), with_bells(ring_memory()));
    REQUIRE(accepted.ok());
    server = std::move(*accepted);
    watched = std::make_unique<Watched>(*server);
    server->arm(false);
  }

  void says(const void* bytes, size_t size) {
    REQUIRE(::send(socket.get(), bytes, size, MSG_NOSIGNAL) == static_cast<ssize_t>(size));
  }

  // Why the server's end has ended.
  std::string end() {
    REQUIRE(watched->wait());
    char byte;
    const iovec room = run_of(&byte, 1);
    const auto got = server->receive({&room, 1});
    REQUIRE_FALSE(got.ok());
    CHECK(got.status().code() == Code::kUnavailable);
    return got.status().details();
  }

  Fd socket;
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
    const int fds[] = {memory.get(), memory.get(), memory.get()};
    REQUIRE(send_shm_frame(client.socket.get(), rings_frame(), fds).ok());
    CHECK(client.end().find("twice") != std::string::npos);
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
    CHECK(client.end() == "the peer hung up");
  }
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

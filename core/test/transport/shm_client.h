// SPDX-License-Identifier: Apache-2.0
// Ends of a shared-memory link whose peer is the test itself, frame by frame.
#pragma once

#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <vector>

#include "memory/memfd.h"
#include "test/transport/pair.h"

namespace tw::test {

inline constexpr size_t kShmCapacity = 4096;

// A server's end of the socket, and what a client may say on the other one.
struct ShmDoor {
  ShmDoor() {
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

inline wire::ShmFrame rings_frame(uint64_t size = kShmCapacity) {
  wire::ShmFrame frame;
  frame.type = wire::ShmFrameType::kRings;
  frame.size = size;
  return frame;
}

inline std::vector<Fd> alone(Fd memory) {
  std::vector<Fd> list;
  list.push_back(std::move(memory));
  return list;
}

inline Fd ring_memory(size_t size = ring_memory_size(kShmCapacity), int seals = kSharedSeals) {
  auto file = make_memfd("rings", size);
  REQUIRE(file.ok());
  REQUIRE(seal_memfd(file->get(), seals).ok());
  return std::move(*file);
}

// An accepted end whose client is this test, by hand.
struct ShmClient {
  ShmClient() {
    ShmDoor door;
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

}  // namespace tw::test

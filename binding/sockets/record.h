// SPDX-License-Identifier: Apache-2.0
// What a process leaves in its file, which src/tensorwire/observe/sockets.py reads: a header, then
// room for connections, then room for buffers. Room for buffers takes disk as it is used.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace tensorwire::sockets {

inline constexpr char kMagic[8] = {'T', 'W', 'S', 'O', 'C', 'K', 'S', '1'};
inline constexpr uint32_t kMostConnections = 1024;

enum class Kind : uint32_t { kOther = 0, kHttp2 = 1, kTls = 2 };
enum class Function : uint8_t { kSendmsg, kWritev, kSendto, kSend, kWrite };
inline constexpr uint8_t kZeroCopy = 1;  // a flag of buffers: MSG_ZEROCOPY

struct Header {
  char magic[8];
  uint32_t pid;
  uint32_t most_connections;
  uint64_t most_buffers;
  std::atomic<uint64_t> connections;  // all: those beyond the room have no entry
  std::atomic<uint64_t> buffers;      // all that were sent
  std::atomic<uint64_t> dropped;      // of these: there was no room, or the disk was full
  std::atomic<uint64_t> unseen;       // calls on descriptors beyond those that are looked at
};

struct Connection {
  Kind kind;
  uint32_t address_bytes;
  std::atomic<uint64_t> calls;
  std::atomic<uint64_t> bytes;  // that the kernel has taken
  char address[112];            // of the peer: a sockaddr
};

struct Buffer {
  uint64_t time;  // ns of CLOCK_MONOTONIC, when its call began; 0: nothing is here
  uint64_t size;
  uint32_t connection;
  uint16_t place;  // among the buffers that begin in its call
  Function function;
  uint8_t flags;
};

static_assert(sizeof(Header) == 56 && sizeof(Connection) == 136 && sizeof(Buffer) == 24);
static_assert(std::atomic<uint64_t>::is_always_lock_free, "the file is shared memory");

}  // namespace tensorwire::sockets

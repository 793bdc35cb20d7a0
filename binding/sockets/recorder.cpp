// SPDX-License-Identifier: Apache-2.0
#include "recorder.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <string_view>

namespace tensorwire::sockets {

namespace {

constexpr uint64_t kMostBuffers = 10'000'000;
constexpr int kMostImages = 1000;  // of one process: each exec begins another one
constexpr size_t kMostDescriptors = 1 << 16;
constexpr size_t kFrameHeader = 9;  // of HTTP/2
constexpr size_t kBuffersAt = sizeof(Header) + kMostConnections * sizeof(Connection);
// Buffers for which the disk keeps room: at first, and how many more once only so many are left.
constexpr uint64_t kFirstRoom = 4096;
constexpr uint64_t kGrowth = 65'536;
constexpr uint64_t kLeft = 2048;

char g_folder[4096];

// What is known of a descriptor. Whoever sends on a connection of gRPC is alone to do so; where
// others send at the same time, at worst a buffer that was cut counts twice.
struct Descriptor {
  std::atomic<uint64_t> socket;      // its inode: another one is another connection
  std::atomic<uint32_t> forks;       // as g_forks was then
  std::atomic<uint32_t> connection;  // 1 + its number in the file; 0: it is not recorded
  // The part of the last buffer that the kernel has not taken yet.
  std::atomic<const char*> rest;
  std::atomic<size_t> left;
};

struct File {
  char name[sizeof(g_folder) + 64];
  Header* header;
  Connection* connections;
  Buffer* buffers;
  std::atomic<uint64_t> room;  // for buffers, on the disk
  std::atomic<bool> growing;
};

// These are written before there are threads, in a process or in a child of fork(). What is not
// initialised by the loader would be after `loaded` has run.
constinit File g_file{};
uint32_t g_forks;
uint64_t g_most_buffers;

constinit std::atomic<bool> g_on{false};
constinit Descriptor g_descriptors[kMostDescriptors]{};

// Opens a file that no other process or image has. 0, or an errno.
int create(int* descriptor) {
  for (int image = 0; image < kMostImages; ++image) {
    std::snprintf(g_file.name, sizeof(g_file.name), "%s/%d-%d.sockets", g_folder, getpid(), image);
    *descriptor = open(g_file.name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (*descriptor >= 0) return 0;
    if (errno != EEXIST) return errno;
  }
  return EEXIST;
}

constexpr off_t end_of(uint64_t buffers) {
  return static_cast<off_t>(kBuffersAt + buffers * sizeof(Buffer));
}

// Has the disk keep room for what lies from `from` to the end of so many buffers: on a full disk, a
// process that wrote to a mapping without it would end. 0, or an errno.
int reserve(int descriptor, off_t from, uint64_t buffers) {
  const int error = posix_fallocate(descriptor, from, end_of(buffers) - from);
  if (error == 0) g_file.room.store(buffers, std::memory_order_release);
  return error;
}

// Room for more buffers, unless another thread makes it. The file is opened anew for that: a
// descriptor that is kept may be closed by the program, and become another file's.
void grow() {
  if (g_file.growing.exchange(true, std::memory_order_acquire)) return;
  const uint64_t room = g_file.room.load(std::memory_order_relaxed);
  const uint64_t more = std::min(room + kGrowth, g_most_buffers);
  const int descriptor = open(g_file.name, O_RDWR | O_CLOEXEC);
  const bool grown = descriptor >= 0 && reserve(descriptor, end_of(room), more) == 0;
  if (descriptor >= 0) close(descriptor);
  // What was in vain is not tried again.
  if (grown) g_file.growing.store(false, std::memory_order_release);
}

int map(int descriptor) {
  const auto size = static_cast<size_t>(end_of(g_most_buffers));
  rlimit limit;
  // The kernel would answer a larger file by a signal that ends the process.
  if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur < size) return EFBIG;
  if (ftruncate(descriptor, static_cast<off_t>(size)) != 0) return errno;
  if (const int error = reserve(descriptor, 0, std::min(kFirstRoom, g_most_buffers))) return error;
  void* memory = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  if (memory == MAP_FAILED) return errno;
  auto* bytes = static_cast<char*>(memory);
  g_file.header = reinterpret_cast<Header*>(bytes);
  g_file.connections = reinterpret_cast<Connection*>(bytes + sizeof(Header));
  g_file.buffers = reinterpret_cast<Buffer*>(bytes + kBuffersAt);
  return 0;
}

int start() {
  g_file.growing.store(false, std::memory_order_relaxed);
  int descriptor = -1;
  if (const int error = create(&descriptor)) return error;
  const int error = map(descriptor);
  close(descriptor);
  if (error != 0) {
    unlink(g_file.name);
    return error;
  }
  g_file.header->pid = static_cast<uint32_t>(getpid());
  g_file.header->most_connections = kMostConnections;
  g_file.header->most_buffers = g_most_buffers;
  std::memcpy(g_file.header->magic, kMagic, sizeof(kMagic));
  g_on.store(true, std::memory_order_release);
  return 0;
}

void start_or_tell() {
  const int error = start();
  // Without the folder the run is over, and nobody asks what its last processes send.
  if (error == 0 || error == ENOENT) return;
  std::fprintf(stderr, "tensorwire: what process %d sends by gRPC is not recorded: %s\n", getpid(),
               std::strerror(error));
}

// A child of fork() has a file of its own. Connections of its parent are none of its own.
void forked() {
  if (!g_on.exchange(false)) return;
  ++g_forks;
  start_or_tell();
}

__attribute__((constructor)) void loaded() {
  const char* most = secure_getenv("TENSORWIRE_SOCKETS");
  const char* folder = secure_getenv("TENSORWIRE_TRACE_FOLDER");
  if (most == nullptr || folder == nullptr || std::strlen(folder) >= sizeof(g_folder)) return;
  g_most_buffers = std::min<uint64_t>(std::strtoull(most, nullptr, 10), kMostBuffers);
  std::strcpy(g_folder, folder);
  pthread_atfork(nullptr, nullptr, forked);
  start_or_tell();
}

// By the first bytes that were sent. HTTP/2 begins with its preface at a client, and at a server
// with a SETTINGS frame of 6 bytes for each setting (RFC 9113, 3.4 and 6.5); TLS with a handshake
// record of version 3.
Kind kind_of(std::string_view first) {
  constexpr std::string_view kPreface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
  if (first.substr(0, kPreface.size()) == kPreface) return Kind::kHttp2;
  if (first.size() >= kFrameHeader) {
    const auto byte = [&](size_t at) { return static_cast<uint8_t>(first[at]); };
    const uint32_t length = byte(0) << 16 | byte(1) << 8 | byte(2);
    constexpr std::string_view kSettings("\x04\0\0\0\0\0", 6);  // type, flags, stream 0
    if (length % 6 == 0 && length <= 1 << 14 && first.substr(3, 6) == kSettings)
      return Kind::kHttp2;
    if (byte(0) == 22 && byte(1) == 3) return Kind::kTls;
  }
  return Kind::kOther;
}

// 1 + the number of a connection; 0: it is not recorded.
uint32_t add_connection(int descriptor, std::string_view first) {
  int type = 0;
  socklen_t size = sizeof(type);
  if (getsockopt(descriptor, SOL_SOCKET, SO_TYPE, &type, &size) != 0 || type != SOCK_STREAM)
    return 0;
  const Kind kind = kind_of(first);
  if (kind == Kind::kOther) return 0;
  const uint64_t number = g_file.header->connections.fetch_add(1, std::memory_order_relaxed);
  if (number >= kMostConnections) return 0;
  Connection& added = g_file.connections[number];
  added.kind = kind;
  socklen_t bytes = sizeof(added.address);
  if (getpeername(descriptor, reinterpret_cast<sockaddr*>(added.address), &bytes) == 0)
    added.address_bytes = std::min<uint32_t>(bytes, sizeof(added.address));
  return static_cast<uint32_t>(number) + 1;
}

void add_buffer(const Buffer& buffer) {
  const uint64_t at = g_file.header->buffers.fetch_add(1, std::memory_order_relaxed);
  const uint64_t room = g_file.room.load(std::memory_order_acquire);
  if (at + kLeft >= room && room < g_most_buffers) grow();
  if (at < room)
    g_file.buffers[at] = buffer;
  else
    g_file.header->dropped.fetch_add(1, std::memory_order_relaxed);
}

// Adds those of these parts that begin in what the kernel has taken. buffer: what they share.
void add_buffers(Descriptor& known, Buffer buffer, const iovec* parts, size_t count, size_t taken) {
  const size_t left = known.left.load(std::memory_order_relaxed);
  const char* rest = known.rest.load(std::memory_order_relaxed);
  // What the kernel had not taken comes again as it was left.
  const bool goes_on = left != 0 && parts->iov_base == rest && parts->iov_len == left;
  size_t end = 0;
  for (size_t part = 0; part < count && end < taken; ++part) {
    const auto& [base, size] = parts[part];
    end += size;
    if (end > taken)
      known.rest.store(static_cast<const char*>(base) + (taken + size - end),
                       std::memory_order_relaxed);
    if (size == 0 || (goes_on && part == 0)) continue;
    buffer.size = size;
    add_buffer(buffer);
    ++buffer.place;
  }
  known.left.store(end - taken, std::memory_order_relaxed);
}

std::string_view first_bytes(const iovec* parts, size_t count, size_t taken) {
  while (count > 1 && parts->iov_len == 0) ++parts, --count;
  return {static_cast<const char*>(parts->iov_base), std::min(parts->iov_len, taken)};
}

void add(uint64_t time, int descriptor, Function function, const iovec* parts, size_t count,
         int flags, size_t taken) {
  struct stat about;
  if (fstat(descriptor, &about) != 0 || !S_ISSOCK(about.st_mode)) return;
  if (static_cast<size_t>(descriptor) >= kMostDescriptors) {
    g_file.header->unseen.fetch_add(1, std::memory_order_relaxed);
    return;
  }
  Descriptor& known = g_descriptors[descriptor];
  if (known.socket.load(std::memory_order_acquire) != about.st_ino ||
      known.forks.load(std::memory_order_relaxed) != g_forks) {
    known.left.store(0, std::memory_order_relaxed);
    known.connection.store(add_connection(descriptor, first_bytes(parts, count, taken)),
                           std::memory_order_relaxed);
    known.forks.store(g_forks, std::memory_order_relaxed);
    known.socket.store(about.st_ino, std::memory_order_release);
  }
  const uint32_t number = known.connection.load(std::memory_order_relaxed);
  if (number == 0) return;
  Connection& connection = g_file.connections[number - 1];
  connection.calls.fetch_add(1, std::memory_order_relaxed);
  connection.bytes.fetch_add(taken, std::memory_order_relaxed);
  if (connection.kind != Kind::kHttp2) return;
  const uint8_t marks = (flags & MSG_ZEROCOPY) != 0 ? kZeroCopy : 0;
  add_buffers(known, {time, 0, number - 1, 0, function, marks}, parts, count, taken);
}

}  // namespace

uint64_t begin() {
  if (!g_on.load(std::memory_order_acquire)) return 0;
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(now.tv_nsec);
}

void note(uint64_t time, int descriptor, Function function, const iovec* parts, size_t count,
          int flags, ssize_t taken) {
  if (time == 0 || taken <= 0) return;
  const int before = errno;
  add(time, descriptor, function, parts, count, flags, static_cast<size_t>(taken));
  errno = before;
}

}  // namespace tensorwire::sockets

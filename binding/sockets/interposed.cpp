// SPDX-License-Identifier: Apache-2.0
// A library for LD_PRELOAD: it stands before the C library's functions by which a program sends on
// sockets, does what they do, and notes what they took.
#include <dlfcn.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

#include "recorder.h"

namespace tensorwire::sockets {

namespace {

// The function that comes next under this name: that of the C library, or of another library that
// stands before it. Looked up when it is first called, which may be before constructors have run.
template <typename F>
class Next {
 public:
  constexpr explicit Next(const char* name) : name_(name) {}

  F* get() {
    F* found = found_.load(std::memory_order_relaxed);
    if (found == nullptr) {
      found = reinterpret_cast<F*>(dlsym(RTLD_NEXT, name_));
      found_.store(found, std::memory_order_relaxed);
    }
    return found;
  }

 private:
  const char* name_;
  std::atomic<F*> found_{nullptr};
};

constinit Next<ssize_t(int, const msghdr*, int)> g_sendmsg("sendmsg");
constinit Next<ssize_t(int, const iovec*, int)> g_writev("writev");
constinit Next<ssize_t(int, const void*, size_t, int, const sockaddr*, socklen_t)> g_sendto(
    "sendto");
constinit Next<ssize_t(int, const void*, size_t, int)> g_send("send");
constinit Next<ssize_t(int, const void*, size_t)> g_write("write");

// A signal handler that sends must not be the first to look a function up.
__attribute__((constructor)) void find() {
  g_sendmsg.get(), g_writev.get(), g_sendto.get(), g_send.get(), g_write.get();
}

void note_one(uint64_t time, int descriptor, Function function, const void* bytes, size_t size,
              int flags, ssize_t taken) {
  const iovec part{const_cast<void*>(bytes), size};
  note(time, descriptor, function, &part, 1, flags, taken);
}

}  // namespace

}  // namespace tensorwire::sockets

namespace ours = tensorwire::sockets;

extern "C" {

ssize_t sendmsg(int descriptor, const msghdr* message, int flags) {
  const uint64_t time = ours::begin();
  const ssize_t taken = ours::g_sendmsg.get()(descriptor, message, flags);
  if (taken > 0)
    ours::note(time, descriptor, ours::Function::kSendmsg, message->msg_iov, message->msg_iovlen,
               flags, taken);
  return taken;
}

ssize_t writev(int descriptor, const iovec* parts, int count) {
  const uint64_t time = ours::begin();
  const ssize_t taken = ours::g_writev.get()(descriptor, parts, count);
  if (taken > 0)
    ours::note(time, descriptor, ours::Function::kWritev, parts, static_cast<size_t>(count), 0,
               taken);
  return taken;
}

ssize_t sendto(int descriptor, const void* bytes, size_t size, int flags, const sockaddr* address,
               socklen_t address_size) {
  const uint64_t time = ours::begin();
  const ssize_t taken = ours::g_sendto.get()(descriptor, bytes, size, flags, address, address_size);
  ours::note_one(time, descriptor, ours::Function::kSendto, bytes, size, flags, taken);
  return taken;
}

ssize_t send(int descriptor, const void* bytes, size_t size, int flags) {
  const uint64_t time = ours::begin();
  const ssize_t taken = ours::g_send.get()(descriptor, bytes, size, flags);
  ours::note_one(time, descriptor, ours::Function::kSend, bytes, size, flags, taken);
  return taken;
}

ssize_t write(int descriptor, const void* bytes, size_t size) {
  const uint64_t time = ours::begin();
  const ssize_t taken = ours::g_write.get()(descriptor, bytes, size);
  ours::note_one(time, descriptor, ours::Function::kWrite, bytes, size, 0, taken);
  return taken;
}

}  // extern "C"

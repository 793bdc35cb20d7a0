// SPDX-License-Identifier: Apache-2.0
#include "transport/shm/control.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <exception>
#include <span>
#include <thread>

#include "base/signals.h"
#include "wire/bytes.h"

namespace tw {
namespace {

// What the kernel knows of the descriptor itself, without asking its file system.
bool is_memory_file(const Fd& fd) { return fcntl(fd.get(), F_GET_SEALS) >= 0; }
bool is_pidfd(const Fd& fd) {
  constexpr auto kByPidfd = static_cast<idtype_t>(3);  // P_PIDFD of newer headers
  siginfo_t info;
  return waitid(kByPidfd, static_cast<id_t>(fd.get()), &info, WEXITED | WNOHANG | WNOWAIT) == 0 ||
         errno == ECHILD;
}

void close_elsewhere(Fd fd) {
  const int number = fd.release();
  const SignalsBlocked blocked;
  try {
    std::thread([number] { ::close(number); }).detach();
  } catch (const std::exception&) {
    // Without a thread, or memory for it, it stays open: better than to wait here.
  }
}

}  // namespace

Result<ShmSent> try_shm_frame(int socket, const wire::ShmFrame& frame,
                              std::span<const int> descriptors) {
  std::array<std::byte, wire::kShmFrameSize> bytes;
  wire::encode(bytes, frame);
  iovec run{bytes.data(), bytes.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * wire::kMaxShmDescriptors)] = {};
  msghdr message{};
  message.msg_iov = &run;
  message.msg_iovlen = 1;
  if (!descriptors.empty()) {
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(sizeof(int) * descriptors.size());
    cmsghdr* const head = CMSG_FIRSTHDR(&message);
    head->cmsg_level = SOL_SOCKET;
    head->cmsg_type = SCM_RIGHTS;
    head->cmsg_len = CMSG_LEN(sizeof(int) * descriptors.size());
    std::memcpy(CMSG_DATA(head), descriptors.data(), sizeof(int) * descriptors.size());
  }
  for (;;) {
    const ssize_t n = sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    // A stream socket takes so small a message whole or not at all.
    if (n == static_cast<ssize_t>(bytes.size())) return ShmSent::kSent;
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) return ShmSent::kFull;
    if (n < 0 && errno == ETOOMANYREFS) return ShmSent::kCrowded;
    return errno_status(Code::kUnavailable, "cannot hand a descriptor to the peer",
                        n < 0 ? errno : EIO);
  }
}

Status send_shm_frame(int socket, const wire::ShmFrame& frame, std::span<const int> descriptors) {
  const auto sent = try_shm_frame(socket, frame, descriptors);
  if (!sent) return sent.status();
  if (*sent == ShmSent::kSent) return {};
  return {Code::kResourceExhausted, "too many descriptors are on their way to the peer"};
}

void ring_shm_bell(int socket) {
  wire::ShmFrame bell;
  bell.type = wire::ShmFrameType::kBell;
  std::array<std::byte, wire::kShmFrameSize> bytes;
  wire::encode(bytes, bell);
  while (::send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT) < 0 &&
         errno == EINTR) {
  }
}

Result<ShmFrameReader::Got> ShmFrameReader::read(int socket, ShmMessage& out) {
  while (have_ < bytes_.size()) {
    iovec run{bytes_.data() + have_, bytes_.size() - have_};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * 8)];
    msghdr message{};
    message.msg_iov = &run;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    const ssize_t n = recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) return Got::kNothing;
    if (n <= 0) return Got::kEnd;
    bool strange = false;
    for (cmsghdr* head = CMSG_FIRSTHDR(&message); head; head = CMSG_NXTHDR(&message, head)) {
      if (head->cmsg_level != SOL_SOCKET || head->cmsg_type != SCM_RIGHTS) continue;
      const size_t count = (head->cmsg_len - CMSG_LEN(0)) / sizeof(int);
      std::array<Fd, 8> all;  // as many as `control` has; all of them are closed, whatever comes
      for (size_t i = 0; i < count; ++i) {
        int fd;
        std::memcpy(&fd, CMSG_DATA(head) + i * sizeof(int), sizeof fd);
        all[i].reset(fd);
      }
      for (Fd& received : std::span(all).first(count)) {
        if (descriptors_.size() < wire::kMaxShmDescriptors &&
            (is_memory_file(received) || is_pidfd(received))) {
          descriptors_.push_back(std::move(received));
        } else {
          strange = true;
          close_elsewhere(std::move(received));
        }
      }
    }
    if (strange)
      return Status{Code::kInternal,
                    "protocol error: a descriptor of no kind that belongs here, or one too many"};
    lost_ = lost_ || (message.msg_flags & MSG_CTRUNC) != 0;
    have_ += static_cast<size_t>(n);
  }
  have_ = 0;
  auto frame = wire::decode_shm_frame(bytes_);
  if (!frame) return frame.status();
  if (std::exchange(lost_, false)) {
    descriptors_.clear();
    if (frame->type != wire::ShmFrameType::kSlab && frame->type != wire::ShmFrameType::kRegion &&
        frame->type != wire::ShmFrameType::kBlock)
      return Status{
          Code::kResourceExhausted,
          "descriptors from the peer were lost: raise the limit of open files (ulimit -n)"};
  } else if (descriptors_.size() != wire::descriptors_of(*frame)) {
    return wire::protocol_error({descriptors_.size(), " descriptors with a shared-memory frame"});
  }
  out.frame = *frame;
  out.descriptors = std::exchange(descriptors_, {});
  return Got::kFrame;
}

}  // namespace tw

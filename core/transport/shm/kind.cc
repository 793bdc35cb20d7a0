// SPDX-License-Identifier: Apache-2.0
#include "transport/kind.h"

#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

#include "transport/shm/control.h"
#include "transport/shm/facts.h"
#include "transport/shm/shm.h"

namespace tw::shm {
namespace {

#ifndef SO_PEERPIDFD
constexpr int SO_PEERPIDFD = 77;
#endif

// Has the death of the process at the other end be seen from now on, whatever pid namespace it
// lives in. False: this kernel does not say which process it is (Linux < 6.5), so that the other
// end has to tell_process(). UNAVAILABLE: it has died. RESOURCE_EXHAUSTED.
Result<bool> watch_peer(int socket, Fd& process) {
  int pidfd = -1;
  socklen_t size = sizeof pidfd;
  // Taken from the socket it cannot be a later process's with the same number, and needs no number.
  if (getsockopt(socket, SOL_SOCKET, SO_PEERPIDFD, &pidfd, &size) == 0) {
    process.reset(pidfd);
    return true;
  }
  switch (errno) {
    case EMFILE:
    case ENFILE:
    case ENOMEM:
      return errno_status(Code::kResourceExhausted, "the peer's process cannot be watched", errno);
    case ENODATA:
    case ENOENT:
    case ESRCH:
    case EINVAL:
      return errno_status(Code::kUnavailable, "the peer's process has died", errno);
    default:
      return false;
  }
}

// Hands this process's pidfd to the other end, which can watch it by that, wherever it lives. A
// peer that hands over another one's deceives itself: its link lasts as long as that process, at
// most. RESOURCE_EXHAUSTED, UNAVAILABLE.
Status tell_process(int socket) {
  const Fd self(static_cast<int>(syscall(SYS_pidfd_open, getpid(), 0)));
  if (!self && (errno == EMFILE || errno == ENFILE))
    return errno_status(Code::kResourceExhausted, "the peer cannot be told of this process", errno);
  wire::ShmFrame frame;
  frame.type = wire::ShmFrameType::kProcess;
  frame.size = self ? 1 : 0;
  const int descriptors[] = {self.get()};
  return send_shm_frame(socket, frame, std::span(descriptors).first(frame.size));
}

// Where the kernel does not say who the peer is, the two tell each other first: the client begins.
// Then the client hands over rings.
class ShmSetup : public Setup {
 public:
  explicit ShmSetup(const Settings& settings) : settings_(settings) {}

 protected:
  // False: nothing has come whole yet.
  Result<bool> read(int socket) {
    const auto got = reader_.read(socket, message_);
    if (!got) return got.status();
    if (*got == ShmFrameReader::Got::kEnd)
      return Status{Code::kUnavailable, "the peer closed the connection"};
    return *got == ShmFrameReader::Got::kFrame;
  }
  bool of_process() const { return message_.frame.type == wire::ShmFrameType::kProcess; }
  void take_process() {
    if (!message_.descriptors.empty()) process_ = std::move(message_.descriptors[0]);
    message_ = {};
  }

  const Settings& settings_;
  ShmFrameReader reader_;
  ShmMessage message_;
  Fd process_;
};

class Connector final : public ShmSetup {
 public:
  using ShmSetup::ShmSetup;

  Result<Next> go_on(int socket) override {
    if (!told_) {
      const auto known = watch_peer(socket, process_);
      if (!known) return known.status();
      if (*known) return Next::kDone;
      if (Status status = tell_process(socket); !status.ok()) return status;
      told_ = true;
    }
    const auto read = this->read(socket);
    if (!read) return read.status();
    if (!*read) return Next::kRead;
    if (!of_process())
      return Status{Code::kInternal, "protocol error: the server does not say which process it is"};
    take_process();
    return Next::kDone;
  }
  Result<Made> become(Fd socket) override {
    auto transport = ShmTransport::offer(std::move(socket), settings_);
    if (!transport) return transport.status();
    return Made{std::move(*transport), std::move(process_)};
  }

 private:
  bool told_ = false;
};

class Acceptor final : public ShmSetup {
 public:
  using ShmSetup::ShmSetup;

  Result<Next> go_on(int socket) override {
    auto read = this->read(socket);
    if (read && *read && !met_ && of_process()) {
      met_ = true;
      take_process();
      if (Status told = tell_process(socket); !told.ok()) return told;
      read = this->read(socket);
    }
    if (!read) return read.status();
    if (!*read) return Next::kRead;
    if (const auto known = watch_peer(socket, process_); !known) return known.status();
    return Next::kDone;
  }
  Result<Made> become(Fd socket) override {
    auto transport = ShmTransport::accept(std::move(socket), std::move(message_), settings_);
    if (!transport) return transport.status();
    return Made{std::move(*transport), std::move(process_)};
  }

 private:
  bool met_ = false;  // the client has said which process it is
};

class ShmKind final : public Kind {
 public:
  explicit ShmKind(const TransportEnvironment& environment) : settings_{environment.settings} {}

  std::string_view name() const override { return "shm"; }
  uint16_t code() const override { return 1; }
  Socket socket() const override { return Socket::kUnix; }
  bool lends() const override { return true; }

  Result<std::unique_ptr<Setup>> offer(const Meeting&) override {
    return std::unique_ptr<Setup>(new Connector(settings_));
  }
  Result<std::unique_ptr<Setup>> accept(const Meeting&) override {
    return std::unique_ptr<Setup>(new Acceptor(settings_));
  }

  Status read_settings() override { return tw::read_settings(kSettings, settings_); }
  void each_setting(const VisitSetting& visit) const override {
    tw::each_setting(kSettings, settings_, visit);
  }

  Facts facts() override { return shm::facts(look()); }

 private:
  Settings settings_;
};

}  // namespace

std::unique_ptr<Kind> make_kind(const TransportEnvironment& environment) {
  return std::make_unique<ShmKind>(environment);
}

}  // namespace tw::shm

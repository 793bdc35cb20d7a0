// SPDX-License-Identifier: Apache-2.0
#include "transport/kind.h"

#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <map>

#include "base/mutex.h"
#include "base/random.h"
#include "transport/loop/loop.h"

namespace tw::loop {
namespace {

using Token = std::array<uint8_t, 16>;

// Wires that a client has made, until its server takes them. A token that nobody here has made
// comes from another process.
class Offered {
 public:
  void put(const Token& token, Ref<LoopWires> wires) {
    const MutexLock lock(mutex_);
    wires_.emplace(token, std::move(wires));
  }
  Ref<LoopWires> take(const Token& token) {
    const MutexLock lock(mutex_);
    const auto it = wires_.find(token);
    if (it == wires_.end()) return nullptr;
    Ref<LoopWires> wires = std::move(it->second);
    wires_.erase(it);
    return wires;
  }

 private:
  Mutex mutex_;  // guards wires_
  std::map<Token, Ref<LoopWires>> wires_ TW_GUARDED_BY(mutex_);
};

// 0 when nothing can be moved now. UNAVAILABLE: the peer went away.
template <class Move>
Result<size_t> moved(Move&& move) {
  for (;;) {
    const ssize_t n = move();
    if (n > 0) return static_cast<size_t>(n);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) return size_t{0};
    return Status{Code::kUnavailable, "the peer closed the connection"};
  }
}

// The client sends a token, the server answers with a byte: 1 for taken. So little goes whole.
class LoopSetup : public Setup {
 public:
  LoopSetup(Offered& offered, const Settings& settings) : offered_(offered), settings_(settings) {}

 protected:
  static Status elsewhere() {
    return {Code::kFailedPrecondition, "the peer is another process, and loop is for one process"};
  }

  Offered& offered_;
  const Settings& settings_;
  Ref<LoopWires> wires_;
  Token token_{};
};

class Connector final : public LoopSetup {
 public:
  using LoopSetup::LoopSetup;
  // The server may have taken the wires already: it hears of their end.
  ~Connector() override {
    (void)offered_.take(token_);
    if (wires_) wires_->close();
  }

  Status begin() {
    if (Status status = fill_random(token_); !status.ok()) return status;
    auto wires = LoopWires::create();
    if (!wires) return wires.status();
    wires_ = std::move(*wires);
    offered_.put(token_, wires_);
    return {};
  }
  Result<Next> go_on(int socket) override {
    if (!sent_) {
      const auto sent = moved([&] {
        return ::send(socket, token_.data(), token_.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
      });
      if (!sent) return sent.status();
      if (*sent == 0) return Next::kWrite;
      sent_ = true;
    }
    uint8_t answer;
    const auto got = moved([&] { return ::recv(socket, &answer, 1, MSG_DONTWAIT); });
    if (!got) return got.status();
    if (*got == 0) return Next::kRead;
    if (answer != 1) return elsewhere();
    return Next::kDone;
  }
  Result<Made> become(Fd) override {
    return Made{std::make_unique<LoopTransport>(std::move(wires_), 0, settings_), {}};
  }

 private:
  bool sent_ = false;
};

class Acceptor final : public LoopSetup {
 public:
  using LoopSetup::LoopSetup;

  Result<Next> go_on(int socket) override {
    while (through_ < token_.size()) {
      const auto got = moved([&] {
        return ::recv(socket, token_.data() + through_, token_.size() - through_, MSG_DONTWAIT);
      });
      if (!got) return got.status();
      if (*got == 0) return Next::kRead;
      through_ += *got;
    }
    if (!wires_) wires_ = offered_.take(token_);
    const uint8_t answer = wires_ ? 1 : 0;
    const auto sent =
        moved([&] { return ::send(socket, &answer, 1, MSG_NOSIGNAL | MSG_DONTWAIT); });
    if (!sent) return sent.status();
    if (*sent == 0) return Next::kWrite;
    if (!wires_) return elsewhere();
    return Next::kDone;
  }
  Result<Made> become(Fd) override {
    return Made{std::make_unique<LoopTransport>(std::move(wires_), 1, settings_), {}};
  }

 private:
  size_t through_ = 0;
};

class LoopKind final : public Kind {
 public:
  explicit LoopKind(const TransportEnvironment& environment) : settings_(environment.settings) {}

  std::string_view name() const override { return "loop"; }
  uint16_t code() const override { return 4; }
  Socket socket() const override { return Socket::kUnix; }
  bool chosen() const override { return false; }

  Result<std::unique_ptr<Setup>> offer(const Meeting&) override {
    auto setup = std::make_unique<Connector>(offered_, settings_);
    if (Status status = setup->begin(); !status.ok()) return status;
    return std::unique_ptr<Setup>(std::move(setup));
  }
  Result<std::unique_ptr<Setup>> accept(const Meeting&) override {
    return std::unique_ptr<Setup>(new Acceptor(offered_, settings_));
  }

 private:
  const Settings& settings_;
  Offered offered_;
};

}  // namespace

std::unique_ptr<Kind> make_kind(const TransportEnvironment& environment) {
  return std::make_unique<LoopKind>(environment);
}

}  // namespace tw::loop

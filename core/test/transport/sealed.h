// SPDX-License-Identifier: Apache-2.0
// A decorator, in the place where TLS would be: a kind over another one, whose set-up agrees on
// keys once the other one's is done, and whose transport moves the other one's bytes, enciphered.
// The cipher is a toy.
#pragma once

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/random.h"
#include "transport/kind.h"

namespace tw::test {

using SealKey = std::array<uint8_t, 16>;

// One direction of a pipe.
class Cipher {
 public:
  explicit Cipher(const SealKey& key) : key_(key) {}
  // The next bytes; they become the past only by advance(), as a pipe may take fewer.
  void apply(std::byte* data, size_t size, size_t ahead = 0) const {
    for (size_t i = 0; i < size; ++i) {
      const uint64_t at = position_ + ahead + i;
      data[i] ^= static_cast<std::byte>(key_[at % key_.size()] ^ (at >> 4));
    }
  }
  void advance(size_t size) { position_ += size; }

 private:
  const SealKey key_;
  uint64_t position_ = 0;
};

class SealedTransport : public Transport {
 public:
  SealedTransport(std::unique_ptr<Transport> inner, const SealKey& out, const SealKey& in)
      : inner_(std::move(inner)), profile_(inner_->profile()), out_(out), in_(in) {
    profile_.name = "sealed";
  }

  const Profile& profile() const override { return profile_; }

  // Takes no more than the other one does: what it had enciphered and kept, nobody would send.
  Result<size_t> send(std::span<const iovec> data) override {
    sealed_.clear();
    for (const iovec& run : data) {
      const auto* const from = static_cast<const std::byte*>(run.iov_base);
      sealed_.insert(sealed_.end(), from, from + std::min(run.iov_len, kMost - sealed_.size()));
    }
    out_.apply(sealed_.data(), sealed_.size());
    const iovec run{sealed_.data(), sealed_.size()};
    auto sent = inner_->send({&run, 1});
    if (sent) out_.advance(*sent);
    return sent;
  }
  Result<size_t> receive(std::span<const iovec> room) override {
    auto got = inner_->receive(room);
    if (!got) return got;
    size_t done = 0;
    for (const iovec& run : room) {
      const size_t n = std::min(run.iov_len, *got - done);
      in_.apply(static_cast<std::byte*>(run.iov_base), n, done);
      done += n;
    }
    in_.advance(done);
    return got;
  }

  bool untaken() override { return inner_->untaken(); }
  bool undelivered() override { return inner_->undelivered(); }
  std::optional<HostAnswer> host_answer() override { return inner_->host_answer(); }
  bool readable() override { return inner_->readable(); }
  Wake sleep(bool want_send, Nanos deadline) override { return inner_->sleep(want_send, deadline); }
  void interrupt() override { inner_->interrupt(); }
  Status watch(Poller& poller, Ref<Watcher> watcher) override {
    return inner_->watch(poller, std::move(watcher));
  }
  void unwatch() override { inner_->unwatch(); }
  void arm(bool want_send) override { inner_->arm(want_send); }
  void disarm() override { inner_->disarm(); }
  Meaning meaning(uint32_t tag, uint32_t events) override { return inner_->meaning(tag, events); }
  void peer_gone(std::string why) override { inner_->peer_gone(std::move(why)); }
  void hang_up() override { inner_->hang_up(); }
  void set_trace(Trace& trace) override { inner_->set_trace(trace); }

 private:
  static constexpr size_t kMost = 16 << 10;  // of one send

  const std::unique_ptr<Transport> inner_;
  Profile profile_;
  Cipher out_, in_;
  std::vector<std::byte> sealed_;
};

// Each end tells the key of what it sends.
class SealedSetup final : public Setup {
 public:
  explicit SealedSetup(std::unique_ptr<Setup> inner) : inner_(std::move(inner)) {}

  Status begin() { return fill_random(mine_); }
  Result<Next> go_on(int socket) override {
    if (!inner_done_) {
      auto next = inner_->go_on(socket);
      if (!next || *next != Next::kDone) return next;
      inner_done_ = true;
    }
    while (sent_ < mine_.size()) {
      const ssize_t n =
          ::send(socket, mine_.data() + sent_, mine_.size() - sent_, MSG_NOSIGNAL | MSG_DONTWAIT);
      if (n < 0 && errno == EAGAIN) return Next::kWrite;
      if (n <= 0) return gone();
      sent_ += static_cast<size_t>(n);
    }
    while (heard_ < theirs_.size()) {
      const ssize_t n =
          ::recv(socket, theirs_.data() + heard_, theirs_.size() - heard_, MSG_DONTWAIT);
      if (n < 0 && errno == EAGAIN) return Next::kRead;
      if (n <= 0) return gone();
      heard_ += static_cast<size_t>(n);
    }
    return Next::kDone;
  }
  void run_blocking() override { inner_->run_blocking(); }
  Result<Made> become(Fd socket) override {
    auto made = inner_->become(std::move(socket));
    if (made)
      made->transport =
          std::make_unique<SealedTransport>(std::move(made->transport), mine_, theirs_);
    return made;
  }

 private:
  static Status gone() { return {Code::kUnavailable, "the peer closed the connection"}; }

  const std::unique_ptr<Setup> inner_;
  bool inner_done_ = false;
  SealKey mine_{}, theirs_{};
  size_t sent_ = 0, heard_ = 0;
};

class SealedKind final : public Kind {
 public:
  explicit SealedKind(std::unique_ptr<Kind> inner) : inner_(std::move(inner)) {}

  std::string_view name() const override { return "sealed"; }
  uint16_t code() const override { return 0x7fff; }
  Socket socket() const override { return inner_->socket(); }
  bool chosen() const override { return false; }
  bool fragile() const override { return inner_->fragile(); }
  Status why_not() override { return inner_->why_not(); }
  Result<std::unique_ptr<Setup>> offer(const Meeting& meeting) override {
    return over(inner_->offer(meeting));
  }
  Result<std::unique_ptr<Setup>> accept(const Meeting& meeting) override {
    return over(inner_->accept(meeting));
  }

 private:
  static Result<std::unique_ptr<Setup>> over(Result<std::unique_ptr<Setup>> inner) {
    if (!inner) return inner;
    auto setup = std::make_unique<SealedSetup>(std::move(*inner));
    if (Status status = setup->begin(); !status.ok()) return status;
    return std::unique_ptr<Setup>(std::move(setup));
  }

  const std::unique_ptr<Kind> inner_;
};

}  // namespace tw::test

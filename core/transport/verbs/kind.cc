// SPDX-License-Identifier: Apache-2.0
#include "transport/kind.h"

#include "base/mutex.h"
#include "transport/verbs/library.h"
#include "transport/verbs/settings.h"

#ifdef TENSORWIRE_VERBS
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <span>

#include "transport/verbs/context.h"
#include "transport/verbs/facts.h"
#include "transport/verbs/joining.h"
#include "transport/verbs/wire.h"
#endif

namespace tw::verbs {
namespace {

#ifdef TENSORWIRE_VERBS

// Opened at the first call that finds devices, and kept.
class Opened {
 public:
  Opened(const TransportEnvironment& environment, const Settings& settings)
      : environment_(environment), settings_(settings) {}

  // The status says why there is no RDMA.
  Result<Ref<Context>> context() {
    auto library = Library::get();
    if (!library) return library.status();
    auto poller = environment_.background();
    if (!poller) return poller.status();
    const MutexLock lock(mutex_);
    if (!context_) {
      auto opened = Context::open(**library, settings_, **poller);
      if (!opened) return opened.status();
      context_ = std::move(*opened);
    }
    return context_;
  }
  // Null: it has not been opened.
  Ref<Context> present() {
    const MutexLock lock(mutex_);
    return context_;
  }
  const TransportEnvironment& environment() const { return environment_; }

 private:
  const TransportEnvironment environment_;
  const Settings& settings_;
  Mutex mutex_;  // guards context_
  Ref<Context> context_ TW_GUARDED_BY(mutex_);
};

// Frames that go and come whole, over the connection that then stays beside the queue pairs.
class JoiningSetup : public Setup {
 public:
  explicit JoiningSetup(Opened& opened) : opened_(opened) {}

 protected:
  // True: all of it has been moved.
  Result<bool> receive(int socket, size_t size) {
    return move_all(size, [&](size_t done) {
      return ::recv(socket, frame_.data() + done, size - done, MSG_DONTWAIT);
    });
  }
  Result<bool> send(int socket, size_t size) {
    return move_all(size, [&](size_t done) {
      return ::send(socket, frame_.data() + done, size - done, MSG_NOSIGNAL | MSG_DONTWAIT);
    });
  }
  std::span<const std::byte, wire::kVerbsReadySize> ready_frame() const {
    return std::span<const std::byte, wire::kVerbsReadySize>(frame_.data(), wire::kVerbsReadySize);
  }

  Opened& opened_;
  std::unique_ptr<Joining> joining_;
  std::array<std::byte, wire::kVerbsOfferSize> frame_{};

 private:
  template <class Move>
  Result<bool> move_all(size_t size, Move&& move) {
    while (through_ < size) {
      const ssize_t n = move(through_);
      if (n > 0)
        through_ += static_cast<size_t>(n);
      else if (n < 0 && errno == EAGAIN)
        return false;
      else if (n == 0 || errno != EINTR)
        return Status{Code::kUnavailable, "the peer closed the connection while RDMA was set up"};
    }
    through_ = 0;
    return true;
  }

  size_t through_ = 0;  // bytes of the frame that have
};

class Connector final : public JoiningSetup {
 public:
  using JoiningSetup::JoiningSetup;

  Status begin() {
    auto context = opened_.context();
    if (!context) return context.status();
    auto background = opened_.environment().background();
    if (!background) return background.status();
    auto joining = Joining::offer(std::move(*context), opened_.environment().arena, **background);
    if (!joining) return joining.status();
    joining_ = std::move(*joining);
    wire::encode(frame_, joining_->frame());
    return {};
  }

 private:
  enum class Step : uint8_t { kOffer, kAnswer, kConnect, kReady };

  Result<Next> go_on(int socket) override {
    if (step_ == Step::kOffer) {
      const auto sent = send(socket, wire::kVerbsOfferSize);
      if (!sent) return sent.status();
      if (!*sent) return Next::kWrite;
      step_ = Step::kAnswer;
    }
    if (step_ == Step::kAnswer) {
      const auto received = receive(socket, wire::kVerbsOfferSize);
      if (!received) return received.status();
      if (!*received) return Next::kRead;
      step_ = Step::kConnect;
      return Next::kBlocking;
    }
    if (step_ == Step::kConnect) return Next::kBlocking;
    const auto sent = send(socket, wire::kVerbsReadySize);
    if (!accepted_.ok()) return accepted_;
    if (!sent) return sent.status();
    return *sent ? Next::kDone : Next::kWrite;
  }
  // The kernel may look for an address for a second for each queue pair.
  void run_blocking() override {
    const auto answer = wire::decode_verbs_offer(frame_);
    accepted_ = answer ? joining_->accept(*answer) : answer.status();
    wire::VerbsReady ready;
    ready.code = static_cast<uint32_t>(accepted_.code());
    wire::encode(std::span<std::byte, wire::kVerbsReadySize>(frame_.data(), wire::kVerbsReadySize),
                 ready);
    step_ = Step::kReady;
  }
  Result<Made> become(Fd socket) override { return Made{joining_->become(std::move(socket)), {}}; }

  Step step_ = Step::kOffer;
  Status accepted_;
};

class Acceptor final : public JoiningSetup {
 public:
  using JoiningSetup::JoiningSetup;

 private:
  enum class Step : uint8_t { kOffer, kJoin, kAnswer, kReady };

  Result<Next> go_on(int socket) override {
    if (step_ == Step::kOffer) {
      const auto received = receive(socket, wire::kVerbsOfferSize);
      if (!received) return received.status();
      if (!*received) return Next::kRead;
      const auto offer = wire::decode_verbs_offer(frame_);
      if (!offer) return offer.status();
      if (offer->code != 0) return broken();
      offer_ = *offer;
      step_ = Step::kJoin;
    }
    if (step_ == Step::kJoin) return Next::kBlocking;
    if (step_ == Step::kAnswer) {
      const auto sent = send(socket, wire::kVerbsOfferSize);
      if (!sent) return sent.status();
      if (!*sent) return Next::kWrite;
      if (!joining_) return refusal_;
      step_ = Step::kReady;
    }
    const auto received = receive(socket, wire::kVerbsReadySize);
    if (!received) return received.status();
    if (!*received) return Next::kRead;
    const auto ready = wire::decode_verbs_ready(ready_frame());
    if (!ready) return ready.status();
    if (ready->code != 0) return broken();
    return Next::kDone;
  }
  // Opens devices, and brings queue pairs up.
  void run_blocking() override {
    wire::VerbsOffer out;
    out.code = static_cast<uint32_t>(Code::kFailedPrecondition);
    auto context = opened_.context();
    auto background = opened_.environment().background();
    Status why;
    if (!context) {
      why = context.status();
    } else if (!background) {
      why = background.status();
    } else {
      auto joining = Joining::answer(*context, opened_.environment().arena, **background, offer_);
      if (joining) {
        out = (*joining)->frame();
        joining_ = std::move(*joining);
      } else {
        out = refusal(joining.status().code(), context->get());
        why = joining.status();
      }
    }
    // The client is told, whatever it is.
    refusal_ = {Code::kFailedPrecondition, why.details()};
    wire::encode(frame_, out);
    step_ = Step::kAnswer;
  }
  Result<Made> become(Fd socket) override { return Made{joining_->become(std::move(socket)), {}}; }

  static Status broken() {
    return {Code::kInternal, "protocol error: what should set up RDMA does not"};
  }

  Step step_ = Step::kOffer;
  wire::VerbsOffer offer_;
  Status refusal_;
};

#endif  // TENSORWIRE_VERBS

Facts none(std::string why) { return {{"why_not", std::move(why)}}; }

// What the settings name, whether it is there or not.
Fact named_devices(const Settings& settings) {
  Facts named;
  for (const std::string& entry : settings.devices)
    if (const auto port = named_port(entry)) named.emplace_back("", std::string(port->device));
  return {"named", Fact::Kind::kList, std::move(named)};
}

class VerbsKind final : public Kind {
 public:
  explicit VerbsKind(const TransportEnvironment& environment)
      : settings_{environment.settings}
#ifdef TENSORWIRE_VERBS
        ,
        opened_(environment, settings_)
#endif
  {
  }

  std::string_view name() const override { return "verbs"; }
  uint16_t code() const override { return 3; }
  Socket socket() const override { return Socket::kTcp; }
  bool fragile() const override { return true; }
  bool lends() const override { return true; }
  Status read_settings() override { return verbs::read_settings(settings_); }
  void each_setting(const VisitSetting& visit) const override {
    verbs::each_setting(settings_, visit);
  }

#ifdef TENSORWIRE_VERBS
  Status why_not() override {
    const auto context = opened_.context();
    if (!context) return context.status();
    // Devices go away, too.
    const auto rails = (*context)->rails();
    return rails ? Status{} : rails.status();
  }
  Result<std::unique_ptr<Setup>> offer(const Meeting&) override {
    auto setup = std::make_unique<Connector>(opened_);
    if (Status status = setup->begin(); !status.ok()) return status;
    return std::unique_ptr<Setup>(std::move(setup));
  }
  Result<std::unique_ptr<Setup>> accept(const Meeting&) override {
    return std::unique_ptr<Setup>(new Acceptor(opened_));
  }
  void slabs_dropped() override {
    if (const auto context = opened_.present()) context->slabs_dropped();
  }
#else
  // Built without the header: the library says so.
  Status why_not() override { return Library::get().status(); }
  Result<std::unique_ptr<Setup>> offer(const Meeting&) override { return why_not(); }
  Result<std::unique_ptr<Setup>> accept(const Meeting&) override { return why_not(); }
#endif
  Facts facts() override {
    Facts found = of_devices();
    found.push_back(named_devices(settings_));
    return found;
  }

 private:
  Facts of_devices() {
#ifdef TENSORWIRE_VERBS
    if (const auto library = Library::get()) return verbs::facts(**library, settings_);
#endif
    return none(Library::get().status().details());
  }

  Settings settings_;
#ifdef TENSORWIRE_VERBS
  Opened opened_;
#endif
};

}  // namespace

std::unique_ptr<Kind> make_kind(const TransportEnvironment& environment) {
  return std::make_unique<VerbsKind>(environment);
}

}  // namespace tw::verbs

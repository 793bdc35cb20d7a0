// SPDX-License-Identifier: Apache-2.0
// The handshake of a data connection as two state machines without I/O: bytes in, bytes out.
//
// The driver of either machine loops until finished():
//   bytes in outgoing()  -> send some, call sent(count)
//   else                 -> read at most space().size() bytes into space(), call received(count),
//                           or closed() at end of file
// space() is never longer than what is left of the one frame that is due, so that not a byte of
// what follows the handshake is taken. Time limits are the driver's.
//
// The server proves first: who does not know the secret learns nothing from a client.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "engine/audit.h"
#include "meet/admissions.h"
#include "meet/secret.h"
#include "wire/handshake_frames.h"
#include "wire/hello.h"

namespace tw::meet {

// The states of both machines; each uses its own ones.
enum class HandshakeState : uint8_t {
  kSendOpen,          // client
  kAwaitServerProof,  // client
  kSendClientProof,   // client
  kAwaitReady,        // client
  kAwaitOpen,         // server
  kSendServerProof,   // server
  kAwaitClientProof,  // server
  kSendReady,         // server
  kSendRefusal,       // server; in place of kSendServerProof or kSendReady
  kDone,
  kFailed,
};

std::string_view name(HandshakeState state);

// What both machines share: one frame coming in or one going out, and how it ended.
class Handshake {
 public:
  virtual ~Handshake() = default;
  Handshake(const Handshake&) = delete;
  Handshake& operator=(const Handshake&) = delete;

  HandshakeState state() const { return state_; }
  bool done() const { return state_ == HandshakeState::kDone; }
  bool finished() const { return done() || state_ == HandshakeState::kFailed; }
  // Why it failed, or is about to once its refusal is sent; ok until then. The codes are listed at
  // each machine. A misuse by the driver is INTERNAL, "local error: ...".
  const Status& failure() const { return failure_; }

  std::span<const std::byte> outgoing() const;
  // Ok, or a misuse.
  Status sent(size_t count);
  // Empty while something is to be sent, and in the end.
  std::span<std::byte> space();
  // Ok, or the failure, or a misuse. Also ok when a server is going to refuse: it has an answer to
  // send first.
  Status received(size_t count);
  // The peer closed the connection: fails with UNAVAILABLE unless finished.
  void closed();

  // The version and the transport that were agreed on; good once done.
  uint16_t version() const { return transcript_.version; }
  uint16_t transport() const { return transcript_.transport; }
  const wire::SessionId& session() const { return transcript_.session; }

 protected:
  // Besides these any state may fail().
  enum class HandshakeEvent : uint8_t { kSent, kGood, kRefuse };
  struct Transition {
    HandshakeState from;
    HandshakeEvent event;
    HandshakeState to;
  };

  Handshake(HandshakeState first, std::span<const Transition> table);

  // The frame that was due has arrived in frame().
  virtual void on_frame() = 0;
  // To the state that the table says; clears frame() for it.
  void advance(HandshakeEvent event);
  void fail(Status why);
  // Sends `frame` in the state that has just been entered.
  template <class Frame>
  void send(const Frame& content) {
    size_ = sizeof content;
    wire::encode(std::span<std::byte, sizeof(Frame)>(frame_.data(), sizeof(Frame)), content);
  }
  template <size_t kSize>
  std::span<const std::byte, kSize> frame() const {
    return std::span<const std::byte, kSize>(frame_.data(), kSize);
  }

  Transcript transcript_;
  Status failure_;

 private:
  Status misuse(std::string_view what);

  const std::span<const Transition> table_;
  HandshakeState state_;
  std::array<std::byte, wire::kMaxHandshakeFrameSize> frame_{};
  size_t size_ = 0;     // of the frame that comes in or goes out
  size_t through_ = 0;  // bytes of it that have
};

// Fails with UNAUTHENTICATED (the server cannot prove the secret, or refuses ours), any code that
// the server refuses with, UNAVAILABLE (connection closed), INTERNAL (not our protocol).
class ClientHandshake final : public Handshake {
 public:
  // instance: of the server that minted the session. A peer that is another instance fails the
  // proof.
  ClientHandshake(uint16_t version, uint16_t transport, const wire::SessionId& session,
                  const wire::InstanceId& instance, const Secret& secret);

 private:
  static constexpr Transition kTable[] = {
      {HandshakeState::kSendOpen, HandshakeEvent::kSent, HandshakeState::kAwaitServerProof},
      {HandshakeState::kAwaitServerProof, HandshakeEvent::kGood, HandshakeState::kSendClientProof},
      {HandshakeState::kSendClientProof, HandshakeEvent::kSent, HandshakeState::kAwaitReady},
      {HandshakeState::kAwaitReady, HandshakeEvent::kGood, HandshakeState::kDone},
  };

  void on_frame() override;
  void on_server_proof();
  void on_ready();

  Secret secret_;
};

// Fails with UNAUTHENTICATED (session unknown, late or used up; the client cannot prove the
// secret), FAILED_PRECONDITION (version or transport), UNAVAILABLE (connection closed), INTERNAL
// (not our protocol). The sentence is for the log: the client learns the code and no more, and who
// does not speak the protocol gets no answer at all.
class ServerHandshake final : public Handshake {
 public:
  // transports: the codes of those that the connection may become, by where it arrived.
  // `admissions` outlives this object.
  ServerHandshake(std::vector<uint16_t> transports, const wire::InstanceId& instance,
                  Admissions& admissions);

  // The client has proved that it knows the secret: its session counts the connection, until
  // Admissions::settle() or give_back().
  bool admitted() const { return admitted_; }
  // Good once it is admitted.
  const Admissions::Guest& client() const { return client_; }
  // What failure() counts as.
  Incident incident() const {
    return failure().code() == Code::kUnavailable ? Incident::kHandshakeLeft : incident_;
  }

 private:
  static constexpr Transition kTable[] = {
      {HandshakeState::kAwaitOpen, HandshakeEvent::kGood, HandshakeState::kSendServerProof},
      {HandshakeState::kAwaitOpen, HandshakeEvent::kRefuse, HandshakeState::kSendRefusal},
      {HandshakeState::kSendServerProof, HandshakeEvent::kSent, HandshakeState::kAwaitClientProof},
      {HandshakeState::kAwaitClientProof, HandshakeEvent::kGood, HandshakeState::kSendReady},
      {HandshakeState::kAwaitClientProof, HandshakeEvent::kRefuse, HandshakeState::kSendRefusal},
      {HandshakeState::kSendRefusal, HandshakeEvent::kSent, HandshakeState::kFailed},
      {HandshakeState::kSendReady, HandshakeEvent::kSent, HandshakeState::kDone},
  };

  void on_frame() override;
  void on_open();
  void on_client_proof();
  // Frame: the one that the client waits for; its code tells it the refusal.
  template <class Frame>
  void refuse(Status why, Incident as = Incident::kHandshakeSetup) {
    Frame frame;
    frame.code = static_cast<uint32_t>(why.code());
    incident_ = as;
    failure_ = std::move(why);
    advance(HandshakeEvent::kRefuse);
    send(frame);
  }

  const std::vector<uint16_t> transports_;
  Admissions& admissions_;
  Secret secret_;
  Incident incident_ = Incident::kHandshakeGarbage;
  bool admitted_ = false;
  Admissions::Guest client_;
};

}  // namespace tw::meet

// The handshake of a data connection as two state machines without I/O: bytes in, bytes out.
//
// The driver of either machine loops until finished():
//   bytes in outgoing()  -> send some, call sent(count)
//   else                 -> read at most space().size() bytes into space(), call received(count),
//                           or closed() at end of file
// space() is never longer than what is left of the one frame that is due, so that not a byte of what follows the
// handshake is taken. Time limits are the driver's.
//
// The server proves first: who does not know the secret learns nothing from a client.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "base/status.h"
#include "link/admissions.h"
#include "link/secret.h"
#include "wire/handshake_frames.h"
#include "wire/hello.h"

namespace tw::link {

// The states of both machines; each uses its own ones.
enum class HandshakeState : uint8_t {
  kSendOpen,        // client
  kAwaitProof,      // client: for ServerProof
  kSendProof,       // client
  kAwaitReady,      // client
  kAwaitOpen,       // server
  kAnswerOpen,      // server: sends ServerProof
  kAwaitClientProof,  // server
  kSendReady,       // server
  kSendRefusal,     // server: the refusal is on its way, then kFailed
  kDone,
  kFailed,
};

std::string_view name(HandshakeState state);

// What both machines share: one frame coming in or one going out, and how it ended.
class Handshake {
 public:
  Handshake(const Handshake&) = delete;
  Handshake& operator=(const Handshake&) = delete;

  HandshakeState state() const { return state_; }
  bool done() const { return state_ == HandshakeState::kDone; }
  bool finished() const { return done() || state_ == HandshakeState::kFailed; }
  // Why it failed; ok until then. The codes are listed at each machine. A misuse by the driver
  // is INTERNAL, "local error: ...".
  const Status& failure() const { return failure_; }

  std::span<const std::byte> outgoing() const;
  Status sent(size_t count);
  // Empty while something is to be sent, and in the end.
  std::span<std::byte> space();
  // Ok, or the failure. Also ok when a server is going to refuse: it has an answer to send first.
  Status received(size_t count);
  // The peer closed the connection: UNAVAILABLE unless finished.
  void closed();

  // The version and the transport that were agreed on; good once done.
  uint16_t version() const { return transcript_.version; }
  const wire::SessionId& session() const { return transcript_.session; }

 protected:
  enum class Event : uint8_t { kSent, kGood, kRefuse, kBad };
  struct Transition {
    HandshakeState from;
    Event event;
    HandshakeState to;
  };

  Handshake(HandshakeState first, std::span<const Transition> table)
      : table_(table), state_(first) {}
  ~Handshake() = default;

  // A whole frame is in frame().
  virtual void on_frame() = 0;
  // The state after `event`, as the table says; called before a frame for that state is made.
  void advance(Event event);
  void expect(size_t size);
  std::span<std::byte> make(size_t size);
  void fail(Status why);

  template <size_t kSize>
  std::span<std::byte, kSize> frame() {
    return std::span<std::byte, kSize>(frame_.data(), kSize);
  }

  Transcript transcript_;
  Status failure_;

 private:
  std::span<const Transition> table_;
  HandshakeState state_;
  std::array<std::byte, wire::kMaxHandshakeFrameSize> frame_{};
  size_t size_ = 0;     // of the frame that comes in or goes out
  size_t through_ = 0;  // bytes of it that have
  bool sending_ = false;
};

// Fails with UNAUTHENTICATED (the server cannot prove the secret, or refuses ours), any code that the server
// refuses with, UNAVAILABLE (connection closed), INTERNAL (not our protocol).
class ClientHandshake final : public Handshake {
 public:
  // instance: of the server that minted the session. A peer that is another instance fails the proof.
  ClientHandshake(uint16_t version, wire::Transport transport, const wire::SessionId& session,
                  const wire::InstanceId& instance, const Secret& secret);

 private:
  void on_frame() override;
  Secret secret_;
};

// Fails with UNAUTHENTICATED (session unknown, late or used up; the client cannot prove the secret),
// FAILED_PRECONDITION (version or transport), UNAVAILABLE (connection closed), INTERNAL (not our protocol). The
// sentence is for the log: the client learns the code and no more, and who does not speak the
// protocol gets no answer at all.
class ServerHandshake final : public Handshake {
 public:
  // transport: of the listener on which the connection arrived. `admissions` outlives this object.
  ServerHandshake(wire::Transport transport, const wire::InstanceId& instance,
                  Admissions& admissions);

  // Refuses the client for a reason that lies outside of the handshake (another user on the socket, too many
  // connections). Only while waiting for the client.
  void refuse(Status why);

 private:
  void on_frame() override;
  void on_open();
  void on_client_proof();

  const wire::Transport transport_;
  Admissions& admissions_;
  Secret secret_;
};

}  // namespace tw::link

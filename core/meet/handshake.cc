// SPDX-License-Identifier: Apache-2.0
#include "meet/handshake.h"

#include <algorithm>
#include <string>

#include "base/random.h"
#include "base/sha256.h"
#include "base/text.h"

namespace tw::meet {
namespace {

using State = HandshakeState;

// The length of the frame that a state waits for; zero for the others.
constexpr size_t awaited_size(State state) {
  switch (state) {
    case State::kAwaitServerProof:
      return wire::kServerProofSize;
    case State::kAwaitReady:
      return wire::kServerReadySize;
    case State::kAwaitOpen:
      return wire::kClientOpenSize;
    case State::kAwaitClientProof:
      return wire::kClientProofSize;
    default:
      return 0;
  }
}

Status refused_by_server(uint32_t code) {
  return {static_cast<Code>(code),
          text({"the server refused the connection with status ", code,
                "; its log says why (a session serves once and not for long)"})};
}

}  // namespace

std::string_view name(HandshakeState state) {
  static constexpr std::string_view kNames[] = {"send-open",
                                                "await-server-proof",
                                                "send-client-proof",
                                                "await-ready",
                                                "await-open",
                                                "send-server-proof",
                                                "await-client-proof",
                                                "send-ready",
                                                "send-refusal",
                                                "done",
                                                "failed"};
  static_assert(std::size(kNames) == static_cast<size_t>(State::kFailed) + 1);
  return kNames[static_cast<size_t>(state)];
}

// ---- what both ends share ----

Handshake::Handshake(HandshakeState first, std::span<const Transition> table)
    : table_(table), state_(first), size_(awaited_size(first)) {}

std::span<const std::byte> Handshake::outgoing() const {
  if (finished() || awaited_size(state_) != 0) return {};
  return std::span(frame_).subspan(through_, size_ - through_);
}

std::span<std::byte> Handshake::space() {
  if (awaited_size(state_) == 0) return {};
  return std::span(frame_).subspan(through_, size_ - through_);
}

Status Handshake::sent(size_t count) {
  if (count > outgoing().size()) return misuse("more bytes sent than were to be sent");
  through_ += count;
  if (count != 0 && through_ == size_) advance(HandshakeEvent::kSent);
  return {};
}

Status Handshake::received(size_t count) {
  if (count > space().size()) return misuse("more bytes received than there was space for");
  through_ += count;
  if (count != 0 && through_ == size_) on_frame();
  return state_ == State::kFailed ? failure_ : Status();
}

void Handshake::closed() {
  if (finished()) return;
  fail({Code::kUnavailable,
        text({"the peer closed the connection during the handshake, in state ", name(state_)})});
}

void Handshake::advance(HandshakeEvent event) {
  for (const Transition& row : table_) {
    if (row.from != state_ || row.event != event) continue;
    state_ = row.to;
    size_ = awaited_size(state_);
    through_ = 0;
    return;
  }
  fail(misuse("an event that its state does not know"));
}

void Handshake::fail(Status why) {
  // A refusal that could not be delivered keeps the reason for which it was made.
  if (failure_.ok()) failure_ = std::move(why);
  state_ = State::kFailed;
}

Status Handshake::misuse(std::string_view what) {
  return {Code::kInternal,
          text({"local error: ", what, ", in state ", name(state_), " of the handshake"})};
}

// ---- the client ----

ClientHandshake::ClientHandshake(uint16_t version, uint16_t transport,
                                 const wire::SessionId& session, const wire::InstanceId& instance,
                                 const Secret& secret)
    : Handshake(State::kSendOpen, kTable), secret_(secret) {
  transcript_ = {version, transport, session, instance, {}, {}};
  if (Status s = fill_random(transcript_.client_nonce); !s.ok()) {
    fail(std::move(s));
    return;
  }
  wire::ClientOpen open;
  open.version = version;
  open.transport = transport;
  open.session = session;
  open.nonce = transcript_.client_nonce;
  send(open);
}

void ClientHandshake::on_frame() {
  if (state() == State::kAwaitServerProof) {
    on_server_proof();
  } else {
    on_ready();
  }
  if (finished()) secret_.wipe();
}

void ClientHandshake::on_server_proof() {
  const auto answer = wire::decode_server_proof(frame<wire::kServerProofSize>());
  if (!answer.ok()) return fail(answer.status());
  if (answer->code != 0) return fail(refused_by_server(answer->code));
  transcript_.server_nonce = answer->nonce;
  if (!same_digest(answer->proof, prove(secret_, kServerLabel, transcript_))) {
    return fail({Code::kUnauthenticated,
                 "the server cannot prove that it minted this session: another process, or another "
                 "instance of the server, listens at its data address"});
  }
  wire::ClientProof own;
  own.proof = prove(secret_, kClientLabel, transcript_);
  advance(HandshakeEvent::kGood);
  send(own);
}

void ClientHandshake::on_ready() {
  const auto ready = wire::decode_server_ready(frame<wire::kServerReadySize>());
  if (!ready.ok()) return fail(ready.status());
  if (ready->code != 0) return fail(refused_by_server(ready->code));
  advance(HandshakeEvent::kGood);
}

// ---- the server ----

namespace {

// "1, 4"
std::string listed(const std::vector<uint16_t>& codes) {
  std::string out;
  for (const uint16_t code : codes) out += (out.empty() ? "" : ", ") + std::to_string(code);
  return out;
}

}  // namespace

ServerHandshake::ServerHandshake(std::vector<uint16_t> transports, const wire::InstanceId& instance,
                                 Admissions& admissions)
    : Handshake(State::kAwaitOpen, kTable),
      transports_(std::move(transports)),
      admissions_(admissions) {
  transcript_.instance = instance;
}

void ServerHandshake::on_frame() {
  if (state() == State::kAwaitOpen) {
    on_open();
  } else {
    on_client_proof();
    secret_.wipe();
  }
}

void ServerHandshake::on_open() {
  const auto open = wire::decode_client_open(frame<wire::kClientOpenSize>());
  if (!open.ok()) return fail(open.status());
  transcript_.version = open->version;
  transcript_.transport = open->transport;
  transcript_.session = open->session;
  transcript_.client_nonce = open->nonce;
  if (open->version < wire::kLowestVersion || open->version > wire::kHighestVersion) {
    return refuse<wire::ServerProof>(
        {Code::kFailedPrecondition, text({"the client opens with version ", open->version,
                                          " of the wire format; this server "
                                          "speaks ",
                                          wire::kLowestVersion, " to ", wire::kHighestVersion})},
        Incident::kHandshakeVersion);
  }
  if (std::find(transports_.begin(), transports_.end(), open->transport) == transports_.end()) {
    return refuse<wire::ServerProof>(
        {Code::kFailedPrecondition, text({"the client expects transport ", open->transport,
                                          ", and this server offers ", listed(transports_)})},
        Incident::kHandshakeVersion);
  }
  Result<Secret> secret = admissions_.find(open->session);
  if (!secret.ok()) return refuse<wire::ServerProof>(secret.status(), Incident::kHandshakeSession);
  secret_ = std::move(*secret);
  if (Status s = fill_random(transcript_.server_nonce); !s.ok()) {
    return refuse<wire::ServerProof>(std::move(s));
  }
  wire::ServerProof answer;
  answer.nonce = transcript_.server_nonce;
  answer.proof = prove(secret_, kServerLabel, transcript_);
  advance(HandshakeEvent::kGood);
  send(answer);
}

void ServerHandshake::on_client_proof() {
  const auto own = wire::decode_client_proof(frame<wire::kClientProofSize>());
  if (!own.ok()) return fail(own.status());
  if (!same_digest(own->proof, prove(secret_, kClientLabel, transcript_))) {
    return refuse<wire::ServerReady>(
        {Code::kUnauthenticated, "the client knows the id of a session, but not its secret"},
        Incident::kHandshakeProof);
  }
  auto client = admissions_.admit(transcript_.session);
  if (!client.ok()) return refuse<wire::ServerReady>(client.status(), Incident::kHandshakeSession);
  admitted_ = true;
  client_ = std::move(*client);
  advance(HandshakeEvent::kGood);
  send(wire::ServerReady{});
}

}  // namespace tw::meet

// SPDX-License-Identifier: Apache-2.0
#include "meet/handshake.h"

#include <functional>

#include "test/wire/support.h"

namespace tw::meet {
namespace {

using test::Bytes;
using test::check_says;
using test::Random;
constexpr uint16_t kOffered = 2, kUnknown = 3;  // codes of transports
using State = HandshakeState;

constexpr wire::InstanceId kInstance = {1, 2, 3};

// Two machines joined by a link that can change what passes.
struct Pair {
  explicit Pair(uint16_t transport = kOffered, int connections = 1)
      : ticket(*admissions.mint(connections, 30 * kSecond)),
        client(1, transport, ticket.session, kInstance, ticket.secret),
        server({kOffered}, kInstance, admissions) {}

  Admissions admissions;
  Admissions::Ticket ticket;
  ClientHandshake client;
  ServerHandshake server;
};

// Moves up to `most` bytes; `change` sees each byte and its position in the direction's stream.
using Change = std::function<void(size_t position, std::byte& byte)>;

size_t move(Handshake& from, Handshake& to, size_t& position, size_t most, const Change& change) {
  const auto out = from.outgoing();
  const auto in = to.space();
  const size_t count = std::min({out.size(), in.size(), most});
  for (size_t i = 0; i < count; ++i) {
    in[i] = out[i];
    if (change) change(position++, in[i]);
  }
  if (count == 0) return 0;
  CHECK(from.sent(count).ok());
  const Status status = to.received(count);
  CHECK(status.code() == (to.state() == State::kFailed ? to.failure().code() : Code::kOk));
  return count;
}

void run(Handshake& client, Handshake& server, const std::function<size_t()>& most = {},
         const Change& to_server = {}, const Change& to_client = {}) {
  size_t up = 0;
  size_t down = 0;
  const auto some = [&] { return most ? most() : SIZE_MAX; };
  while (move(client, server, up, some(), to_server) != 0 ||
         move(server, client, down, some(), to_client) != 0) {
  }
  // As the sockets would: whoever has ended closes, and the other one sees it.
  if (server.finished()) client.closed();
  if (client.finished()) server.closed();
}

TEST_CASE("two ends that know the secret come together") {
  Pair pair;
  run(pair.client, pair.server);
  CHECK(pair.client.done());
  CHECK(pair.server.done());
  CHECK(pair.client.failure().ok());
  CHECK(pair.server.version() == 1);
  CHECK(pair.server.session() == pair.ticket.session);
  CHECK(pair.server.outgoing().empty());
  CHECK(pair.client.space().empty());
}

TEST_CASE("bytes may come in any portions") {
  Random random(1);
  for (int round = 0; round < 200; ++round) {
    Pair pair;
    run(pair.client, pair.server, [&] { return 1 + random.up_to(20); });
    CHECK(pair.client.done());
    CHECK(pair.server.done());
  }
}

TEST_CASE("neither end has space for bytes that follow the handshake") {
  Pair pair;
  const size_t sizes[] = {wire::kClientOpenSize, wire::kServerProofSize, wire::kClientProofSize,
                          wire::kServerReadySize};
  Handshake* ends[] = {&pair.client, &pair.server};
  size_t position = 0;
  for (int step = 0; step < 4; ++step) {
    Handshake& from = *ends[step % 2];
    Handshake& to = *ends[1 - step % 2];
    CHECK(from.space().empty());
    CHECK(to.outgoing().empty());
    CHECK(from.outgoing().size() == sizes[step]);
    CHECK(to.space().size() == sizes[step]);
    move(from, to, position, SIZE_MAX, {});
  }
  CHECK(pair.client.done());
  CHECK(pair.server.done());
}

TEST_CASE("any changed byte ends the handshake at both ends, and admits nothing") {
  for (size_t at = 0; at < wire::kClientOpenSize + wire::kClientProofSize; ++at) {
    Pair pair;
    run(pair.client, pair.server, {},
        [at](size_t position, std::byte& byte) { byte ^= std::byte{position == at}; });
    INFO("byte " << at << " to the server");
    CHECK(pair.client.state() == State::kFailed);
    CHECK(pair.server.state() == State::kFailed);
    CHECK_FALSE(pair.server.failure().ok());
    CHECK(pair.admissions.find(pair.ticket.session).ok());
  }
  for (size_t at = 0; at < wire::kServerProofSize; ++at) {
    Pair pair;
    run(pair.client, pair.server, {}, {},
        [at](size_t position, std::byte& byte) { byte ^= std::byte{position == at}; });
    INFO("byte " << at << " to the client");
    CHECK(pair.client.state() == State::kFailed);
    CHECK(pair.server.state() == State::kFailed);
    CHECK(pair.admissions.find(pair.ticket.session).ok());
  }
}

TEST_CASE("a client is not done before it has a good ServerReady") {
  for (size_t at = 0; at < wire::kServerReadySize; ++at) {
    Pair pair;
    run(pair.client, pair.server, {}, {}, [at](size_t position, std::byte& byte) {
      byte ^= std::byte{position == wire::kServerProofSize + at};
    });
    INFO("byte " << at << " of ServerReady");
    CHECK(pair.client.state() == State::kFailed);
    CHECK_FALSE(pair.client.failure().ok());
    CHECK(pair.server.done());
  }
}

TEST_CASE("a client never shows a proof to a server that has none") {
  Pair pair;
  Admissions other;
  ServerHandshake impostor({kOffered}, kInstance, other);
  size_t position = 0;
  move(pair.client, impostor, position, SIZE_MAX, {});
  // What an impostor can say: a well-formed proof of something else.
  wire::ServerProof made_up;
  made_up.nonce = {7};
  made_up.proof = {8};
  wire::encode(pair.client.space().first<wire::kServerProofSize>(), made_up);
  check_says(pair.client.received(wire::kServerProofSize), Code::kUnauthenticated,
             {"cannot prove", "another"});
  CHECK(pair.client.outgoing().empty());
}

TEST_CASE("another instance of the server fails the proof") {
  Pair pair;
  ServerHandshake other({kOffered}, {9, 9, 9}, pair.admissions);
  run(pair.client, other);
  check_says(pair.client.failure(), Code::kUnauthenticated, {"another instance"});
  check_says(other.failure(), Code::kUnavailable, {"closed", "await-client-proof"});
}

TEST_CASE("a client without the secret is refused, and learns the code only") {
  Pair pair;
  // It knows the session and a proof of the server's, which it replays as its own.
  size_t position = 0;
  move(pair.client, pair.server, position, SIZE_MAX, {});
  const auto proof = wire::decode_server_proof(
      std::span<const std::byte, wire::kServerProofSize>(pair.server.outgoing()));
  REQUIRE(proof.ok());
  REQUIRE(pair.server.sent(wire::kServerProofSize).ok());
  wire::ClientProof replay;
  replay.proof = proof->proof;
  wire::encode(pair.server.space().first<wire::kClientProofSize>(), replay);
  CHECK(pair.server.received(wire::kClientProofSize).ok());
  CHECK(pair.server.state() == State::kSendRefusal);
  CHECK_FALSE(pair.server.finished());
  const auto answer = wire::decode_server_ready(
      std::span<const std::byte, wire::kServerReadySize>(pair.server.outgoing()));
  REQUIRE(answer.ok());
  CHECK(answer->code == 16);
  CHECK(pair.server.sent(wire::kServerReadySize).ok());
  check_says(pair.server.failure(), Code::kUnauthenticated, {"not its secret"});
}

// The client's end of a refusal, and what the server's log says.
void check_refused(Pair& pair, ServerHandshake& server, Code code, std::string_view why) {
  run(pair.client, server);
  CHECK(server.state() == State::kFailed);
  check_says(server.failure(), code, {why});
  check_says(pair.client.failure(), code,
             {"refused", "status " + std::to_string(static_cast<int>(code))});
  CHECK(pair.client.failure().details().find(why) == std::string::npos);
}

TEST_CASE("refusals reach the client as a code") {
  SUBCASE("session of another server") {
    Pair pair;
    Admissions other;
    ServerHandshake server({kOffered}, kInstance, other);
    check_refused(pair, server, Code::kUnauthenticated, "never minted");
  }
  SUBCASE("session used up") {
    Pair pair;
    REQUIRE(pair.admissions.admit(pair.ticket.session).ok());
    check_refused(pair, pair.server, Code::kUnauthenticated, "used up");
  }
  SUBCASE("session late") {
    Pair pair;
    REQUIRE(pair.admissions.mint(1, kSecond, now() + 31 * kSecond).ok());
    check_refused(pair, pair.server, Code::kUnauthenticated, "expired");
  }
  SUBCASE("another transport") {
    Pair pair(kUnknown);
    check_refused(pair, pair.server, Code::kFailedPrecondition, "expects transport 3");
  }
  SUBCASE("another version") {
    Pair pair;
    ClientHandshake client(wire::kHighestVersion + 1, kOffered, pair.ticket.session, kInstance,
                           pair.ticket.secret);
    run(client, pair.server);
    check_says(pair.server.failure(), Code::kFailedPrecondition, {"version 2"});
    check_says(client.failure(), Code::kFailedPrecondition, {"refused"});
  }
}

TEST_CASE("a session cannot be used twice, not even by two handshakes at once") {
  Pair pair;
  ClientHandshake second(1, kOffered, pair.ticket.session, kInstance, pair.ticket.secret);
  ServerHandshake second_server({kOffered}, kInstance, pair.admissions);
  size_t position = 0;
  move(second, second_server, position, SIZE_MAX, {});
  run(pair.client, pair.server);
  CHECK(pair.server.done());
  run(second, second_server);
  check_says(second_server.failure(), Code::kUnauthenticated, {"used up"});
  check_says(second.failure(), Code::kUnauthenticated, {"refused"});
}

TEST_CASE("a recorded handshake cannot be played again") {
  Pair pair(kOffered, 2);
  Bytes recorded;
  run(pair.client, pair.server, {}, [&](size_t, std::byte& byte) { recorded.push_back(byte); });
  REQUIRE(pair.server.done());
  ServerHandshake again({kOffered}, kInstance, pair.admissions);
  std::span<const std::byte> left = recorded;
  while (!again.finished()) {
    if (const size_t count = again.outgoing().size()) {
      REQUIRE(again.sent(count).ok());
      continue;
    }
    const size_t count = again.space().size();
    std::copy_n(left.begin(), count, again.space().begin());
    left = left.subspan(count);
    REQUIRE(again.received(count).ok());
  }
  check_says(again.failure(), Code::kUnauthenticated, {"not its secret"});
  CHECK(pair.admissions.find(pair.ticket.session).ok());
}

TEST_CASE("who does not speak the protocol gets no answer") {
  Pair pair;
  const Bytes request = test::as_bytes(
      "GET / HTTP/1.1\r\nHost: localhost\r\nAccept: text/html, */*\r\n"
      "Connection: close\r\n\r\n");
  std::copy_n(request.begin(), wire::kClientOpenSize, pair.server.space().begin());
  check_says(pair.server.received(wire::kClientOpenSize), Code::kInternal,
             {"ClientOpen", "magic is 'GET / HT'"});
  CHECK(pair.server.finished());
  CHECK(pair.server.outgoing().empty());
}

TEST_CASE("loss at any byte is noticed, with the state in which it happened") {
  for (size_t pass = 0;; ++pass) {
    Pair pair;
    size_t left = pass;
    size_t up = 0;
    size_t down = 0;
    while (left > 0) {
      size_t moved = move(pair.client, pair.server, up, 1, {});
      if (moved == 0) moved = move(pair.server, pair.client, down, 1, {});
      if (moved == 0) break;
      --left;
    }
    if (left > 0) break;
    pair.client.closed();
    pair.server.closed();
    for (const Handshake* end : {static_cast<const Handshake*>(&pair.client),
                                 static_cast<const Handshake*>(&pair.server)}) {
      if (end->done()) continue;
      CHECK(end->state() == State::kFailed);
      check_says(end->failure(), Code::kUnavailable, {"closed the connection", "in state "});
    }
    // The server is done one step before the client, and only when it has sent everything.
    if (pair.client.done()) CHECK(pair.server.done());
  }
}

TEST_CASE("misuse by the driver is told apart from what the peer did") {
  Pair pair;
  check_says(pair.client.received(1), Code::kInternal, {"local error", "send-open"});
  check_says(pair.client.sent(wire::kClientOpenSize + 1), Code::kInternal, {"local error"});
  check_says(pair.server.sent(1), Code::kInternal, {"local error", "await-open"});
  check_says(pair.server.received(wire::kClientOpenSize + 1), Code::kInternal, {"local error"});
  CHECK(pair.client.failure().ok());
  run(pair.client, pair.server);
  CHECK(pair.client.done());
  check_says(pair.server.sent(1), Code::kInternal, {"local error", "done"});
  pair.server.closed();
  CHECK(pair.server.done());
}

TEST_CASE("every state has a name") {
  for (int state = 0; state <= static_cast<int>(State::kFailed); ++state) {
    CHECK_FALSE(name(static_cast<State>(state)).empty());
  }
}

}  // namespace
}  // namespace tw::meet

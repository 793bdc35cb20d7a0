// SPDX-License-Identifier: Apache-2.0
// The handshake: strangers get nowhere, changed bytes are noticed, and neither end ever takes more
// bytes than one frame.
#include "meet/handshake.h"

#include <algorithm>

#include "fuzz/fuzz.h"
#include "transport/shm/wire.h"
#include "transport/verbs/wire.h"

namespace tw::meet {
namespace {

using fuzz::Bytes;
using fuzz::require;
using fuzz::require_sentence;

constexpr wire::InstanceId kInstance = {1};
constexpr uint16_t kTransport = 2;

struct Pair {
  Admissions admissions;
  Admissions::Ticket ticket = *admissions.mint(1, 30 * kSecond);
  ClientHandshake client{1, kTransport, ticket.session, kInstance, ticket.secret};
  ServerHandshake server{{kTransport}, kInstance, admissions};
};

// A stranger talks to one machine in portions of its choice.
void stranger(fuzz::Input& input, Handshake& machine) {
  while (!machine.finished()) {
    if (const auto out = machine.outgoing(); !out.empty()) {
      require(machine.sent(std::min<size_t>(out.size(), 1 + input.byte())).ok(),
              "sent is no misuse");
      continue;
    }
    if (input.empty()) {
      machine.closed();
      break;
    }
    const auto space = machine.space();
    require(!space.empty() && space.size() <= wire::kMaxHandshakeFrameSize, "one frame at a time");
    const Bytes portion = input.take(std::min<size_t>(space.size(), 1 + input.byte()));
    std::copy(portion.begin(), portion.end(), space.begin());
    const Status status = machine.received(portion.size());
    require(status.ok() || machine.finished(), "a failure is final");
  }
  require(!machine.done(), "a stranger gets nowhere");
  require(machine.outgoing().empty() && machine.space().empty(), "nothing after the end");
  require_sentence(machine.failure());
}

// Both machines talk to each other, but the input changes bytes on the way.
void meddler(fuzz::Input& input) {
  Pair pair;
  bool changed = false;
  Handshake* from = &pair.client;
  Handshake* to = &pair.server;
  int idle = 0;
  while (idle < 2) {
    const size_t count = std::min(from->outgoing().size(), to->space().size());
    if (count > 0) {
      idle = 0;
      std::transform(from->outgoing().begin(),
                     from->outgoing().begin() + static_cast<ptrdiff_t>(count), to->space().begin(),
                     [&](std::byte byte) {
                       const uint8_t change = input.byte();
                       changed = changed || change != 0;
                       return byte ^ std::byte{change};
                     });
      require(from->sent(count).ok(), "sent is no misuse");
      const Status status = to->received(count);
      require(status.ok() || to->finished(), "a failure is final");
    } else {
      ++idle;
    }
    std::swap(from, to);
  }
  pair.client.closed();
  pair.server.closed();
  // Not each for itself: ServerReady proves nothing, so that a changed refusal can deceive a client
  // about a server that has hung up.
  require((pair.client.done() && pair.server.done()) == !changed,
          "the two come together exactly if nothing was changed");
  require(pair.server.done() == !pair.admissions.find(pair.ticket.session).ok(),
          "a session is used up exactly by a server that is done");
}

template <size_t kSize, class Decode>
void frame(fuzz::Input& input, Decode decode) {
  const Bytes bytes = input.take(kSize);
  const auto decoded = decode(std::span<const std::byte, kSize>(bytes));
  if (!decoded.ok()) return require_sentence(decoded.status());
  Bytes out(kSize);
  wire::encode(std::span<std::byte, kSize>(out), *decoded);
  require(out == bytes, "what was decoded encodes to the same bytes");
}

// Each value is a note.
void note(fuzz::Input& input) {
  uint32_t immediate = 0;
  for (int i = 0; i < 4; ++i) immediate = immediate << 8 | input.byte();
  const wire::SendNote note = wire::decode_note(immediate);
  require(wire::encode_note(note) == immediate, "a note encodes to the same value");
  require(note.credits < wire::kOwnSend, "credits have their bits only");
}

void one(fuzz::Input input) {
  switch (input.byte() % 12) {
    case 0: {
      Pair pair;
      return stranger(input, pair.server);
    }
    case 1: {
      Pair pair;
      return stranger(input, pair.client);
    }
    case 2:
      return meddler(input);
    case 3:
      return frame<wire::kClientOpenSize>(input, wire::decode_client_open);
    case 4:
      return frame<wire::kServerProofSize>(input, wire::decode_server_proof);
    case 5:
      return frame<wire::kClientProofSize>(input, wire::decode_client_proof);
    case 6:
      return frame<wire::kServerReadySize>(input, wire::decode_server_ready);
    case 7:
      return frame<wire::kShmFrameSize>(input, wire::decode_shm_frame);
    case 8:
      return frame<wire::kVerbsOfferSize>(input, wire::decode_verbs_offer);
    case 9:
      return frame<wire::kVerbsReadySize>(input, wire::decode_verbs_ready);
    case 10:
      return frame<wire::kVerbsNewsSize>(input, wire::decode_verbs_news);
    case 11:
      return note(input);
  }
}

}  // namespace
}  // namespace tw::meet

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  tw::meet::one({data, size});
  return 0;
}

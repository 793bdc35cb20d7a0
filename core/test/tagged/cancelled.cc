// SPDX-License-Identifier: Apache-2.0
// Receives that end while their message is coming into memory of theirs: nobody stores there any
// more, and the next receive gets the message as it was sent. And what a peer may have under way.
#include "base/shortage.h"
#include "tagged/port.h"
#include "test/call/world.h"
#include "test/message/forge.h"
#include "test/not_tried.h"
#include "test/shortage.h"

namespace tw::test {
namespace {

constexpr uint32_t kBytes = 256 << 10;
constexpr uint64_t kStream = wire::kTaggedStreams | 1;
constexpr std::byte kUsers{0x55};

// One end of a link whose peer says what the test makes it say.
struct Forged {
  Forged() : pair(Tcp::make()), port(create(std::move(pair.a))) {}
  static Ref<CallPort> create(std::unique_ptr<Transport> transport) {
    Peer peer;
    peer.address = "ipv4:127.0.0.1:1";
    auto made = CallPort::create(runtime(), std::move(transport), std::move(peer), 64 << 20);
    REQUIRE(made.ok());
    return std::move(*made);
  }
  void say(std::span<const std::byte> bytes) { test::say(*pair.b, bytes); }
  TaggedPort& tagged() { return port->tagged(); }
  InMessage take(TaggedReceive& receive) {
    REQUIRE(tagged().wait(receive, {patience()}) == Ended::kDone);
    REQUIRE_MESSAGE(receive.status().ok(), receive.status().details());
    InMessage message;
    REQUIRE(receive.take(message));
    return message;
  }

  TransportPair pair;
  Closing port;
};

// Memory of a user's, which outlives its receives.
struct Desk final {
  explicit Desk(size_t size) : bytes(size), buffer(posted()) {}
  Ref<PostedBuffer> posted() {
    struct Owner final : RefCounted {};
    return make_ref<PostedBuffer>(bytes.data(), bytes.size(), make_ref<Owner>());
  }
  // Until this byte has come.
  bool reached(size_t at) {
    return eventually([&] {
      const MutexLock lock(buffer->stores());
      return bytes[at] != std::byte{};
    });
  }
  void use() { std::ranges::fill(bytes, kUsers); }
  bool used() const {
    return std::ranges::all_of(bytes, [](std::byte each) { return each == kUsers; });
  }

  std::vector<std::byte> bytes;
  Ref<PostedBuffer> buffer;
};

// Without zeros.
std::vector<std::byte> text(size_t size, uint32_t seed) {
  std::vector<std::byte> bytes = bytes_of(size, seed);
  for (std::byte& each : bytes) each |= std::byte{1};
  return bytes;
}

// A message of kBytes in two chunks, and all of it.
struct Chunks {
  std::vector<std::byte> payload = text(kBytes, 7);
  Bytes head = message(kStream, 1, {{kBytes, wire::SegmentKind::kPush, {}}}, {}, {});
  Bytes first = chunk(0), second = chunk(kBytes / 2);
  Bytes chunk(uint32_t offset) const {
    Bytes frame = data(kStream, 1, 0, offset, kBytes / 2);
    std::ranges::copy(std::span(payload).subspan(offset, kBytes / 2),
                      frame.end() - ptrdiff_t{kBytes / 2});
    return frame;
  }
};

TEST_CASE("tagged: nobody stores in memory of a receive that was cancelled, and nothing is lost") {
  Forged forged;
  const Chunks chunks;
  Desk desk(kBytes + 100), other(kBytes);
  auto receive = forged.tagged().receive(1, desk.buffer).value();
  const auto cancel = [&] {
    REQUIRE(forged.tagged().cancel(*receive));
    desk.use();
  };
  Ref<TaggedReceive> next;
  SUBCASE("before it begins") {
    cancel();
    forged.say(chunks.head);
    forged.say(chunks.first);
    forged.say(chunks.second);
  }
  SUBCASE("in the middle of a chunk") {
    forged.say(chunks.head);
    const size_t half = chunks.first.size() / 2;
    forged.say(std::span(chunks.first).first(half));
    REQUIRE(desk.reached(half - 1024));
    SUBCASE("the next one is there") { next = forged.tagged().receive(1, other.buffer).value(); }
    SUBCASE("the next one comes later") {}
    cancel();
    forged.say(std::span(chunks.first).subspan(half));
    forged.say(chunks.second);
  }
  SUBCASE("between chunks") {
    forged.say(chunks.head);
    forged.say(chunks.first);
    REQUIRE(desk.reached(kBytes / 2 - 1));
    cancel();
    forged.say(chunks.second);
  }
  if (!next) next = forged.tagged().receive(1).value();
  const InMessage message = forged.take(*next);
  REQUIRE(message.segments.size() == 1);
  CHECK(same(message.segments[0], chunks.payload));
  CHECK(desk.used());
  CHECK(forged.port->link().alive());
}

// Half of a message has come to a receive.
struct HalfCome {
  HalfCome() {
    forged.say(chunks.head);
    forged.say(chunks.first);
    REQUIRE(desk.reached(kBytes / 2 - 1));
  }
  const Chunks chunks;
  Desk desk{kBytes};
  Forged forged;
  const Ref<TaggedReceive> receive = forged.tagged().receive(1, desk.buffer).value();
};

TEST_CASE("tagged: a message that cannot be kept is refused to the next receive, and no other is") {
  if (!kFailsOnDemand)
    return not_tried("ThreadSanitizer insists on its own allocator: none fails on demand");
  HalfCome half;
  Forged& forged = half.forged;
  Desk& desk = half.desk;
  Failing failing(1);
  const bool cancelled = forged.tagged().cancel(*half.receive);
  REQUIRE(failing.end());
  REQUIRE(cancelled);
  desk.use();
  const auto next = forged.tagged().receive(1).value(), last = forged.tagged().receive(1).value();
  forged.say(half.chunks.second);
  REQUIRE(forged.tagged().wait(*next, {patience()}) == Ended::kDone);
  CHECK(next->status().code() == Code::kResourceExhausted);
  CHECK(desk.used());
  forged.say(message(kStream, 2, {{4, wire::SegmentKind::kInline, {}}}, {}, Bytes(4)));
  CHECK(forged.take(*last).payload_bytes == 4);
}

TEST_CASE("tagged: nobody stores in memory of a receive that has ended with its link") {
  HalfCome half;
  Forged& forged = half.forged;
  Desk& desk = half.desk;
  const auto ends = [&] {
    REQUIRE(forged.tagged().wait(*half.receive, {patience()}) == Ended::kDone);
    CHECK_FALSE(half.receive->status().ok());
    desk.use();
    forged.say(half.chunks.second);
  };
  SUBCASE("closed by this end") {
    // It stays for as long as there is something to send: the peer takes nothing.
    const std::vector<std::byte> unsent(64 << 20);
    std::vector list{out(unsent)};
    auto begun = forged.tagged().begin(2, list, {patience()});
    REQUIRE((begun.ok() && begun->has_value()));
    forged.port->link().close({Code::kCancelled, "the test is over"});
    ends();
    // What ends it comes behind the message.
    forged.say(data(kStream, 99, 0, 0, 1));
    REQUIRE(eventually([&] { return forged.port->link().lost(); }));
    (void)forged.tagged().withdraw(**begun);
  }
  SUBCASE("lost, so that nothing is kept of the message") {
    forged.pair.b.reset();
    REQUIRE(forged.tagged().wait(*half.receive, {patience()}) == Ended::kDone);
    CHECK(half.receive->status().code() == Code::kUnavailable);
    desk.use();
    const MutexLock lock(desk.buffer->stores());
    CHECK(desk.buffer->withdrawn());
    CHECK(desk.buffer->take_kept().first == nullptr);
  }
  SUBCASE("closed by the peer, whose message can still be asked for") {
    Bytes away(256);
    away.resize(
        static_cast<size_t>(wire::encode_goaway(away.data(), Code::kOk, "over") - away.data()));
    forged.say(away);
    ends();
    REQUIRE(eventually([&] { return forged.tagged().waiting() == 1; }));
    CHECK(
        same(forged.take(*forged.tagged().receive(1).value()).segments.at(0), half.chunks.payload));
  }
  CHECK(desk.used());
}

TEST_CASE("tagged: receives that are cancelled at any time leave their messages whole") {
  constexpr size_t kSize = 4 << 20, kDesks = 8;
  constexpr uint32_t kMessages = 24;
  auto pair = Tcp::make();
  const Closing here(Forged::create(std::move(pair.a))), there(Forged::create(std::move(pair.b)));
  const std::array payloads{text(kSize, 1), text(kSize, 2), text(kSize, 3)};
  const std::vector<std::byte> users(kSize, kUsers);
  std::atomic<uint32_t> asked{0};
  std::thread sender([&] {
    for (uint32_t i = 0; i < kMessages; ++i) {
      while (asked == i) std::this_thread::yield();
      std::vector list{out(payloads[i % payloads.size()])};
      CHECK(sent(here->tagged().send(1, list, {patience()})));
    }
  });
  uint32_t wrong = 0;
  std::mt19937 random(5);
  std::list<Desk> desks;
  const auto leave = [&](size_t most) {
    for (; desks.size() > most; desks.pop_front()) wrong += desks.front().bytes != users;
  };
  for (uint32_t taken = 0; taken < kMessages; leave(kDesks)) {
    Desk& desk = desks.emplace_back(kSize);
    const auto receive = there->tagged().receive(1, desk.buffer).value();
    asked = taken + 1;
    // Somewhere in the message, or before it has begun.
    const size_t at = random() % kSize;
    for (int looks = 0; looks < 20'000 && !receive->ended(); ++looks) {
      const MutexLock lock(desk.buffer->stores());
      if (desk.bytes[at] != std::byte{}) break;
    }
    if (there->tagged().cancel(*receive)) {
      desk.bytes.assign(kSize, kUsers);
      continue;
    }
    REQUIRE(receive->status().ok());
    InMessage message;
    REQUIRE(receive->take(message));
    wrong += !same(message.segments.at(0), payloads[taken++ % payloads.size()]);
    message = {};
    desks.pop_back();
  }
  sender.join();
  leave(0);
  CHECK(wrong == 0);
}

TEST_CASE("tagged: what is under way on all tags together counts in their one credit") {
  Forged forged;
  const uint64_t window = runtime().settings().stream_window_bytes;
  const auto begin = [&](uint64_t number) {
    forged.say(message(wire::kTaggedStreams | number, number,
                       {{window, wire::SegmentKind::kPush, {}}}, {}, {}));
  };
  begin(1);
  SUBCASE("one is announced") { begin(2); }
  SUBCASE("one comes at once") {
    // The largest does not count; the next ones do.
    for (uint64_t number = 2; number < 2 + window / kBytes; ++number)
      forged.say(message(wire::kTaggedStreams | number, number,
                         {{kBytes, wire::SegmentKind::kInline, {}}}, {}, Bytes(kBytes)));
  }
  SUBCASE("it was given up") {
    forged.say(abort(wire::kTaggedStreams | 1, 1));
    begin(2);
    forged.say(abort(wire::kTaggedStreams | 2, 2));
    begin(3);
    const auto receive = forged.tagged().receive(4).value();
    forged.say(message(wire::kTaggedStreams | 4, 4, {}, {}, {}));
    (void)forged.take(*receive);
    CHECK(forged.port->link().alive());
    return;
  }
  REQUIRE(eventually([&] { return !forged.port->link().alive(); }));
  const Status why = forged.port->link().death();
  CHECK_MESSAGE(why.details().find("without credit") != std::string::npos, why.details());
}

}  // namespace
}  // namespace tw::test

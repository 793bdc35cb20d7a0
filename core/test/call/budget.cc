// SPDX-License-Identifier: Apache-2.0
// What a hostile peer makes a server's process hold: at most twice what it has really sent, and
// 1 MiB.
#include <fstream>
#include <limits>

#include "test/call/helper.h"
#include "test/message/fake_link.h"
#include "test/message/forge.h"
#include "test/not_tried.h"
#include "test/sanitized.h"

namespace tw::test {
namespace {

using wire::SegmentKind;

constexpr size_t kSlack = 1 << 20;
constexpr uint8_t kStart = wire::call_flag::kStart, kPayload = wire::call_flag::kPayload,
                  kEnd = wire::call_flag::kEnd;

// Small enough for a reply to be copied into what waits to be sent.
constexpr size_t kPage = 10'000;

// Serves one call of a peer that may not take what it has asked for.
void serve(ServerCall& call, size_t& handled) {
  const std::vector<std::byte> page(kPage);
  if (call.method() == "/t/Hang") {
    (void)call.wait_ended(kForever);
  } else if (call.method() == "/t/Page") {
    answer(call, {out(page)});
  } else if (call.method() == "/t/Fail") {
    finish(call, Code::kAborted, std::string(kPage, '?'));
  } else if (call.method() == "/t/Stream") {
    while (send(call, {out(page)})) {
    }
    finish(call);
  } else if (call.method() == "/t/Expose") {
    AccessPort& access = call.port().access();
    std::array<std::byte, 64> memory{};
    Status refused;
    for (int i = 0; refused.ok() && i < 2'000'000; ++i) {
      const auto region = access.expose(memory.data(), memory.size(), kMayRead, {});
      if (!region)
        refused = region.status();
      else
        REQUIRE(access.conceal(*region).ok());
    }
    CHECK(refused.code() == Code::kResourceExhausted);
    finish(call);
  } else if (call.method() == "/t/Handled") {
    answer(call, {out(std::as_bytes(std::span(&handled, 1)))});
    return;
  } else {
    echo(call);
  }
  ++handled;
}

// A server with one worker. It is told how much memory it may use for replies.
TEST_CASE("helper: server that is busy" * doctest::skip()) {
  const auto bytes = std::to_string(read_thing<size_t>(kFromTest));
  REQUIRE(setenv("TENSORWIRE_BUFFER_BYTES", bytes.c_str(), 1) == 0);
  const bool any_unread = read_thing<bool>(kFromTest);
  const auto hello = read_thing<std::array<std::byte, wire::kHelloSize>>(kFromTest);
  size_t handled = 0;
  House house(
      [&](Ref<ServerCall> call) {
        serve(*call, handled);
        return Ref<ServerCall>{};
      },
      1);
  if (any_unread) house.server().limit_unread(std::numeric_limits<size_t>::max());
  const auto ticket =
      house.server().listener().admit(wire::decode_hello(hello).value(), 8, 60 * kSecond);
  REQUIRE(ticket.ok());
  for (const std::string& address : {house.tcp(), house.shm()}) {
    meet::Invitation in{address, ticket->session, ticket->secret, house.server().instance(),
                        runtime().hello()};
    write_thing(kToTest, invite(in));
  }
  char byte;
  (void)read(kFromTest, &byte, 1);  // until the test ends
}

// The bytes of a peer that speaks the protocol and means no good.
class Claimant {
 public:
  explicit Claimant(const Invite& invite) {
    meet::Invitation in{invite.address, invite.session, meet::Secret(invite.secret),
                        invite.instance, wire::decode_hello(invite.hello).value()};
    auto connected = meet::connect(runtime(), in, patience());
    REQUIRE_MESSAGE(connected.ok(), connected.status().details());
    transport_ = std::move(connected->transport);
  }

  // False: the server has hung up.
  bool says(const Bytes& bytes) {
    for (size_t at = 0; at < bytes.size();) {
      const iovec run{const_cast<std::byte*>(bytes.data()) + at, bytes.size() - at};
      auto taken = transport_->send({&run, 1});
      if (!taken) return false;
      at += *taken;
      if (*taken == 0) (void)transport_->sleep(true, now() + 100 * kMillisecond);
    }
    sent += bytes.size();
    return true;
  }
  // Until the server has sent so many frames of a type.
  void hears(wire::FrameType type, size_t frames) {
    hear_until([&] { return heard(type) >= frames; });
  }
  // Until there was a message of a stream, of so many bytes.
  void hears_message(uint64_t stream, size_t least, size_t most) {
    hear_until([&] {
      const auto frames = frames_in(heard_);
      return std::any_of(frames.begin(), frames.end(), [&](const Frame& frame) {
        return frame.type == wire::FrameType::kMessage && frame.stream == stream &&
               frame.bytes >= least && frame.bytes <= most;
      });
    });
  }
  template <class Done>
  void hear_until(Done&& done) {
    std::array<std::byte, 65'536> room;
    const iovec run{room.data(), room.size()};
    while (!done()) {
      auto got = transport_->receive({&run, 1});
      REQUIRE_MESSAGE(got.ok(), got.status().details());
      heard_.insert(heard_.end(), room.begin(), room.begin() + static_cast<std::ptrdiff_t>(*got));
      if (*got == 0) REQUIRE(transport_->sleep(false, now() + 60 * kSecond) != Wake::kTimeout);
    }
  }
  // Until all that it has said was taken in: an access to memory that is not there is answered
  // then.
  void settles() {
    Bytes access(wire::kOperationFramePrefixSize);
    wire::encode_operation_prefix(access.data(),
                                  {1, 999, 0, 8, 0, 0, wire::OperationKind::kRead, 0});
    REQUIRE(says(access));
    hears(wire::FrameType::kOutcome, heard(wire::FrameType::kOutcome) + 1);
  }

  size_t heard(wire::FrameType type) const { return count(frames_in(heard_), type); }
  // Makes a slab known to the server.
  void share(const Block& block) { REQUIRE(transport_->share(block.slab()).ok()); }

  size_t sent = 0;

 private:
  std::unique_ptr<Transport> transport_;
  Bytes heard_;
};

Bytes call_header(uint8_t flags, std::string_view method = {}) {
  wire::CallHeader header;
  header.flags = flags;
  header.method = method;
  Bytes out(wire::call_header_size(header));
  wire::encode_call_header(out.data(), header);
  return out;
}

Bytes call_message(uint64_t stream, uint64_t number, uint8_t flags, std::string_view method,
                   SegmentKind kind, uint64_t length, size_t segments) {
  const bool is_inline = kind == SegmentKind::kInline;
  return message(stream, number, {segments, {length, kind, {}}}, call_header(flags, method),
                 Bytes(is_inline ? length * segments : 0));
}

struct Victim {
  // any_unread: replies may wait without a limit.
  explicit Victim(size_t buffer_bytes = size_t{1} << 30, bool any_unread = false)
      : helper("server that is busy") {
    helper.tell(buffer_bytes);
    helper.tell(any_unread);
    wire::Hello mine = runtime().hello();
    mine.stream_window = wire::kMaxStreamWindow / 2;
    std::array<std::byte, wire::kHelloSize> hello;
    wire::encode_hello(hello, mine);
    helper.tell(hello);
    invite = helper.hear<Invite>();
    invite_shm = helper.hear<Invite>();
  }
  // Of the server's process, bytes.
  size_t resident() const { return pages(1) * page_size(); }
  size_t address_space() const { return pages(0) * page_size(); }
  size_t pages(int field) const {
    std::ifstream file("/proc/" + std::to_string(helper.pid()) + "/statm");
    size_t value = 0;
    for (int i = 0; i <= field; ++i) file >> value;
    return value;
  }
  Helper helper;
  Invite invite, invite_shm;
};

// Runs what a peer says against a server, and compares memory. `say` gives the last number used.
void check_held(const std::function<void(Claimant&)>& say, size_t answers = 0, bool shm = false) {
  Victim victim;
  Claimant peer(shm ? victim.invite_shm : victim.invite);
  // Its threads, its links and their buffers are there before.
  REQUIRE(peer.says(
      call_message(1, 1, kStart | kPayload | kEnd, "/t/Echo", SegmentKind::kInline, 60'000, 1)));
  peer.hears(wire::FrameType::kMessage, 1);
  const size_t resident = victim.resident(), space = victim.address_space();
  peer.sent = 0;
  say(peer);
  peer.settles();
  CHECK(peer.heard(wire::FrameType::kMessage) == 1 + answers);
  const size_t after = victim.resident();
  const size_t held = after > resident ? after - resident : 0;
  INFO(held << " bytes resident for " << peer.sent);
  if (kSanitized) return not_tried("a sanitizer takes memory of its own");
  CHECK(held <= 2 * peer.sent + kSlack);
  // The allocator's own areas come in steps of 64 MiB.
  CHECK(victim.address_space() <= space + 2 * peer.sent + (256 << 20));
}

TEST_CASE("budget: a peer that announces without end") {
  check_held([](Claimant& peer) {
    uint64_t number = 2;
    for (; number < 2000; ++number)
      REQUIRE(peer.says(call_message(number, number, kStart | kPayload | kEnd, "/t/Hang",
                                     SegmentKind::kPush, uint64_t{16} << 30, 1)));
  });
}

TEST_CASE("budget: a peer that sends segments of one byte") {
  check_held([](Claimant& peer) {
    REQUIRE(peer.says(call_message(2, 2, kStart, "/t/Hang", SegmentKind::kInline, 0, 0)));
    for (uint64_t number = 3; number < 33; ++number)
      REQUIRE(peer.says(call_message(2, number, kPayload, {}, SegmentKind::kInline, 1, 65'535)));
  });
}

TEST_CASE("budget: a peer whose messages nobody takes") {
  check_held([](Claimant& peer) {
    REQUIRE(peer.says(call_message(2, 2, kStart, "/t/Hang", SegmentKind::kInline, 0, 0)));
    Bytes all;
    for (uint64_t number = 3; number < 100'000; ++number) {
      const Bytes one = call_message(2, number, kPayload, {}, SegmentKind::kInline, 1, 1);
      all.insert(all.end(), one.begin(), one.end());
    }
    REQUIRE(peer.says(all));
  });
}

TEST_CASE("budget: a peer that sends tagged messages nobody asks for") {
  check_held([](Claimant& peer) {
    // As many as the credit is for, each with a tag of its own.
    const uint64_t most = runtime().settings().stream_window_bytes / 1281;
    Bytes all;
    for (uint64_t tag = 0; tag < most; ++tag) {
      const Bytes one = message(wire::kTaggedStreams | tag, tag + 2,
                                {1, {1, SegmentKind::kInline, {}}}, {}, Bytes(1));
      all.insert(all.end(), one.begin(), one.end());
    }
    REQUIRE(peer.says(all));
  });
}

// Some find a worker or wait, and the others are told to come again.
TEST_CASE("budget: a peer that starts calls without end") {
  constexpr size_t kRefused = 632;
  const auto say = [](Claimant& peer) {
    Bytes all;
    for (uint64_t number = 2; number < 2 + 128 + 10'240 + kRefused; ++number) {
      const Bytes one = call_message(number, number, kStart | kPayload | kEnd, "/t/Hang",
                                     SegmentKind::kInline, 8, 1);
      all.insert(all.end(), one.begin(), one.end());
    }
    REQUIRE(peer.says(all));
  };
  check_held(say, kRefused);
}

TEST_CASE("budget: a peer that grants credit without end") {
  check_held([](Claimant& peer) {
    REQUIRE(peer.says(call_message(2, 2, kStart, "/t/Hang", SegmentKind::kInline, 0, 0)));
    Bytes all;
    // To a call that has ended, to one that goes on, and to none.
    for (int i = 0; i < 50'000; ++i) {
      for (const uint64_t stream : {1, 2, 999}) {
        all.resize(all.size() + wire::kCreditFrameSize);
        wire::encode_credit(all.data() + all.size() - wire::kCreditFrameSize, stream, 1000);
      }
    }
    REQUIRE(peer.says(all));
  });
}

TEST_CASE("budget: a peer that goes away without end") {
  check_held([](Claimant& peer) {
    const std::string why(wire::kMaxGoAwayReason, '?');
    Bytes frame(wire::kMaxGoAwayFrameSize);
    wire::encode_goaway(frame.data(), Code::kUnavailable, why);
    for (int i = 0; i < 2000; ++i) REQUIRE(peer.says(frame));
  });
}

TEST_CASE("budget: a peer that gives back what it does not have loses its link") {
  const auto told = [](const Bytes& bytes) {
    Victim victim;
    Claimant peer(victim.invite);
    (void)peer.says(bytes);
    peer.hears(wire::FrameType::kGoAway, 1);
  };
  told(fin({7}));
  Bytes unmappable(wire::kUnmappableFrameSize);
  wire::encode_unmappable(unmappable.data(), 7);
  told(unmappable);
}

// Messages that name the first byte of a block, with these leases.
Bytes lends(const Block& block, uint64_t first, uint64_t last) {
  const RegionRef region = block.region(block.data(), 1);
  Bytes all;
  for (uint64_t lease = first; lease <= last; ++lease) {
    const wire::SegmentInfo segment{
        1, SegmentKind::kMap, {region.slab, region.generation, region.offset, lease}};
    const Bytes one = message(2, 2 + lease, {segment}, call_header(kPayload), {});
    all.insert(all.end(), one.begin(), one.end());
  }
  return all;
}

TEST_CASE("budget: a peer that lends without end") {
  const Ref<Block> block = block_of(bytes_of(page_size()));
  block->publish();
  check_held(
      [&](Claimant& peer) {
        peer.share(*block);
        REQUIRE(peer.says(call_message(2, 2, kStart, "/t/Hang", SegmentKind::kInline, 0, 0)));
        REQUIRE(peer.says(lends(*block, 1, wire::kMaxLeases)));
      },
      0, true);
}

TEST_CASE("budget: a peer that lends more than it may loses its link") {
  Slot<Ref<ServerCall>> begun;
  House house(
      [&](Ref<ServerCall> call) {
        begun.put(call);
        (void)call->wait_ended(patience());
        return Ref<ServerCall>{};
      },
      1);
  const Ref<Block> block = block_of(bytes_of(page_size()));
  block->publish();
  const uint64_t before = runtime().audit().count(Incident::kProtocolBroken);
  Claimant peer(invite(house.invitation("shm")));
  peer.share(*block);
  REQUIRE(peer.says(call_message(2, 2, kStart, "/t/Hang", SegmentKind::kInline, 0, 0)));
  REQUIRE(peer.says(lends(*block, 1, wire::kMaxLeases)));
  // As much as is let go of may be lent again.
  const Ref<ServerCall> call = begun.take();
  InMessage message;
  REQUIRE(receive(*call, message));
  message = {};
  REQUIRE(peer.says(lends(*block, wire::kMaxLeases + 1, wire::kMaxLeases + 1)));
  peer.settles();
  CHECK(call->link().alive());
  (void)peer.says(lends(*block, wire::kMaxLeases + 2, wire::kMaxLeases + 2));
  REQUIRE(call->wait_ended(patience()) == Waited::kDone);
  const std::string why = call->link().death().details();
  CHECK_MESSAGE(why.find("4096 before it are out without a FIN") != std::string::npos, why);
  CHECK(runtime().audit().count(Incident::kProtocolBroken) == before + 1);
  peer.hears(wire::FrameType::kGoAway, 1);
}

TEST_CASE("budget: what a peer has on lease is counted as it counts it, and the rest is copied") {
  constexpr size_t kSize = 20'000, kMany = wire::kMaxLeases + 100;
  const auto bytes = bytes_of(kSize);
  const Ref<Block> block = block_of(bytes);
  block->publish();
  House house(
      [&](Ref<ServerCall> call) {
        OutSegment segment = out({block->data(), kSize});
        segment.block = block;
        answer(*call, std::vector<OutSegment>(kMany, segment));
        return Ref<ServerCall>{};
      },
      2);
  Closing client(house.connect<ShmWay>());
  for (int i = 0; i < 3; ++i) {
    const Reply reply = unary(*client, "/t/Many", {});
    REQUIRE(reply.code == Code::kOk);
    const auto leased =
        std::count_if(reply.segments.begin(), reply.segments.end(),
                      [](const InSegment& segment) { return segment.view() != nullptr; });
    CHECK(leased == wire::kMaxLeases);
    CHECK(std::all_of(reply.segments.begin(), reply.segments.end(),
                      [&](const InSegment& segment) { return same(segment, bytes); }));
    if (i != 0) continue;
    // While they are held, others get copies.
    const Reply copies = unary(*client, "/t/Many", {});
    REQUIRE(copies.segments.size() == kMany);
    CHECK(copies.segments[0].view() == nullptr);
    const auto links = ports_of(house.server());
    REQUIRE(links.size() == 1);
    CHECK(links[0]->stats().crowded_why.details().find("4096 segments on lease") !=
          std::string::npos);
  }
}

// A client that takes none of its replies: what waits for it is bounded, whatever they are, others
// are served meanwhile, and it is served on once it has taken them.
void check_unread(std::string_view method, size_t calls, bool any_unread = false) {
  constexpr size_t kMost = 8 << 20;
  Victim victim(kMost, any_unread);
  Closing good(follow(victim.invite));
  const auto handled = [&] {
    const Reply reply = unary(*good, "/t/Handled", {});
    REQUIRE(reply.code == Code::kOk);
    size_t count;
    REQUIRE(reply.payload_bytes == sizeof count);
    std::memcpy(&count, reply.segments[0].data, sizeof count);
    return count;
  };
  Claimant peer(victim.invite);
  const auto ask = [&](uint64_t from, size_t count, std::string_view what) {
    Bytes all;
    for (uint64_t number = from; number < from + count; ++number) {
      const Bytes one =
          call_message(number, number, kStart | kPayload | kEnd, what, SegmentKind::kInline, 8, 1);
      all.insert(all.end(), one.begin(), one.end());
    }
    REQUIRE(peer.says(all));
  };
  ask(1, 1, "/t/Echo");
  peer.hears(wire::FrameType::kMessage, 1);
  const size_t resident = victim.resident();
  peer.sent = 0;
  ask(2, calls, method);
  REQUIRE(eventually([&] { return handled() == 1 + calls; }));
  const size_t after = victim.resident();
  const size_t held = after > resident ? after - resident : 0;
  INFO(held << " bytes resident for " << peer.sent);
  // As much as may wait, one more, and as many bytes of statuses as keep all that they have.
  if (!kSanitized) CHECK(held <= kMost + kPage + kSlack + 2 * peer.sent + kSlack);
  // The last one is short, for want of room.
  peer.hears_message(1 + calls, 0, 100);
  ask(2 + calls, 1, "/t/Page");
  peer.hears_message(2 + calls, kPage, 2 * kPage);
}

TEST_CASE("budget: small replies that nobody takes") { check_unread("/t/Page", 5000); }
TEST_CASE("budget: failures that nobody takes") { check_unread("/t/Fail", 5000); }
TEST_CASE("budget: failures that nobody takes, of a server whose replies have no limit") {
  check_unread("/t/Fail", 5000, true);
}
TEST_CASE("budget: regions of which a peer takes no word") { check_unread("/t/Expose", 1); }
TEST_CASE("budget: a stream that nobody takes, whose client grants credit without end") {
  check_unread("/t/Stream", 1);
}

}  // namespace
}  // namespace tw::test

// What a hostile peer makes a server's process hold: at most twice what it has really sent, and
// 1 MiB.
#include <fstream>

#include "test/call/helper.h"
#include "test/message/fake_link.h"
#include "test/message/forge.h"
#include "test/sanitized.h"

namespace tw::test {
namespace {

using wire::SegmentKind;

constexpr size_t kSlack = 1 << 20;
constexpr uint8_t kStart = wire::call_flag::kStart, kPayload = wire::call_flag::kPayload,
                  kEnd = wire::call_flag::kEnd;

// A server with one worker, who never lets go of a call that says so.
TEST_CASE("helper: server that is busy" * doctest::skip()) {
  const auto hello = read_thing<std::array<std::byte, wire::kHelloSize>>(kFromTest);
  House house(
      [&](Ref<ServerCall> call) {
        if (call->method() == "/t/Hang")
          (void)call->wait_ended(kForever);
        else
          echo(*call);
        return Ref<ServerCall>{};
      },
      1);
  const auto ticket =
      house.server().listener().admit(wire::decode_hello(hello).value(), 8, 60 * kSecond);
  REQUIRE(ticket.ok());
  link::Invitation in{house.tcp(), ticket->session, ticket->secret, house.server().instance(),
                      runtime().hello()};
  write_thing(kToTest, invite(in));
  char byte;
  (void)read(kFromTest, &byte, 1);  // until the test ends
}

// The bytes of a peer that speaks the protocol and means no good.
class Forger {
 public:
  explicit Forger(const Invite& invite) {
    link::Invitation in{invite.address, invite.session, link::Secret(invite.secret),
                        invite.instance, wire::decode_hello(invite.hello).value()};
    auto connected = link::connect(runtime(), in, patience());
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
    std::array<std::byte, 65'536> room;
    const iovec run{room.data(), room.size()};
    while (heard(type) < frames) {
      auto got = transport_->receive({&run, 1});
      REQUIRE_MESSAGE(got.ok(), got.status().details());
      heard_.insert(heard_.end(), room.begin(), room.begin() + static_cast<std::ptrdiff_t>(*got));
      if (*got == 0) REQUIRE(transport_->sleep(false, now() + 60 * kSecond) != Wake::kTimeout);
    }
  }

  size_t heard(wire::FrameType type) const { return count(frames_in(heard_), type); }

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
  Victim() : helper("server that is busy") {
    std::array<std::byte, wire::kHelloSize> hello;
    wire::encode_hello(hello, runtime().hello());
    helper.tell(hello);
    invite = helper.hear<Invite>();
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
  Invite invite;
};

// Runs what a peer says against a server, and compares memory. `say` gives the last number used.
void check_held(const std::function<void(Forger&)>& say, size_t answers = 0) {
  Victim victim;
  Forger peer(victim.invite);
  // Its threads, its links and their buffers are there before.
  REQUIRE(peer.says(
      call_message(1, 1, kStart | kPayload | kEnd, "/t/Echo", SegmentKind::kInline, 60'000, 1)));
  peer.hears(wire::FrameType::kMessage, 1);
  const size_t resident = victim.resident(), space = victim.address_space();
  peer.sent = 0;
  say(peer);
  // An access to memory that is not there is answered when all before it has been taken in.
  Bytes access(wire::kOperationFramePrefixSize);
  wire::encode_operation_prefix(access.data(), {1, 999, 0, 8, 0, 0, wire::OperationKind::kRead, 0});
  REQUIRE(peer.says(access));
  peer.hears(wire::FrameType::kOutcome, 1);
  CHECK(peer.heard(wire::FrameType::kMessage) == 1 + answers);
  const size_t after = victim.resident();
  const size_t held = after > resident ? after - resident : 0;
  INFO(held << " bytes resident for " << peer.sent);
  if (kSanitized) return;
  CHECK(held <= 2 * peer.sent + kSlack);
  // The allocator's own areas come in steps of 64 MiB.
  CHECK(victim.address_space() <= space + 2 * peer.sent + (256 << 20));
}

TEST_CASE("budget: a peer that announces without end") {
  check_held([](Forger& peer) {
    uint64_t number = 2;
    for (; number < 2000; ++number)
      REQUIRE(peer.says(call_message(number, number, kStart | kPayload | kEnd, "/t/Hang",
                                     SegmentKind::kPush, uint64_t{16} << 30, 1)));
  });
}

TEST_CASE("budget: a peer that sends segments of one byte") {
  check_held([](Forger& peer) {
    REQUIRE(peer.says(call_message(2, 2, kStart, "/t/Hang", SegmentKind::kInline, 0, 0)));
    for (uint64_t number = 3; number < 33; ++number)
      REQUIRE(peer.says(call_message(2, number, kPayload, {}, SegmentKind::kInline, 1, 65'535)));
  });
}

TEST_CASE("budget: a peer whose messages nobody takes") {
  check_held([](Forger& peer) {
    REQUIRE(peer.says(call_message(2, 2, kStart, "/t/Hang", SegmentKind::kInline, 0, 0)));
    Bytes all;
    for (uint64_t number = 3; number < 100'000; ++number) {
      const Bytes one = call_message(2, number, kPayload, {}, SegmentKind::kInline, 1, 1);
      all.insert(all.end(), one.begin(), one.end());
    }
    REQUIRE(peer.says(all));
  });
}

// Some find a worker or wait, and the others are told to come again.
TEST_CASE("budget: a peer that starts calls without end") {
  constexpr size_t kRefused = 632;
  const auto say = [](Forger& peer) {
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

}  // namespace
}  // namespace tw::test

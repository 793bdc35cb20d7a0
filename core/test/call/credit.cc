// SPDX-License-Identifier: Apache-2.0
// Peers that send more than the credit of their stream, by frames that no client of ours would
// send.
#include "test/call/world.h"
#include "test/message/forge.h"

namespace tw::test {
namespace {

using wire::SegmentKind;
namespace flag = wire::call_flag;

Bytes header_of(uint8_t flags, std::string_view details = {}) {
  wire::CallHeader header;
  header.flags = flags;
  if (header.has(flag::kStart)) header.method = "/t/Any";
  header.details = details;
  Bytes bytes(wire::call_header_size(header));
  wire::encode_call_header(bytes.data(), header);
  return bytes;
}

size_t links(House& house) { return ports_of(house.server()).size(); }

// A client as far as the handshake; then it sends what it likes.
struct Forger {
  explicit Forger(House& at, const char* way)
      : house(at),
        transport(std::move(
            meet::connect(runtime(), house.invitation(way), patience()).value().transport)) {}
  // False once the server has hung up.
  bool send(const Bytes& bytes) {
    const Nanos deadline = patience();
    for (size_t done = 0; done < bytes.size();) {
      iovec run{const_cast<std::byte*>(bytes.data()) + done, bytes.size() - done};
      const auto taken = transport->send({&run, 1});
      if (!taken) return false;
      done += *taken;
      if (now() >= deadline) return false;
      // Nobody watches this end's socket: a ring stays full when the server has gone.
      if (*taken == 0 && links(house) == 0) return false;
      if (*taken == 0) std::this_thread::yield();
    }
    return true;
  }
  // A call whose first message stays unfinished.
  void begin(uint64_t stream) {
    REQUIRE(send(message(stream, ++number, {{8, SegmentKind::kPush, {}}},
                         header_of(flag::kStart | flag::kPayload), {})));
  }
  bool small(uint64_t stream, size_t bytes) {
    return send(message(stream, ++number, {{bytes, SegmentKind::kInline, {}}},
                        header_of(flag::kPayload), Bytes(bytes)));
  }
  // A message whose segments are nobody's.
  bool unpaid(uint64_t stream, uint8_t flags) {
    return send(
        message(stream, ++number, {{8, SegmentKind::kInline, {}}}, header_of(flags), Bytes(8)));
  }

  House& house;
  const std::unique_ptr<Transport> transport;
  uint64_t number = 0;
};

TEST_CASE_TEMPLATE("credit: a peer cannot hide behind an unfinished message", Way,
                   TENSORWIRE_WAYS) {
  Slot<Ref<ServerCall>> started;
  House house([&](Ref<ServerCall> call) {
    started.put(std::move(call));
    return Ref<ServerCall>{};
  });
  Closing other(house.connect<Way>());
  Forger forger(house, Way::kName);
  const size_t window = runtime().settings().stream_window_bytes;
  const size_t piece = size_t{1} << 20;
  forger.begin(1);
  // Up to its credit, and once beyond it, the peer is within its rights.
  for (size_t sent = kMessageOverhead + 8; sent < window; sent += piece + kMessageOverhead)
    REQUIRE(forger.small(1, piece));
  REQUIRE(forger.send(message(2, ++forger.number, {}, header_of(flag::kStart | flag::kEnd), {})));
  CHECK(started.take()->stream() == 2);
  CHECK(links(house) == 2);
  // Without payload there is no charge.
  REQUIRE(forger.send(message(1, ++forger.number, {}, header_of(flag::kEnd), {})));
  REQUIRE(forger.send(message(3, ++forger.number, {}, header_of(flag::kStart | flag::kEnd), {})));
  CHECK(started.take()->stream() == 3);
  (void)forger.small(1, 1);
  CHECK(eventually([&] { return links(house) == 1; }));
  CHECK(other->link().alive());
}

TEST_CASE_TEMPLATE("credit: what is no message of a call, or only headers, is bounded as well", Way,
                   TENSORWIRE_WAYS) {
  House house(echo);
  Forger forger(house, Way::kName);
  REQUIRE(eventually([&] { return links(house) == 1; }));
  SUBCASE("a stream that no call has") {
    REQUIRE(forger.send(
        message(7, ++forger.number, {{8, SegmentKind::kPush, {}}}, header_of(flag::kPayload), {})));
    for (int i = 0; i < 40 && forger.small(7, size_t{1} << 20); ++i) {
    }
  }
  SUBCASE("headers") {
    forger.begin(1);
    const std::string details(60'000, 'x');
    for (int i = 0; i < 5; ++i)
      (void)forger.send(message(1, ++forger.number, {}, header_of(flag::kEnd, details), {}));
  }
  SUBCASE("segments that are no message, behind an unfinished one") {
    forger.begin(1);
    (void)forger.unpaid(1, flag::kEnd);
  }
  SUBCASE("a call that begins with segments that are no message") {
    (void)forger.unpaid(1, flag::kStart);
  }
  SUBCASE("segments without bytes") {
    (void)forger.send(message(1, ++forger.number, {{0, SegmentKind::kInline, {}}},
                              header_of(flag::kStart | flag::kEnd), {}));
  }
  SUBCASE("a header that is none") {
    (void)forger.send(
        message(1, ++forger.number, {{8, SegmentKind::kPush, {}}}, Bytes(16, std::byte{255}), {}));
  }
  CHECK(eventually([&] { return links(house) == 0; }));
}

TEST_CASE_TEMPLATE("credit: nothing comes after a call's last message", Way, TENSORWIRE_WAYS) {
  Slot<Ref<ServerCall>> started;
  House house([&](Ref<ServerCall> call) {
    started.put(std::move(call));
    return Ref<ServerCall>{};
  });
  Forger forger(house, Way::kName);
  REQUIRE(forger.send(message(1, ++forger.number, {}, header_of(flag::kStart | flag::kEnd), {})));
  const auto held = started.take();
  CHECK(links(house) == 1);
  SUBCASE("no message") { (void)forger.small(1, 1); }
  SUBCASE("no segments, either") { (void)forger.unpaid(1, flag::kEnd); }
  CHECK(eventually([&] { return links(house) == 0; }));
}

TEST_CASE("credit: a message that was refused has cost nothing") {
  Open server;
  constexpr size_t kWindow = size_t{1} << 20;
  Closing link(server.house.connect<TcpWay>(runtime().settings().max_message_bytes, kWindow));
  const auto call = start(*link, "/t/Long");
  const auto bytes = bytes_of(100);
  std::vector<OutSegment> segments(70'000, out(bytes));  // more than a message may have
  CHECK_FALSE(call->send_message(segments, false, false).ok());
  CHECK(call->sendable());
  CHECK(send(*call, {out(bytes)}));
}

TEST_CASE("credit: a message that was given up has cost nothing") {
  House house(echo);
  const size_t large = 3 * runtime().settings().stream_window_bytes;
  const auto bytes = bytes_of(large);
  Closing link(house.connect<TcpWay>());
  const auto call = start(*link, "/t/Echo");
  // Withdrawn at once, or after some of it has gone: the window is open as before.
  for (int i = 0; i < 4; ++i) {
    std::vector<OutSegment> segments = {out(bytes)};
    auto sent = call->send_message(segments, false, false);
    REQUIRE(sent.ok());
    REQUIRE(*sent);
    if (!call->withdraw(*sent))
      return;  // it went by in one breath, and the echo has ended the call
    CHECK(call->sendable());
  }
  CHECK(send(*call, {out(std::span(bytes).first(1000))}, true));
  InMessage reply;
  REQUIRE(receive(*call, reply));
  CHECK(reply.payload_bytes == 1000);
}

}  // namespace
}  // namespace tw::test

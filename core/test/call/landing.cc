// SPDX-License-Identifier: Apache-2.0
// Replies whose large segments are received straight into memory that the caller has named.
#include "test/call/world.h"
#include "test/message/forge.h"

namespace tw::test {
namespace {

using Memory = std::vector<std::byte>;

// Places of these sizes, 0 meaning anywhere.
struct Rooms {
  explicit Rooms(const std::vector<size_t>& sizes) {
    for (const size_t size : sizes) {
      Memory& room = memory.emplace_back(size, std::byte{0xff});
      places.push_back(size == 0 ? nullptr : make_ref<PostedBuffer>(room.data(), size, Hold{}));
    }
  }
  ~Rooms() { withdraw(); }
  void withdraw() {
    for (const auto& place : places)
      if (place) place->withdraw();
  }

  std::list<Memory> memory;
  std::vector<Ref<PostedBuffer>> places;
};

Beginning beginning_with(const Rooms& rooms) {
  Beginning beginning;
  beginning.method = "/t/Get";
  beginning.end = true;
  beginning.places = rooms.places;
  return beginning;
}

TEST_CASE_TEMPLATE("landing: each segment is right, wherever it comes to lie", Way,
                   TENSORWIRE_LINKS) {
  const std::vector<Memory> sent{bytes_of(100, 1), bytes_of(1 << 20, 2), bytes_of(3 << 20, 3),
                                 bytes_of(1 << 20, 4), bytes_of(100, 5)};
  House house([&](Ref<ServerCall> call) {
    std::vector<OutSegment> segments;
    for (const Memory& bytes : sent) segments.push_back(out(bytes));
    answer(*call, std::move(segments));
    return Ref<ServerCall>{};
  });
  const Closing link(house.connect<Way>());
  // Too small to come in chunks; right; of another size; not wanted anywhere; more than there are.
  const Rooms rooms({100, 1 << 20, (3 << 20) - 1, 0, 100, 1 << 20});
  Ref<ClientCall> call;
  REQUIRE(unary(*link, beginning_with(rooms), {patience()}, call).ok());
  REQUIRE(call->outcome().code == Code::kOk);
  InMessage message;
  REQUIRE(call->take(message));
  REQUIRE(message.segments.size() == sent.size());
  for (size_t i = 0; i < sent.size(); ++i) CHECK(same(message.segments[i], sent[i]));
  const Memory& room = *std::next(rooms.memory.begin());
  const bool landed = message.segments[1].data == room.data();
  if (std::is_same_v<Way, TcpWay>) CHECK(landed);
  CHECK((room == sent[1]) == landed);
  for (size_t i = 0; const Memory& other : rooms.memory)
    if (i++ != 1) CHECK(other == Memory(other.size(), std::byte{0xff}));
}

TEST_CASE_TEMPLATE("landing: memory is its caller's again, whatever became of the call", Way,
                   TENSORWIRE_LINKS) {
  Open server;
  const Closing link(server.house.connect<Way>());
  const Rooms rooms({1 << 20, 0, 100});
  const auto withdrawn = [&](size_t place) {
    const MutexLock lock(rooms.places[place]->stores());
    return rooms.places[place]->withdrawn();
  };
  Ref<ClientCall> call;
  CHECK_FALSE(withdrawn(0));
  SUBCASE("it is answered") {
    std::thread answers([&] { CHECK(finish(*server.calls.take())); });
    CHECK(unary(*link, beginning_with(rooms), {patience()}, call).ok());
    answers.join();
  }
  SUBCASE("it is late") {
    CHECK(unary(*link, beginning_with(rooms), {now() + kMillisecond}, call).ok());
    CHECK(call->outcome().code == Code::kDeadlineExceeded);
  }
  SUBCASE("it is interrupted") {
    const Wait wait{patience(), [](void*) { return 1; }, nullptr};
    const auto done = unary(*link, beginning_with(rooms), wait, call);
    REQUIRE(done.ok());
    CHECK_FALSE(*done);
  }
  SUBCASE("it has not begun") {
    link->close();
    CHECK(unary(*link, beginning_with(rooms), {patience()}, call).status().code() ==
          Code::kUnavailable);
  }
  CHECK(withdrawn(0));
  CHECK(withdrawn(2));
}

TEST_CASE("landing: nobody stores in memory that was withdrawn") {
  constexpr uint32_t kBytes = 256 << 10;
  TransportPair pair = Tcp::make();
  Peer peer;
  peer.address = "ipv4:127.0.0.1:1";
  auto made = CallPort::create(runtime(), std::move(pair.a), std::move(peer), 1 << 20);
  REQUIRE(made.ok());
  const Closing port(std::move(*made));
  Rooms rooms({kBytes});
  Ref<ClientCall> call;
  REQUIRE(start(*port, beginning_with(rooms), {patience()}, call).ok());

  const auto say = [&](std::span<const std::byte> bytes) { test::say(*pair.b, bytes); };
  wire::CallHeader header;
  header.flags = wire::call_flag::kPayload | wire::call_flag::kEnd;
  Bytes head(wire::call_header_size(header));
  wire::encode_call_header(head.data(), header);
  say(message(call->stream(), 1, {{kBytes, wire::SegmentKind::kPush, {}}}, head, {}));
  const Bytes chunk = data(call->stream(), 1, 0, 0, kBytes);
  const size_t half = chunk.size() / 2;
  Memory& room = rooms.memory.front();

  SUBCASE("in the middle of a chunk") {
    say(std::span(chunk).first(half));
    const auto has_come = [&] {
      const MutexLock lock(rooms.places[0]->stores());
      return room[half - 1024] == std::byte{0};
    };
    REQUIRE(eventually(has_come));
    rooms.withdraw();
    room.assign(kBytes, std::byte{0x55});
    say(std::span(chunk).subspan(half));
  }
  SUBCASE("before it begins") {
    rooms.withdraw();
    room.assign(kBytes, std::byte{0x55});
    say(chunk);
  }
  REQUIRE(call->wait_ended(patience()) == Waited::kDone);
  CHECK(call->outcome().code == Code::kCancelled);
  CHECK(room == Memory(kBytes, std::byte{0x55}));
  CHECK(port->link().alive());
}

}  // namespace
}  // namespace tw::test

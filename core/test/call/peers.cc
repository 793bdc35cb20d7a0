// SPDX-License-Identifier: Apache-2.0
// Calls that the other end of a link begins, where this one serves none.
#include "test/call/world.h"
#include "test/message/forge.h"

namespace tw::test {
namespace {

// An end that serves no calls, and the bytes of its peer.
struct Unserved {
  Unserved() {
    TransportPair pair = Shm::make();
    Peer peer;
    peer.address = "unix:";
    auto made = CallPort::create(runtime(), std::move(pair.a), std::move(peer), 1 << 20);
    REQUIRE(made.ok());
    port = std::move(*made);
    wire = std::move(pair.b);
  }
  ~Unserved() { port->link().close({Code::kCancelled, "the test is over"}); }

  // Until all of it was taken.
  void say(const Bytes& bytes) {
    for (size_t at = 0; at < bytes.size();) {
      const iovec run{const_cast<std::byte*>(bytes.data()) + at, bytes.size() - at};
      auto taken = wire->send({&run, 1});
      REQUIRE_MESSAGE(taken.ok(), taken.status().details());
      at += *taken;
      if (*taken == 0) (void)wire->sleep(true, now() + 100 * kMillisecond);
    }
  }

  Ref<CallPort> port;
  std::unique_ptr<Transport> wire;
};

Bytes beginning(uint64_t number) {
  wire::CallHeader header;
  header.flags = wire::call_flag::kStart | wire::call_flag::kEnd;
  header.method = "/";
  Bytes bytes(wire::call_header_size(header));
  wire::encode_call_header(bytes.data(), header);
  return message(wire::kAcceptorStreams | number, number, {}, bytes, {});
}

TEST_CASE("peers: calls that nobody serves take no more memory than twice what begins them") {
  Unserved end;
  size_t said = 0;
  Bytes batch;
  for (uint64_t number = 1; number <= 60'000; ++number) {
    const Bytes one = beginning(number);
    batch.insert(batch.end(), one.begin(), one.end());
    if (number % 1000 != 0) continue;
    end.say(batch);
    said += batch.size();
    batch.clear();
    CHECK(end.port->link().queued() <= 2 * said + (1 << 20));
  }
  CHECK(end.port->link().queued() > (1 << 20));
  CHECK(end.port->link().alive());
}

TEST_CASE("peers: what belongs to no call is ignored, and no header ends the link") {
  Unserved end;
  wire::CallHeader header;
  header.flags = wire::call_flag::kCancel;
  header.code = Code::kCancelled;
  Bytes bytes(wire::call_header_size(header));
  wire::encode_call_header(bytes.data(), header);
  end.say(message(wire::kAcceptorStreams | 5, 1, {}, bytes, {}));  // ended before it was known
  end.say(message(7, 2, {}, bytes, {}));  // a call of this end's that has ended
  end.say(message(wire::kAcceptorStreams | 6, 3, {}, Bytes(3), {}));
  REQUIRE(eventually([&] { return !end.port->link().alive(); }));
  CHECK(end.port->link().death().code() == Code::kInternal);
}

}  // namespace
}  // namespace tw::test

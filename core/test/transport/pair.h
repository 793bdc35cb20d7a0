// SPDX-License-Identifier: Apache-2.0
// The table of transports for the conformance suite: each maker joins two ends in one process, so
// that ThreadSanitizer sees both.
#pragma once

#include <arpa/inet.h>
#include <doctest/doctest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "test/engine/patience.h"
#include "test/not_tried.h"
#include "test/transport/read.h"
#include "test/transport/sealed.h"
#include "transport/loop/loop.h"
#include "transport/shm/shm.h"
#include "transport/tcp/tcp.h"

namespace tw::test {

struct TransportPair {
  std::unique_ptr<Transport> a, b;
};

inline shm::Settings small_settings() {
  shm::Settings settings;
  settings.ring_bytes = 16 << 10;
  return settings;
}

struct Shm {
  static constexpr bool kMaps = true;
  static constexpr bool kShares = true;  // share() makes a slab known to the peer
  static constexpr int kRounds = 200;    // of tests that make pairs without end
  static const char* missing() { return nullptr; }

  // The descriptors travel as they would between processes.
  static TransportPair make(const shm::Settings& settings = small_settings()) {
    int ends[2];
    REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) == 0);
    Fd client(ends[0]), server(ends[1]);
    auto offered = ShmTransport::offer(std::move(client), settings);
    REQUIRE(offered.ok());
    ShmFrameReader reader;
    ShmMessage rings;
    auto got = reader.read(server.get(), rings);
    REQUIRE(got.ok());
    REQUIRE(*got == ShmFrameReader::Got::kFrame);
    auto accepted = ShmTransport::accept(std::move(server), std::move(rings), settings);
    REQUIRE(accepted.ok());
    return {std::move(*offered), std::move(*accepted)};
  }
};

// Two ends of a connection over loopback, the second at this address.
inline std::pair<Fd, Fd> tcp_sockets(uint32_t host = INADDR_LOOPBACK) {
  Fd door(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(host);
  socklen_t size = sizeof address;
  auto* const any = reinterpret_cast<sockaddr*>(&address);
  REQUIRE(bind(door.get(), any, size) == 0);
  REQUIRE(listen(door.get(), 1) == 0);
  REQUIRE(getsockname(door.get(), any, &size) == 0);
  Fd client(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  REQUIRE(connect(client.get(), any, size) == 0);
  Fd server(accept4(door.get(), nullptr, nullptr, SOCK_CLOEXEC));
  REQUIRE(server);
  return {std::move(client), std::move(server)};
}

struct Tcp {
  static constexpr bool kMaps = false;
  static constexpr bool kShares = false;
  static constexpr int kRounds = 200;
  static const char* missing() { return nullptr; }

  static TransportPair make(const tcp::Settings& settings = {}) {
    auto [client, server] = tcp_sockets();
    auto a = TcpTransport::create(std::move(client), true, settings);
    auto b = TcpTransport::create(std::move(server), true, settings);
    REQUIRE(a.ok());
    REQUIRE(b.ok());
    return {std::move(*a), std::move(*b)};
  }
};

struct Loop {
  static constexpr bool kMaps = false;
  static constexpr bool kShares = false;
  static constexpr int kRounds = 200;
  static const char* missing() { return nullptr; }

  static TransportPair make(const Settings& settings = {}) {
    auto wires = LoopWires::create();
    REQUIRE(wires.ok());
    return {std::make_unique<LoopTransport>(*wires, 0, settings),
            std::make_unique<LoopTransport>(*wires, 1, settings)};
  }
};

// A decorator over loop, which two ends come to as over a connection.
struct Sealed {
  static constexpr bool kMaps = false;
  static constexpr bool kShares = false;
  static constexpr int kRounds = 200;
  static const char* missing() { return nullptr; }

  static Kind& kind() {
    static const Settings settings;
    static const Ref<Arena> arena = make_ref<Arena>(size_t{1} << 20);
    static auto kinds = make_kinds(
        {settings, *arena, [] { return Result<Poller*>(Status{Code::kUnavailable, "none"}); }});
    static SealedKind sealed(std::move(*std::ranges::find(kinds, "loop", &Kind::name)));
    return sealed;
  }

  // Both ends of a set-up.
  struct Joining {
    Joining() {
      int ends[2];
      REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) == 0);
      for (size_t i = 0; i < 2; ++i) {
        sockets[i] = Fd(ends[i]);
        auto setup = i == 0 ? kind().offer({true}) : kind().accept({true});
        REQUIRE(setup.ok());
        setups[i] = std::move(*setup);
      }
    }
    Result<Setup::Next> step(size_t end) { return setups[end]->go_on(sockets[end].get()); }
    std::unique_ptr<Transport> become(size_t end) {
      auto made = setups[end]->become(std::move(sockets[end]));
      REQUIRE(made.ok());
      return std::move(made->transport);
    }
    std::array<Fd, 2> sockets;
    std::array<std::unique_ptr<Setup>, 2> setups;
  };

  static TransportPair make() {
    Joining joining;
    std::array<bool, 2> done{};
    for (size_t step = 0; !done[0] || !done[1]; ++step) {
      REQUIRE(step < 20);
      const size_t end = step % 2;
      if (done[end]) continue;
      const auto next = joining.step(end);
      REQUIRE(next.ok());
      done[end] = *next == Setup::Next::kDone;
    }
    return {joining.become(0), joining.become(1)};
  }
};

// Needs a device; see verbs/world.cc.
struct Verbs {
  static constexpr bool kMaps = false;
  static constexpr bool kShares = true;
  static constexpr int kRounds = 20;  // queue pairs take long to make, the more so in a test VM
  // Why there is none here, or null.
  static const char* missing();
  static TransportPair make();
  // All pairs share one device, which is opened with settings of its own.
  static TransportPair make(const Settings&) { return make(); }
};

struct Read {
  static constexpr bool kMaps = false;
  static constexpr bool kShares = true;
  static constexpr int kRounds = Shm::kRounds;
  static const char* missing() { return nullptr; }

  static TransportPair make(const shm::Settings& settings = small_settings(),
                            Ref<ReadDevice> device = make_ref<ReadDevice>()) {
    TransportPair pipes = Shm::make(settings);
    return {std::make_unique<ReadTransport>(std::move(pipes.a), device),
            std::make_unique<ReadTransport>(std::move(pipes.b), device)};
  }
};

// Every case of the suite runs once for each of these. A new transport adds its maker, to
// the readers if its large segments are fetched.
#ifdef TENSORWIRE_VERBS
#define TENSORWIRE_READERS tw::test::Read, tw::test::Verbs
#else
#define TENSORWIRE_READERS tw::test::Read
#endif
#define TENSORWIRE_TRANSPORTS \
  tw::test::Shm, tw::test::Tcp, tw::test::Loop, tw::test::Sealed, TENSORWIRE_READERS

// The first line of every case of the suite.
#define TENSORWIRE_NEEDS(Maker) \
  if (const char* why = Maker::missing()) return tw::test::not_tried(why)

// The byte at position `at` of every test stream: neighbours differ, and so do distant copies.
inline std::byte pattern(uint64_t at) { return static_cast<std::byte>((at * 131) ^ (at >> 9)); }

inline iovec run_of(const void* data, size_t size) { return {const_cast<void*>(data), size}; }

// What the transport takes of `size` bytes of the pattern from position `at` on.
inline size_t send_pattern(Transport& to, uint64_t at, size_t size) {
  std::vector<std::byte> bytes(size);
  for (size_t i = 0; i < size; ++i) bytes[i] = pattern(at + i);
  const iovec run = run_of(bytes.data(), size);
  auto sent = to.send({&run, 1});
  REQUIRE(sent.ok());
  REQUIRE(*sent <= size);
  return *sent;
}

// Receives at most `room` bytes, which must continue the pattern at position `at`.
inline size_t receive_pattern(Transport& from, uint64_t at, size_t room) {
  std::vector<std::byte> bytes(room);
  const iovec run = run_of(bytes.data(), room);
  auto got = from.receive({&run, 1});
  REQUIRE(got.ok());
  size_t wrong = 0;
  for (size_t i = 0; i < *got; ++i) wrong += bytes[i] != pattern(at + i);
  REQUIRE(wrong == 0);
  return *got;
}

// Sends until the pipe is full; returns the bytes that are in it.
inline uint64_t fill(Transport& pipe) {
  uint64_t sent = 0;
  while (const size_t n = send_pattern(pipe, sent, 8192)) sent += n;
  return sent;
}

// What a link does with the events of its transport, short of driving it.
class Noticer final : public Watcher {
 public:
  explicit Noticer(Transport& transport) : transport_(transport) {}

  std::atomic<int> activity{0};
  std::atomic<int> hung_up{0};

 private:
  void on_event(uint32_t tag, uint32_t events) override {
    switch (transport_.meaning(tag, events)) {
      case Transport::Meaning::kNone:
        return;
      case Transport::Meaning::kActivity:
        activity.fetch_add(1, std::memory_order_release);
        return;
      case Transport::Meaning::kHungUp:
        transport_.peer_gone("the peer hung up");
        hung_up.fetch_add(1, std::memory_order_release);
        return;
    }
  }

  Transport& transport_;
};

// A transport in a poller, as a link that nobody drives.
struct Watched {
  explicit Watched(Transport& of) : transport(of), poller(Poller::create().value()) {
    noticer = make_ref<Noticer>(of);
    REQUIRE(of.watch(*poller, noticer).ok());
  }
  ~Watched() { transport.unwatch(); }

  // Runs the poller until it reports something; false: nothing came.
  bool wait(Nanos deadline = patience()) {
    const int before = total();
    while (total() == before) {
      if (now() >= deadline) return false;
      poller->poll(deadline);
    }
    return true;
  }
  // Whether something is there to be reported at this moment.
  bool reports_now() {
    const int before = total();
    poller->poll(0);
    return total() != before;
  }
  int total() const { return noticer->activity + noticer->hung_up; }

  Transport& transport;
  std::unique_ptr<Poller> poller;
  Ref<Noticer> noticer;
};

}  // namespace tw::test

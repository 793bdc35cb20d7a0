// SPDX-License-Identifier: Apache-2.0
// Strangers at a server's sockets, and clients that come with the wrong papers.
#include "meet/listener.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "test/base/descriptors.h"
#include "test/call/helper.h"
#include "test/meet/dial.h"
#include "test/transport/verbs/world.h"
#include "test/wire/support.h"
#include "transport/shm/control.h"

namespace tw::test {
namespace {

template <class Way>
const std::string& address_of(const House& house) {
  return std::string_view(Way::kName) == "shm" ? house.shm() : house.tcp();
}

// True once the server has closed the connection without a word.
bool dismissed(const Fd& fd) {
  char byte;
  ssize_t n;
  while ((n = recv(fd.get(), &byte, 1, 0)) < 0 && errno == EINTR) {
  }
  return n == 0 || (n < 0 && errno == ECONNRESET);
}

bool works(CallPort& link) {
  const auto bytes = bytes_of(1000);
  const Reply reply = unary(link, "/t/Echo", {out(bytes)});
  return reply.code == Code::kOk && same(reply.segments.at(0), bytes);
}

TEST_CASE_TEMPLATE("listener: who does not speak the protocol is dismissed, links go on", Way,
                   TENSORWIRE_WAYS) {
  House house(echo);
  Closing link(house.connect<Way>());
  const Fd garbage = dial(address_of<Way>(house));
  const std::string text(200, 'x');
  REQUIRE(::send(garbage.get(), text.data(), text.size(), MSG_NOSIGNAL) == 200);
  CHECK(dismissed(garbage));
  CHECK(works(*link));
  // Whoever leaves in the middle is forgotten.
  for (int steps = 0; steps < 3; ++steps) {
    auto handshake = papers(runtime(), house.invitation(Way::kName));
    const Fd leaver = dial(address_of<Way>(house));
    shake(leaver, handshake, steps);
  }
  CHECK(works(*link));
  Closing another(house.connect<Way>());
  CHECK(works(*another));
}

TEST_CASE_TEMPLATE("listener: the wrong papers are refused, and spend nothing", Way,
                   TENSORWIRE_WAYS) {
  House house(echo);
  Closing live(house.connect<Way>());
  const auto refused = [&](const meet::Invitation& in) {
    const auto connected = meet::connect(runtime(), in, patience());
    REQUIRE_FALSE(connected.ok());
    CHECK(connected.status().code() == Code::kUnauthenticated);
    CHECK(works(*live));
  };
  const auto good = house.invitation(Way::kName);
  auto bad = good;
  bad.secret = *meet::Secret::random();
  refused(bad);
  bad = good;
  bad.instance[3] ^= 1;
  refused(bad);
  bad = good;
  bad.session[0] ^= 1;
  refused(bad);
  // The session that they tried serves its owner, once.
  CHECK(meet::connect(runtime(), good, patience()).ok());
  refused(good);
  const auto late = house.invitation(Way::kName, 1, 1);
  REQUIRE(eventually([at = now()] { return now() > at; }));
  refused(late);
  // Papers for one socket do not open the other.
  auto moved = house.invitation(Way::kName);
  auto handshake = papers(runtime(), moved);
  const Fd other = dial(std::string_view(Way::kName) == "shm" ? house.tcp() : house.shm());
  const auto bytes = handshake.outgoing();
  REQUIRE(::send(other.get(), bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(bytes.size()));
  REQUIRE(handshake.sent(bytes.size()).ok());
  const auto room = handshake.space();
  REQUIRE(recv(other.get(), room.data(), room.size(), MSG_WAITALL) ==
          static_cast<ssize_t>(room.size()));
  CHECK(handshake.received(room.size()).code() == Code::kFailedPrecondition);
}

TEST_CASE_TEMPLATE("listener: a session for several connections admits just so many", Way,
                   TENSORWIRE_WAYS) {
  House house(echo);
  const auto in = house.invitation(Way::kName, 3);
  std::vector<meet::Connected> connected;
  for (int i = 0; i < 3; ++i) {
    auto one = meet::connect(runtime(), in, patience());
    REQUIRE(one.ok());
    connected.push_back(std::move(*one));
  }
  CHECK(meet::connect(runtime(), in, patience()).status().code() == Code::kUnauthenticated);
}

// Strangers need descriptors of their own here, as they are in the same process.
size_t raise_descriptors() {
  rlimit limit{};
  REQUIRE(getrlimit(RLIMIT_NOFILE, &limit) == 0);
  limit.rlim_cur = limit.rlim_max;
  REQUIRE(setrlimit(RLIMIT_NOFILE, &limit) == 0);
  return limit.rlim_cur;
}

// In a child, which may have more descriptors than the other cases.
TEST_CASE("helper: a crowd" * doctest::skip()) {
  const size_t descriptors = raise_descriptors();
  House house(echo);
  Closing shm(house.connect<ShmWay>());
  Closing tcp(house.connect<TcpWay>());
  // More than both sockets together have room for.
  const size_t room = meet::Listener::room();
  REQUIRE(descriptors >= 8 * room);
  std::vector<Fd> crowd;
  std::atomic<bool> over{false};
  for (size_t i = 0; i < room + 100; ++i) {
    crowd.push_back(dial(house.tcp()));
    crowd.push_back(dial(house.shm()));
  }
  std::thread mob([&] {
    const std::string text(200, 'x');
    for (size_t i = 0; !over.load(); ++i) {
      crowd[2 * (i % room)] = dial(house.tcp());
      crowd[2 * (i % room) + 1] = dial(house.shm());
      const Fd garbage = dial(i % 2 == 0 ? house.tcp() : house.shm());
      (void)::send(garbage.get(), text.data(), text.size(), MSG_NOSIGNAL);
    }
  });
  int failed = 0;
  for (int i = 0; i < 50; ++i) {
    for (const char* way : {"shm", "tcp"}) {
      auto connected = meet::connect(runtime(), house.invitation(way), patience());
      if (!connected) {
        MESSAGE(std::string(way), ": ", connected.status().details());
        ++failed;
        continue;
      }
      Closing link(CallPort::create(runtime(), std::move(connected->transport),
                                    std::move(connected->peer), SIZE_MAX)
                       .value());
      failed += !works(*link);
    }
  }
  over = true;
  mob.join();
  CHECK(failed == 0);
  CHECK(works(*shm));
  CHECK(works(*tcp));
  CHECK(runtime().audit().count(Incident::kEvictedStranger) >= 2 * 100);
  CHECK(runtime().audit().count(Incident::kHandshakeGarbage) > 0);
  write_thing(kToTest, failed == 0 ? 'k' : 'f');
}

TEST_CASE("listener: a thousand silent strangers and a mob at each socket keep nobody out") {
  Helper helper("a crowd");
  CHECK(helper.hear<char>() == 'k');
}

// A listener by itself, with little patience.
struct Gate {
  explicit Gate(Nanos time)
      : poller(Poller::create().value()),
        listener(make_ref<meet::Listener>(
            runtime(), *poller, [this](meet::Connected) { ++arrived; }, time)) {
    const auto path = listener->listen_local();
    REQUIRE(path.ok());
    shm = "shm:" + *path;
    const auto port = listener->listen_tcp("127.0.0.1", 0);
    REQUIRE(port.ok());
    tcp = "tcp:127.0.0.1:" + std::to_string(*port);
    thread = std::thread([this] {
      while (!stop) poller->poll(kForever);
    });
  }
  ~Gate() {
    listener->close();
    stop = true;
    poller->wake();
    thread.join();
  }

  std::atomic<int> arrived{0};
  std::atomic<bool> stop{false};
  const std::unique_ptr<Poller> poller;
  const Ref<meet::Listener> listener;
  std::string shm, tcp;
  std::thread thread;
};

TEST_CASE("listener: an admission that came to nothing is there for another try, once") {
  Gate gate(60 * kSecond);
  const auto ticket = gate.listener->admit(runtime().hello(), 1, 30 * kSecond);
  REQUIRE(ticket.ok());
  const meet::Invitation shm{gate.shm, ticket->session, ticket->secret, runtime().instance(),
                             runtime().hello()};
  {
    auto handshake = papers(runtime(), shm);
    const Fd fd = dial(gate.shm);
    shake(fd, handshake, 3);
    REQUIRE(handshake.done());  // and then no rings come
  }
  meet::Invitation tcp = shm;
  tcp.address = gate.tcp;
  CHECK(meet::connect(runtime(), tcp, patience()).ok());
  CHECK(meet::connect(runtime(), tcp, patience()).status().code() == Code::kUnauthenticated);
}

TEST_CASE("listener: who says nothing goes sooner than who is at it") {
  Gate gate(60 * kSecond);
  const auto before = runtime().audit().count(Incident::kHandshakeSilent);
  const auto ticket = gate.listener->admit(runtime().hello(), 1, 30 * kSecond);
  REQUIRE(ticket.ok());
  auto handshake = papers(runtime(), {gate.tcp, ticket->session, ticket->secret,
                                      runtime().instance(), runtime().hello()});
  const Fd talker = dial(gate.tcp);
  shake(talker, handshake, 1);
  const Fd silent = dial(gate.tcp);
  while (!dismissed(silent)) {
  }
  shake(talker, handshake, 3);
  CHECK(handshake.done());
  CHECK(runtime().audit().count(Incident::kHandshakeSilent) > before);
}

TEST_CASE_TEMPLATE("listener: whoever takes too long is dismissed, at each step", Way,
                   TENSORWIRE_WAYS) {
  const bool shm = std::string_view(Way::kName) == "shm";
  for (int steps = 0; steps < (shm ? 3 : 2); ++steps) {
    until_enough(10 * kMillisecond, [&](Nanos time) {
      Gate gate(time);
      const auto ticket = gate.listener->admit(runtime().hello(), 1, 30 * kSecond);
      REQUIRE(ticket.ok());
      meet::Invitation in{shm ? gate.shm : gate.tcp, ticket->session, ticket->secret,
                          runtime().instance(), runtime().hello()};
      auto handshake = papers(runtime(), in);
      const Fd fd = dial(in.address);
      if (!shake_in_time(fd, handshake, steps)) return false;
      // After the server's proof nothing more has come; after the last step rings are due.
      while (!dismissed(fd)) {
      }
      CHECK(gate.arrived == 0);
      return true;
    });
  }
}

TEST_CASE("listener: verbs clients at addresses that nobody has do not hold up the server") {
  TENSORWIRE_NEEDS_VERBS;
  House house(echo);
  constexpr size_t kLost = 20;
  const auto in = house.invitation("verbs", kLost);
  // The kernel looks for each of these addresses for a second.
  wire::VerbsOffer offer = verbs_world().offer()->frame();
  for (uint32_t i = 0; i < offer.pairs; ++i) offer.pair[i].gid[15] = 77;
  std::array<std::byte, wire::kVerbsOfferSize> bytes;
  wire::encode(bytes, offer);
  std::vector<Fd> lost;
  while (lost.size() < kLost) {
    auto handshake = papers(runtime(), in);
    lost.push_back(dial(house.tcp()));
    shake(lost.back(), handshake, 3);
    REQUIRE(handshake.done());
    REQUIRE(::send(lost.back().get(), bytes.data(), bytes.size(), 0) == bytes.size());
  }
  Closing link(house.connect<TcpWay>());
  CHECK(works(*link));
  const auto answered = std::count_if(lost.begin(), lost.end(), [](const Fd& fd) {
    char byte;
    return recv(fd.get(), &byte, 1, MSG_DONTWAIT | MSG_PEEK) >= 0;
  });
  CHECK(answered < std::ssize(lost));
}

TEST_CASE("listener: a client that proves itself but offers no rings is dismissed") {
  Gate gate(60 * kSecond);
  const auto ticket = gate.listener->admit(runtime().hello(), 1, 30 * kSecond);
  REQUIRE(ticket.ok());
  auto handshake =
      papers(runtime(), {gate.shm, ticket->session, ticket->secret, runtime().instance(), {}});
  const Fd fd = dial(gate.shm);
  shake(fd, handshake, 3);
  REQUIRE(handshake.done());
  wire::ShmFrame frame;
  frame.type = wire::ShmFrameType::kSlabGone;
  REQUIRE(send_shm_frame(fd.get(), frame, {}).ok());
  CHECK(dismissed(fd));
  CHECK(gate.arrived == 0);
}

// In a child, whose descriptors can be made few without harm to the other cases.
TEST_CASE("helper: few descriptors" * doctest::skip()) {
  House house(echo);
  const bool shm = read_thing<char>(kFromTest) == 's';
  const auto connect = [&](bool patient) {
    return meet::connect(runtime(), house.invitation(shm ? "shm" : "tcp"),
                         patient ? patience() : now() + 100 * kMillisecond);
  };
  // UBSan looks at each kind of object once, by means of a pipe: what is met without descriptors
  // must have been met before. So nothing is left of a link, no late event either, when it is over.
  const auto call = [&] {
    auto connected = connect(true).value();
    const auto link = CallPort::create(runtime(), std::move(connected.transport),
                                       std::move(connected.peer), SIZE_MAX)
                          .value();
    CHECK(works(*link));
    const auto served = ports_of(house.server());
    link->link().close({Code::kCancelled, "the test is over"});
    REQUIRE(eventually([&] {
      return link->link().lost() &&
             std::ranges::all_of(served, [](const auto& end) { return end->link().lost(); });
    }));
    std::atomic<bool> round = false;
    runtime().background().value()->add_timer(0, [&] { round = true; });
    REQUIRE(eventually([&] { return round.load(); }));
  };
  call();
  REQUIRE(errno_status(Code::kUnknown, "warm", EMFILE).code() == Code::kUnknown);

  rlimit limit{};
  REQUIRE(getrlimit(RLIMIT_NOFILE, &limit) == 0);
  limit.rlim_cur = 128;
  REQUIRE(setrlimit(RLIMIT_NOFILE, &limit) == 0);
  const std::string& address = shm ? house.shm() : house.tcp();
  // True if the server heard of strangers whom it could not let in. There are more of them than
  // descriptors that what ended before gives back only then.
  const auto starve = [&](auto&& meanwhile) {
    std::vector<Fd> strangers(32), filler;
    for (Fd& fd : strangers) fd = socket_for(address);
    for (;;) {
      Fd fd(::dup(0));
      if (!fd) break;
      filler.push_back(std::move(fd));
    }
    REQUIRE(errno == EMFILE);
    meanwhile();
    const auto refused = [] { return runtime().audit().count(Incident::kBudgetDescriptors); };
    const uint64_t before = refused();
    for (const Fd& fd : strangers) dial(fd, address);
    return eventually([&] { return refused() > before; });
  };

  Status failed;
  CHECK(starve([&] { failed = connect(false).status(); }));
  CHECK_FALSE(failed.ok());
  CHECK_FALSE(failed.details().empty());
  call();

  // The same with strangers who were let in, so that one can give way. The socket takes them in
  // their order: a link that came later shows that all have been.
  std::vector<Fd> crowd(8);
  for (Fd& fd : crowd) fd = dial(address);
  call();
  CHECK(starve([] {}));
  call();
  write_thing(kToTest, 'k');
}

TEST_CASE_TEMPLATE("listener: without descriptors it waits, and then goes on", Way,
                   TENSORWIRE_WAYS) {
  Helper helper("few descriptors");
  helper.tell(*Way::kName);
  CHECK(helper.hear<char>() == 'k');
}

TEST_CASE("listener: closed, it dismisses everybody and leaves nothing behind") {
  std::string path;
  Fd waiting[2];
  {
    Gate gate(60 * kSecond);
    path = gate.shm.substr(4);
    struct stat folder{};
    REQUIRE(stat(path.substr(0, path.rfind('/')).c_str(), &folder) == 0);
    CHECK((folder.st_mode & 0777) == 0700);
    waiting[0] = dial(gate.shm);
    waiting[1] = dial(gate.tcp);
    gate.listener->close();
    CHECK(gate.listener->listen_tcp("127.0.0.1", 0).status().code() == Code::kFailedPrecondition);
  }
  for (const Fd& fd : waiting) CHECK(dismissed(fd));
  CHECK(access(path.c_str(), F_OK) != 0);
  CHECK(access(path.substr(0, path.rfind('/')).c_str(), F_OK) != 0);
}

TEST_CASE("listener: closed, it lets nobody in where a child has its sockets, too") {
  Gate gate(60 * kSecond);
  const std::string port = gate.tcp.substr(gate.tcp.rfind(':') + 1);
  std::vector<Fd> inherited;
  for (int fd = 0; fd < 1024; ++fd) {
    int listens = 0;
    socklen_t size = sizeof listens;
    if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) == 0 && listens)
      inherited.emplace_back(dup(fd));
  }
  CHECK(!inherited.empty());
  gate.listener->close();
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<uint16_t>(std::stoi(port)));
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const Fd late(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  CHECK(connect(late.get(), reinterpret_cast<sockaddr*>(&to), sizeof to) != 0);
}

TEST_CASE("listener: addresses that cannot be listened on") {
  Gate gate(60 * kSecond);
  CHECK(gate.listener->listen_tcp(std::string(300, 'h'), 0).status().code() ==
        Code::kInvalidArgument);
  CHECK(gate.listener->listen_tcp("192.0.2.1", 0).status().code() == Code::kUnavailable);
  const int taken = std::stoi(gate.tcp.substr(gate.tcp.rfind(':') + 1));
  check_says(gate.listener->listen_tcp("127.0.0.1", taken).status(), Code::kUnavailable,
             {std::to_string(taken)});
}

TEST_CASE("connect: what cannot be reached is said at once, or at the deadline") {
  const auto ticket = meet::Admissions().mint(1, kSecond);
  const auto to = [&](const std::string& address, Nanos deadline = patience()) {
    meet::Invitation in{address, ticket->session, ticket->secret, runtime().instance(),
                        runtime().hello()};
    const auto connected = meet::connect(runtime(), in, deadline);
    REQUIRE_FALSE(connected.ok());
    return connected.status();
  };
  for (const char* nonsense : {"", "shm:", "tcp:", "tcp::1", "tcp:host:", "tcp:::1:1",
                               "tcp:127.0.0.1:65536", "tcp:127.0.0.1:1 ", "udp:127.0.0.1:1"})
    CHECK(to(nonsense).code() == Code::kInvalidArgument);
  CHECK(to("shm:" + std::string(200, 'x')).code() == Code::kInvalidArgument);
  CHECK(to(std::string("shm:/tmp/a\0b", 12)).code() == Code::kInvalidArgument);
  check_says(to("shm:/nonexistent/socket"), Code::kUnavailable, {"/nonexistent/socket"});
  // Longer than a part of a name may be, so that nobody is asked for it.
  check_says(to("tcp:" + std::string(100, 'h') + ":1"), Code::kUnavailable, {"resolve", "hhh"});
  check_says(to("tcp:[::1%nosuchdevice0]:1"), Code::kUnavailable, {"resolve", "::1%nosuchdevice0"});

  // A port that is bound but does not listen, and one where nobody answers.
  Fd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  auto* const any = reinterpret_cast<sockaddr*>(&address);
  REQUIRE(bind(socket.get(), any, size) == 0);
  REQUIRE(getsockname(socket.get(), any, &size) == 0);
  const std::string port = "tcp:127.0.0.1:" + std::to_string(ntohs(address.sin_port));
  check_says(to(port), Code::kUnavailable, {port});
  REQUIRE(listen(socket.get(), 4) == 0);
  check_says(to(port, now() + kMillisecond), Code::kDeadlineExceeded, {port});
  // An impostor learns nothing and is told apart.
  std::thread impostor([&] {
    for (int i = 0; i < 2; ++i) {
      const Fd guest(accept4(socket.get(), nullptr, nullptr, SOCK_CLOEXEC));
      std::byte open[wire::kClientOpenSize];
      if (i == 0) continue;  // the one who did not wait
      REQUIRE(recv(guest.get(), open, sizeof open, MSG_WAITALL) == sizeof open);
      std::array<std::byte, wire::kServerProofSize> bytes;
      wire::encode(bytes, wire::ServerProof{});
      REQUIRE(::send(guest.get(), bytes.data(), bytes.size(), 0) == wire::kServerProofSize);
      char byte;
      CHECK(recv(guest.get(), &byte, 1, 0) == 0);
    }
  });
  check_says(to(port), Code::kUnauthenticated, {"cannot prove"});
  impostor.join();
}

}  // namespace
}  // namespace tw::test

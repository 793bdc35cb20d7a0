// SPDX-License-Identifier: Apache-2.0
// A listener that has no memory for what it is to do.
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "meet/listener.h"
#include "test/base/descriptors.h"
#include "test/call/helper.h"
#include "test/meet/dial.h"
#include "test/not_tried.h"
#include "test/shortage.h"

namespace tw::test {
namespace {

// A listener that nobody but the test drives, with room for few.
struct OwnListener {
  explicit OwnListener(Nanos patience = 5 * kSecond) {
    rlimit limit{};
    REQUIRE(getrlimit(RLIMIT_NOFILE, &limit) == 0);
    const rlim_t before = std::exchange(limit.rlim_cur, 8 * kRoom);
    REQUIRE(setrlimit(RLIMIT_NOFILE, &limit) == 0);
    REQUIRE(meet::Listener::room() == kRoom);
    listener = make_ref<meet::Listener>(
        runtime(), *poller,
        [this](meet::Connected connected) { arrived.push_back(std::move(connected)); }, patience);
    const auto path = listener->listen_local();
    REQUIRE(path.ok());
    shm = "shm:" + *path;
    const auto port = listener->listen_tcp("127.0.0.1", 0);
    REQUIRE(port.ok());
    tcp = "tcp:127.0.0.1:" + std::to_string(*port);
    limit.rlim_cur = before;
    REQUIRE(setrlimit(RLIMIT_NOFILE, &limit) == 0);
  }
  ~OwnListener() { listener->close(); }
  // Until nothing is left to be done.
  void drive() {
    pollfd waits{poller->fd(), POLLIN, 0};
    while (::poll(&waits, 1, 0) > 0) (void)poller->poll(now());
  }
  // As long as the client is at it; its n-th allocation fails, and whether it has come to that.
  template <class Client>
  bool serve(int n, Client&& client) {
    std::atomic<bool> over{false};
    std::thread thread([&] {
      client();
      over = true;
      poller->wake();
    });
    bool failed;
    {
      Failing failing(n);
      while (!over) (void)poller->poll(kForever);
      drive();
      failed = failing.end();
    }
    thread.join();
    return failed;
  }
  meet::Invitation invitation(std::string_view way, int connections = 1) {
    auto ticket = listener->admit(runtime().hello(), connections, 60 * kSecond);
    REQUIRE(ticket.ok());
    // No short strings.
    listener->introduce(ticket->session, std::string(100, 'c'), std::string(100, 'a'));
    const std::string& door = way == "tcp" ? tcp : shm;
    return {std::string(way) + door.substr(door.find(':')), ticket->session, ticket->secret,
            runtime().instance(), runtime().hello()};
  }
  // Whether it takes in as many as ever, and nobody has to give way.
  bool has_room(const std::string& address) {
    for (;;) {
      const Nanos begun = now();
      std::vector<Fd> crowd;
      for (size_t i = 0; i < kRoom; ++i) {
        crowd.push_back(dial(address));
        drive();
      }
      if (std::ranges::all_of(crowd, [](const Fd& fd) { return stays(fd); })) return true;
      if (now() - begun < kSecond) return false;  // else they went because they say nothing
    }
  }
  // Nothing has come, and no end either.
  static bool stays(const Fd& fd) {
    char byte;
    return recv(fd.get(), &byte, 1, MSG_DONTWAIT) < 0 && errno == EAGAIN;
  }
  static constexpr size_t kRoom = 32;  // at each socket, and among those that join

  const std::unique_ptr<Poller> poller = Poller::create().value();
  Ref<meet::Listener> listener;
  std::string shm, tcp;
  std::vector<meet::Connected> arrived;
};

TEST_CASE("listener: a stranger for whom there is no memory leaves nothing behind") {
  if (!kFailsOnDemand)
    return not_tried("ThreadSanitizer insists on its own allocator: none fails on demand");
  bool failed = true;
  for (int n = 1; failed; ++n) {
    CAPTURE(n);
    OwnListener own;
    const auto before = open_descriptors();
    {
      const Fd stranger = dial(own.shm);
      Failing failing(n);
      own.drive();
      failed = failing.end();
    }
    own.drive();
    CHECK(open_descriptors() == before);
  }
}

TEST_CASE("listener: who gives way goes, though there is no memory for the newcomer") {
  if (!kFailsOnDemand)
    return not_tried("ThreadSanitizer insists on its own allocator: none fails on demand");
  bool failed = true;
  for (int n = 1; failed; ++n) {
    CAPTURE(n);
    OwnListener own;
    std::vector<Fd> crowd;
    for (size_t i = 0; i < OwnListener::kRoom; ++i) {
      crowd.push_back(dial(own.shm));
      own.drive();
    }
    const Fd newcomer = dial(own.shm);
    {
      Failing failing(n);
      own.drive();
      failed = failing.end();
    }
    own.drive();
    char byte;
    CHECK(recv(crowd[0].get(), &byte, 1, MSG_DONTWAIT) == 0);
  }
}

TEST_CASE_TEMPLATE("listener: a client for whom there is no memory leaves nothing behind", Way,
                   TENSORWIRE_WAYS) {
  if (!kFailsOnDemand)
    return not_tried("ThreadSanitizer insists on its own allocator: none fails on demand");
  bool failed = true;
  for (int n = 0; failed; ++n) {  // the first time nothing fails, and what is made once is made
    REQUIRE(n < 300);
    CAPTURE(n);
    OwnListener own;
    const auto in = own.invitation(Way::kName);
    const auto before = open_descriptors();
    {
      Result<meet::Connected> client{meet::Connected{}};
      const auto connect = [&] { client = meet::connect(runtime(), in, patience()); };
      failed = own.serve(n, connect) || n == 0;
      // An admission that came to nothing is there for another try.
      if (own.arrived.empty()) {
        (void)own.serve(0, connect);
        CHECK(client.ok());
        CHECK(own.arrived.size() == 1);
      }
    }
    own.arrived.clear();
    own.drive();
    CHECK((n == 0 || open_descriptors() <= before));
    CHECK(own.has_room(std::string_view(Way::kName) == "shm" ? own.shm : own.tcp));
  }
}

// A set-up that blocks, and then waits for what its client never says.
class SlowSetup final : public Setup {
 public:
  Result<Next> go_on(int socket) override {
    if (!std::exchange(begun_, true)) return Next::kBlocking;
    char byte;
    if (recv(socket, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0)
      return Status{Code::kUnavailable, "the peer closed the connection"};
    return Next::kRead;
  }
  Result<Made> become(Fd) override { return Status{Code::kInternal, "it never ends"}; }

 private:
  bool begun_ = false;
};

class SlowKind final : public Kind {
 public:
  explicit SlowKind(uint16_t code) : code_(code) {}
  std::string_view name() const override { return "loop"; }
  uint16_t code() const override { return code_; }
  Socket socket() const override { return Socket::kUnix; }
  Result<std::unique_ptr<Setup>> offer(const Meeting&) override {
    return Status{Code::kUnimplemented, "it only accepts"};
  }
  Result<std::unique_ptr<Setup>> accept(const Meeting&) override {
    return std::unique_ptr<Setup>(new SlowSetup);
  }

 private:
  const uint16_t code_;
};

// While one lives, who begins to listen has the slow kind in the place of `loop`.
class Slowed {
 public:
  explicit Slowed(std::unique_ptr<Kind>& slow) : slow_(slow) { place().swap(slow_); }
  ~Slowed() { place().swap(slow_); }
  Slowed(const Slowed&) = delete;
  Slowed& operator=(const Slowed&) = delete;

 private:
  static std::unique_ptr<Kind>& place() {
    const auto kinds = runtime().kinds();
    return const_cast<std::unique_ptr<Kind>&>(*std::ranges::find(kinds, "loop", &Kind::name));
  }
  std::unique_ptr<Kind>& slow_;
};

TEST_CASE("listener: who gives way goes among those that join, too") {
  if (!kFailsOnDemand)
    return not_tried("ThreadSanitizer insists on its own allocator: none fails on demand");
  std::unique_ptr<Kind> slow = std::make_unique<SlowKind>(runtime().kind("loop")->code());
  bool failed = true;
  for (int n = 1; failed; ++n) {
    REQUIRE(n < 200);
    CAPTURE(n);
    std::optional<Slowed> slowed(slow);
    OwnListener own(60 * kSecond);
    slowed.reset();
    const auto in = own.invitation("loop", OwnListener::kRoom + 2);
    std::vector<Fd> clients(OwnListener::kRoom + 2);
    const auto join = [&](Fd& fd) {
      auto handshake = papers(runtime(), in);
      fd = dial(own.shm);
      (void)shake_in_time(fd, handshake, 3);
    };
    const auto others = std::span(clients).first(OwnListener::kRoom);
    (void)own.serve(0, [&] { std::ranges::for_each(others, join); });
    failed = own.serve(n, [&] { join(clients[OwnListener::kRoom]); });
    (void)own.serve(0, [&] { join(clients.back()); });
    // Nobody is there who is counted no more.
    CHECK(std::ranges::count_if(clients, OwnListener::stays) == std::ptrdiff_t{OwnListener::kRoom});
  }
}

TEST_CASE("listener: whose time is over goes, though there is no memory to say why") {
  if (!kFailsOnDemand)
    return not_tried("ThreadSanitizer insists on its own allocator: none fails on demand");
  until_enough(20 * kMillisecond, [](Nanos time) {
    OwnListener own(time);
    const Fd silent = dial(own.shm);
    own.drive();
    if (!OwnListener::stays(silent)) return false;  // too late for what is tried here
    {
      const Failing failing(1);
      const Nanos deadline = patience();
      while (OwnListener::stays(silent) && now() < deadline) (void)own.poller->poll(deadline);
    }
    CHECK_FALSE(OwnListener::stays(silent));
    return true;
  });
}

}  // namespace
}  // namespace tw::test

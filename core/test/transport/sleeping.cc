// SPDX-License-Identifier: Apache-2.0
// How every transport sleeps and is woken: drivers, the background, interruptions, and no wake-up
// that gets lost.
#include <pthread.h>
#include <signal.h>

#include <mutex>
#include <random>
#include <thread>

#include "test/transport/pair.h"

namespace tw::test {
namespace {

TEST_CASE_TEMPLATE("transport: a sleep ends at its deadline", Maker, TENSORWIRE_TRANSPORTS) {
  TENSORWIRE_NEEDS(Maker);
  TransportPair pair = Maker::make();
  CHECK(pair.a->sleep(false, 0) == Wake::kTimeout);
  CHECK(pair.a->sleep(true, now() + kMillisecond) != Wake::kSignal);
  const Nanos deadline = now() + 2 * kMillisecond;
  CHECK(pair.a->sleep(false, deadline) == Wake::kTimeout);
  CHECK(now() >= deadline);
}

TEST_CASE_TEMPLATE("transport: bytes and room end a sleep", Maker, TENSORWIRE_TRANSPORTS) {
  TENSORWIRE_NEEDS(Maker);
  TransportPair pair = Maker::make();
  REQUIRE(send_pattern(*pair.a, 0, 1) == 1);
  CHECK(pair.b->sleep(false, patience()) == Wake::kReady);  // they had come before
  CHECK(receive_pattern(*pair.b, 0, 1) == 1);

  std::thread sender([&] { REQUIRE(send_pattern(*pair.a, 1, 1) == 1); });
  while (receive_pattern(*pair.b, 1, 1) == 0)
    REQUIRE(pair.b->sleep(false, patience()) == Wake::kReady);
  sender.join();

  const uint64_t sent = fill(*pair.b);
  std::thread reader([&] {
    for (uint64_t received = 0; received < sent;) {
      const size_t n = receive_pattern(*pair.a, received, 4096);
      if (n == 0) REQUIRE(pair.a->sleep(false, patience()) == Wake::kReady);
      received += n;
    }
  });
  while (send_pattern(*pair.b, sent, 1) == 0)
    REQUIRE(pair.b->sleep(true, patience()) == Wake::kReady);
  reader.join();
}

TEST_CASE_TEMPLATE("transport: an interruption ends one sleep, the present or the next", Maker,
                   TENSORWIRE_TRANSPORTS) {
  TENSORWIRE_NEEDS(Maker);
  TransportPair pair = Maker::make();
  pair.a->interrupt();
  pair.a->interrupt();
  CHECK(pair.a->sleep(false, patience()) == Wake::kReady);
  CHECK(pair.a->sleep(false, now() + kMillisecond) == Wake::kTimeout);
}

TEST_CASE_TEMPLATE("transport: no interruption is lost to a race", Maker, TENSORWIRE_TRANSPORTS) {
  TENSORWIRE_NEEDS(Maker);
  TransportPair pair = Maker::make();
  constexpr int kRounds = 2000;
  std::atomic<int> asked{0}, seen{0};
  std::atomic<bool> failed{false};
  std::thread sleeper([&] {
    while (seen.load(std::memory_order_relaxed) < kRounds && !failed) {
      if (asked.load(std::memory_order_acquire) == seen.load(std::memory_order_relaxed) &&
          pair.a->sleep(false, patience()) != Wake::kReady)
        failed = true;
      seen.store(asked.load(std::memory_order_acquire), std::memory_order_release);
    }
  });
  for (int i = 1; i <= kRounds && !failed; ++i) {
    asked.store(i, std::memory_order_release);
    pair.a->interrupt();
    while (seen.load(std::memory_order_acquire) < i && !failed) std::this_thread::yield();
  }
  sleeper.join();
  CHECK_FALSE(failed);
}

TEST_CASE_TEMPLATE("transport: news of the peer's end wakes a driver", Maker,
                   TENSORWIRE_TRANSPORTS) {
  TENSORWIRE_NEEDS(Maker);
  TransportPair pair = Maker::make();
  std::thread herald([&] { pair.a->peer_gone("it fell"); });
  char byte;
  const iovec room = run_of(&byte, 1);
  for (;;) {
    const auto got = pair.a->receive({&room, 1});
    if (!got.ok()) break;
    REQUIRE(pair.a->sleep(false, patience()) == Wake::kReady);
  }
  herald.join();
}

TEST_CASE_TEMPLATE("transport: a signal ends a sleep", Maker, TENSORWIRE_TRANSPORTS) {
  TENSORWIRE_NEEDS(Maker);
  TransportPair pair = Maker::make();
  struct sigaction action{}, before{};
  action.sa_handler = [](int) {};  // without SA_RESTART
  REQUIRE(sigaction(SIGUSR1, &action, &before) == 0);
  std::atomic<bool> done{false};
  std::atomic<Wake> wake{Wake::kReady};
  std::thread sleeper([&] {
    wake = pair.a->sleep(false, patience());
    done.store(true, std::memory_order_release);
  });
  // The first ones may come before it sleeps.
  while (!done.load(std::memory_order_acquire)) {
    pthread_kill(sleeper.native_handle(), SIGUSR1);
    std::this_thread::yield();
  }
  sleeper.join();
  sigaction(SIGUSR1, &before, nullptr);
  CHECK(wake == Wake::kSignal);
}

TEST_CASE_TEMPLATE("transport: the background hears of activity while armed, and only then", Maker,
                   TENSORWIRE_TRANSPORTS) {
  TENSORWIRE_NEEDS(Maker);
  TransportPair pair = Maker::make();
  Watched watched(*pair.a);
  REQUIRE(send_pattern(*pair.b, 0, 10) == 10);
  CHECK_FALSE(watched.reports_now());
  pair.a->arm(false);  // bytes are there already
  REQUIRE(watched.wait());
  CHECK_FALSE(watched.reports_now());  // once
  pair.a->disarm();
  CHECK(receive_pattern(*pair.a, 0, 10) == 10);

  pair.a->arm(false);
  CHECK_FALSE(watched.reports_now());
  REQUIRE(send_pattern(*pair.b, 10, 10) == 10);
  REQUIRE(watched.wait());
  pair.a->disarm();
  CHECK(receive_pattern(*pair.a, 10, 10) == 10);

  pair.a->arm(false);
  pair.a->disarm();
  REQUIRE(send_pattern(*pair.b, 20, 10) == 10);
  CHECK_FALSE(watched.reports_now());
  CHECK(watched.noticer->hung_up == 0);
}

TEST_CASE_TEMPLATE("transport: the background hears of room if it wants to send", Maker,
                   TENSORWIRE_TRANSPORTS) {
  TENSORWIRE_NEEDS(Maker);
  TransportPair pair = Maker::make();
  Watched watched(*pair.a);
  const uint64_t sent = fill(*pair.a);
  pair.a->arm(true);
  CHECK_FALSE(watched.reports_now());
  for (uint64_t received = 0; received < sent;) {
    const size_t n = receive_pattern(*pair.b, received, 4096);
    if (n == 0) REQUIRE(pair.b->sleep(false, patience()) == Wake::kReady);
    received += n;
  }
  // As a reader does before it rests: by then the writer must have been told.
  pair.b->sleep(false, 0);
  REQUIRE(watched.wait());
  pair.a->disarm();
  CHECK(send_pattern(*pair.a, sent, 1) == 1);
}

TEST_CASE_TEMPLATE("transport: the background hears of a hang-up", Maker, TENSORWIRE_TRANSPORTS) {
  TENSORWIRE_NEEDS(Maker);
  TransportPair pair = Maker::make();
  Watched watched(*pair.a);
  pair.a->arm(false);
  pair.b.reset();
  REQUIRE(watched.wait());
  pair.a->disarm();
  char byte;
  const iovec room = run_of(&byte, 1);
  const auto got = pair.a->receive({&room, 1});
  REQUIRE_FALSE(got.ok());
  CHECK(got.status().code() == Code::kUnavailable);
}

TEST_CASE_TEMPLATE("transport: the background takes no wake-up from a driver who is asleep", Maker,
                   TENSORWIRE_TRANSPORTS) {
  TENSORWIRE_NEEDS(Maker);
  TransportPair pair = Maker::make();
  auto poller = Poller::create().value();
  REQUIRE(pair.a->watch(*poller, make_ref<Noticer>(*pair.a)).ok());
  std::atomic<bool> stop{false}, failed{false};
  std::thread background([&] {
    while (!stop) poller->poll(kForever);
  });
  pair.a->arm(false);
  pair.a->disarm();
  pair.b->disarm();
  constexpr uint64_t kRounds = 2000;
  std::atomic<uint64_t> received{0};
  std::thread driver([&] {
    while (received < kRounds && !failed) {
      const size_t n = receive_pattern(*pair.a, received, 1);
      if (n == 0 && pair.a->sleep(false, patience()) != Wake::kReady) failed = true;
      received += n;
    }
  });
  for (uint64_t sent = 0; sent < kRounds && !failed;) {
    sent += send_pattern(*pair.b, sent, 1);
    while (received < sent && !failed) {
      (void)pair.b->readable();
      std::this_thread::yield();
    }
  }
  driver.join();
  CHECK_FALSE(failed);
  pair.a->unwatch();
  stop = true;
  poller->wake();
  background.join();
}

// Counts what it is told, and says when it goes.
class Fleeting final : public Watcher {
 public:
  Fleeting(int& told, bool& gone) : told_(told), gone_(gone) {}
  ~Fleeting() override { gone_ = true; }

 private:
  void on_event(uint32_t, uint32_t) override { ++told_; }

  int& told_;
  bool& gone_;
};

TEST_CASE_TEMPLATE("transport: unwatched, it reports nothing", Maker, TENSORWIRE_TRANSPORTS) {
  TENSORWIRE_NEEDS(Maker);
  TransportPair pair = Maker::make();
  auto poller = Poller::create().value();
  int told = 0;
  bool gone = false;
  REQUIRE(pair.a->watch(*poller, make_ref<Fleeting>(told, gone)).ok());
  pair.a->arm(false);
  CHECK_FALSE(gone);
  pair.a->unwatch();
  CHECK(gone);
  REQUIRE(send_pattern(*pair.b, 0, 10) == 10);
  poller->poll(0);
  CHECK(told == 0);
  pair.a->arm(false);
  pair.a->disarm();
  pair.a->unwatch();
  CHECK(receive_pattern(*pair.a, 0, 10) == 10);
}

// Owns its transport, as a link does: an event that is under way may outlive the watch.
class Owner final : public Watcher {
 public:
  explicit Owner(std::unique_ptr<Transport> transport) : transport_(std::move(transport)) {}
  Transport& transport() { return *transport_; }
  std::atomic<bool> hung_up{false};

 private:
  void on_event(uint32_t tag, uint32_t events) override {
    if (transport_->meaning(tag, events) == Transport::Meaning::kHungUp) hung_up = true;
  }

  const std::unique_ptr<Transport> transport_;
};

TEST_CASE_TEMPLATE("transport: events race with the beginning and the end of a watch", Maker,
                   TENSORWIRE_TRANSPORTS) {
  TENSORWIRE_NEEDS(Maker);
  auto poller = Poller::create().value();
  std::atomic<bool> stop{false};
  std::thread background([&] {
    while (!stop) poller->poll(kForever);
  });
  auto slab = Slab::make(0, 1, 4096);
  REQUIRE(slab.ok());
  for (int round = 0; round < Maker::kRounds; ++round) {
    TransportPair pair = Maker::make();
    auto owner = make_ref<Owner>(std::move(pair.a));
    std::thread peer([&] {
      if (Maker::kShares) REQUIRE(pair.b->share(**slab).ok());
      send_pattern(*pair.b, 0, 10);
      pair.b.reset();
    });
    REQUIRE(owner->transport().watch(*poller, owner).ok());
    owner->transport().arm(false);
    if (round % 2) std::this_thread::yield();
    owner->transport().unwatch();
    peer.join();
  }
  stop = true;
  poller->wake();
  background.join();
}

// -------------------------------------------------------------------------------------------
// stress

// One end in one thread: it answers each burst with another, and rests in between as a driver or as
// an idle link, whichever chance says.
class Player {
 public:
  Player(Transport& transport, uint32_t seed, std::atomic<bool>& failed)
      : transport_(transport), watched_(transport), random_(seed), failed_(failed) {}

  void play(uint64_t goal, bool begins) {
    uint64_t owed = begins ? burst() : 0;
    while ((received_ < goal || sent_ < goal) && !failed_) {
      owed = std::min(owed, goal - sent_);
      bool moved = false;
      if (owed != 0) {
        const size_t n = send_pattern(transport_, sent_, std::min<uint64_t>(owed, 30'000));
        sent_ += n;
        owed -= n;
        moved = n != 0;
      }
      if (const size_t n = receive_pattern(transport_, received_, 1 + random_() % 10'000)) {
        received_ += n;
        moved = true;
        if (owed == 0) owed = burst();
      }
      if (received_ == goal && owed == 0) owed = goal - sent_;
      if (!moved) rest(owed != 0);
    }
    transport_.arm(false);  // who leaves hands on: over verbs the other end may rely on it
  }

 private:
  uint64_t burst() { return random_() % 8 ? 1 + random_() % 300 : 1 + random_() % 60'000; }

  void rest(bool want_send) {
    bool woken;
    if (random_() % 2) {
      woken = transport_.sleep(want_send, patience()) == Wake::kReady;
    } else {
      transport_.arm(want_send);
      woken = watched_.wait();
      transport_.disarm();
    }
    if (!woken) failed_ = true;
  }

  Transport& transport_;
  Watched watched_;
  std::mt19937 random_;
  std::atomic<bool>& failed_;
  uint64_t sent_ = 0, received_ = 0;
};

TEST_CASE_TEMPLATE("transport: two ends that rest whenever they can lose no wake-up", Maker,
                   TENSORWIRE_TRANSPORTS) {
  TENSORWIRE_NEEDS(Maker);
  TransportPair pair = Maker::make();
  std::atomic<bool> failed{false};
  constexpr uint64_t kGoal = 3'000'000;
  Player a(*pair.a, 1, failed), b(*pair.b, 2, failed);
  std::thread other([&] { b.play(kGoal, false); });
  a.play(kGoal, true);
  other.join();
  CHECK_FALSE(failed);
}

// One end with two threads: one sends, as users of a link do, the other drives.
class End {
 public:
  End(Transport& transport, uint32_t seed, std::atomic<bool>& failed)
      : transport_(transport), random_(seed), failed_(failed) {}

  void produce(uint64_t goal) {
    while (queued_ < goal && !failed_) {
      {
        std::lock_guard lock(mutex_);
        queued_ = std::min<uint64_t>(goal, queued_ + 1 + random_() % 5000);
        flush_locked();
      }
      if (unsent_) transport_.interrupt();
      while (unsent_ && !failed_) std::this_thread::yield();
    }
  }

  void drive(uint64_t goal) {
    uint64_t received = 0;
    while ((received < goal || sent() < goal) && !failed_) {
      if (unsent_) {
        std::lock_guard lock(mutex_);
        flush_locked();
      }
      const size_t n = receive_pattern(transport_, received, 4000);
      received += n;
      // At the end it is this end's own sender that is waited for, which does not ring.
      const Nanos deadline = received < goal ? patience() : now() + kMillisecond;
      if (n == 0 && transport_.sleep(unsent_, deadline) == Wake::kTimeout && received < goal)
        failed_ = true;
    }
    transport_.arm(false);  // who leaves hands on: over verbs the other end may rely on it
  }

 private:
  uint64_t sent() {
    std::lock_guard lock(mutex_);
    return sent_;
  }
  void flush_locked() {
    while (sent_ < queued_) {
      const size_t n = send_pattern(transport_, sent_, static_cast<size_t>(queued_ - sent_));
      if (n == 0) break;
      sent_ += n;
    }
    unsent_ = sent_ < queued_;
  }

  Transport& transport_;
  std::mt19937 random_;
  std::atomic<bool>& failed_;
  std::mutex mutex_;
  uint64_t queued_ = 0, sent_ = 0;
  std::atomic<bool> unsent_{false};
};

TEST_CASE_TEMPLATE("transport: one thread sends while another drives, at both ends", Maker,
                   TENSORWIRE_TRANSPORTS) {
  TENSORWIRE_NEEDS(Maker);
  TransportPair pair = Maker::make();
  std::atomic<bool> failed{false};
  constexpr uint64_t kGoal = 1'000'000;
  End a(*pair.a, 1, failed), b(*pair.b, 2, failed);
  std::thread threads[] = {
      std::thread([&] { a.produce(kGoal); }), std::thread([&] { b.produce(kGoal); }),
      std::thread([&] { a.drive(kGoal); }), std::thread([&] { b.drive(kGoal); })};
  for (auto& thread : threads) thread.join();
  CHECK_FALSE(failed);
}

}  // namespace
}  // namespace tw::test

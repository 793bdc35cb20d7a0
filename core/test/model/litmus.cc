// SPDX-License-Identifier: Apache-2.0
// The explorer itself, on programs whose outcomes the C++ standard settles.
#include <doctest/doctest.h>

#include <functional>
#include <memory>
#include <string>

#include "test/model/model.h"

namespace tw::model {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;
constexpr auto kAcquire = std::memory_order_acquire;
constexpr auto kRelease = std::memory_order_release;
constexpr auto kAcqRel = std::memory_order_acq_rel;

std::string violation(const std::function<void(Program&)>& setup) {
  Program program(setup);
  return explore(program).violation;
}

struct Two {
  Atomic<uint32_t> x{0};
  Atomic<uint32_t> y{0};
  Plain p, q;
};

TEST_CASE("model: store buffering is seen without fences and excluded by two") {
  for (int fences = 0; fences < 4; ++fences) {
    CAPTURE(fences);
    const auto found = violation([fences](Program& program) {
      auto m = std::make_shared<Two>();
      // Each tells what it read by a store of its own; the last one to look checks.
      program.thread([=] {
        m->x.store(1, kRelease);
        if (fences & 1) fence();
        if (m->y.load(kAcquire) == 0) m->p.write(1);
        ring(0);
      });
      program.thread([=] {
        m->y.store(1, kRelease);
        if (fences & 2) fence();
        if (m->x.load(kAcquire) == 0) m->p.write(1);
        ring(1);
      });
    });
    // Both read 0 exactly when both write p, which is then a race.
    CHECK(found.empty() == (fences == 3));
  }
}

TEST_CASE("model: message passing needs release and acquire") {
  const auto run = [](std::memory_order store, std::memory_order load) {
    return violation([=](Program& program) {
      auto m = std::make_shared<Two>();
      program.thread([=] {
        m->p.write(7);
        m->x.store(1, store);
      });
      program.thread([=] {
        if (m->x.load(load) == 1) require(m->p.read() == 7, "stale payload");
      });
    });
  };
  CHECK(run(kRelease, kAcquire).empty());
  CHECK(run(kRelaxed, kAcquire).starts_with("data race"));
  CHECK(run(kRelease, kRelaxed).starts_with("data race"));
}

TEST_CASE("model: message passing by fences") {
  const auto run = [](bool first, bool second) {
    return violation([=](Program& program) {
      auto m = std::make_shared<Two>();
      program.thread([=] {
        m->p.write(7);
        if (first) fence();
        m->x.store(1, kRelaxed);
      });
      program.thread([=] {
        const bool seen = m->x.load(kRelaxed) == 1;
        if (second) fence();
        if (seen) require(m->p.read() == 7, "stale payload");
      });
    });
  };
  CHECK(run(true, true).empty());
  CHECK(run(false, true).starts_with("data race"));
  CHECK(run(true, false).starts_with("data race"));
}

TEST_CASE("model: fences alone order no plain memory") {
  CHECK(violation([](Program& program) {
          auto m = std::make_shared<Two>();
          program.thread([=] {
            m->p.write(7);
            fence();
          });
          program.thread([=] {
            fence();
            m->p.read();
          });
        }).starts_with("data race"));
}

TEST_CASE("model: a location is read in one order by everybody") {
  CHECK(violation([](Program& program) {
          auto m = std::make_shared<Two>();
          program.thread([=] { m->x.store(1, kRelaxed); });
          program.thread([=] { m->x.store(2, kRelaxed); });
          for (int reader = 0; reader < 2; ++reader) {
            program.thread([=] {
              const auto a = m->x.load(kRelaxed);
              const auto b = m->x.load(kRelaxed);
              require(!(a != 0 && b == 0), "went back");
              // One reader sees 1 then 2, the other 2 then 1: never both. Each that saw its order
              // writes.
              if (a == 1 && b == 2 && reader == 0) m->p.write(1);
              if (a == 2 && b == 1 && reader == 1) m->p.write(1);
            });
          }
        }).empty());
}

TEST_CASE("model: independent reads of independent writes") {
  const auto run = [](bool fences) {
    return violation([=](Program& program) {
      auto m = std::make_shared<Two>();
      program.thread([=] { m->x.store(1, kRelease); });
      program.thread([=] { m->y.store(1, kRelease); });
      for (int reader = 0; reader < 2; ++reader) {
        program.thread([=] {
          const auto a = (reader == 0 ? m->x : m->y).load(kAcquire);
          if (fences) fence();
          const auto b = (reader == 0 ? m->y : m->x).load(kAcquire);
          if (a == 1 && b == 0) m->p.write(1);
        });
      }
    });
  };
  CHECK(run(false).starts_with("data race"));
  CHECK(run(true).empty());
}

TEST_CASE("model: stores may enter the order before those that were made earlier") {
  // 2+2W: without fences both locations can end with the value stored first by the other thread.
  const auto run = [](bool fences) {
    return violation([=](Program& program) {
      auto m = std::make_shared<Two>();
      const auto body = [m, fences](Atomic<uint32_t>& a, Atomic<uint32_t>& b) {
        a.store(1, kRelaxed);
        if (fences) fence();
        b.store(2, kRelaxed);
        ring(&a == &m->x ? 0 : 1);
      };
      program.thread([=] { body(m->x, m->y); });
      program.thread([=] { body(m->y, m->x); });
      program.thread([=] {
        wait(0);
        wait(1);
        // Two reads of each find the newest store in some execution; only that is asked for.
        const auto x1 = m->x.load(kRelaxed), y1 = m->y.load(kRelaxed);
        const auto x2 = m->x.load(kRelaxed), y2 = m->y.load(kRelaxed);
        require(!(x1 == 2 && x2 == 1 && y1 == 2 && y2 == 1), "both ended with 1");
      });
    });
  };
  CHECK(run(false) == "both ended with 1");
  CHECK(run(true).empty());
}

TEST_CASE("model: read-modify-writes lose nothing and continue release sequences") {
  CHECK(violation([](Program& program) {
          auto m = std::make_shared<Two>();
          for (int i = 0; i < 3; ++i) {
            program.thread([=] {
              const auto old = m->x.fetch_add(1, kRelaxed);
              require(old < 3, "too many");
              if (old == 0) m->p.write(1);  // two threads with one number would race
              if (old == 1) m->q.write(1);
            });
          }
        }).empty());
  const auto run = [](std::memory_order middle) {
    return violation([=](Program& program) {
      auto m = std::make_shared<Two>();
      program.thread([=] {
        m->p.write(1);
        m->x.store(1, kRelease);
      });
      program.thread([=] { m->x.fetch_add(1, middle); });
      program.thread([=] {
        if (m->x.load(kAcquire) == 2) m->p.read();
      });
    });
  };
  CHECK(run(kRelaxed).empty());
  CHECK(run(kAcqRel).empty());
  const auto exchange = violation([](Program& program) {
    auto m = std::make_shared<Two>();
    for (int i = 0; i < 2; ++i) {
      program.thread([=] {
        if (m->x.exchange(1, kAcqRel) == 0) m->p.write(1);  // one thread only
      });
    }
  });
  CHECK(exchange.empty());
}

TEST_CASE("model: threads that wait for ever are found") {
  CHECK(violation([](Program& program) {
          program.thread([] { wait(0); });
          program.thread([] { ring(1); });
        }) == "threads wait for ever");
  CHECK(violation([](Program& program) {
          program.thread([] { wait(0); });
          program.thread([] { ring(0); });
        }).empty());
}

TEST_CASE("model: futex") {
  const auto run = [](bool change_first) {
    return violation([=](Program& program) {
      auto m = std::make_shared<Two>();
      program.thread([=] { futex_wait(m->x, 0U); });
      program.thread([=] {
        if (change_first) m->x.store(1, kRelaxed);
        futex_wake(m->x);
        if (!change_first) m->x.store(1, kRelaxed);
      });
    });
  };
  CHECK(run(true).empty());
  CHECK(run(false) == "threads wait for ever");
}

TEST_CASE("model: choices are all tried") {
  CHECK(violation([](Program& program) {
          program.thread([] { require(choose(3) != 2, "two"); });
        }) == "two");
  CHECK(violation([](Program& program) {
          program.thread([] { require(choose(3) != 3, "three"); });
        }).empty());
}

TEST_CASE("model: what threads construct is their own unless they share it") {
  const auto run = [](bool shared) {
    return violation([=](Program& program) {
      for (int i = 0; i < 2; ++i) {
        program.thread([=] {
          std::unique_ptr<Shared> sharing;
          if (shared) sharing = std::make_unique<Shared>(1);
          Atomic<uint32_t> x{0};
          sharing.reset();
          require(x.fetch_add(1, kRelaxed) == 0, "somebody else was here");
        });
      }
    });
  };
  CHECK(run(false).empty());
  CHECK(run(true) == "somebody else was here");
}

}  // namespace
}  // namespace tw::model

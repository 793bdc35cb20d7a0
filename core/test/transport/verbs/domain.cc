// SPDX-License-Identifier: Apache-2.0
#include "transport/verbs/domain.h"

#include <doctest/doctest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "memory/memfd.h"
#include "test/memory/slab_watch.h"
#include "test/transport/verbs/fake_device.h"

namespace tw::verbs {
namespace {

using test::SlabWatch;

FakeDevice usual() { return {"mlx5_0", {roce_port({{0, "::ffff:10.0.0.1"}})}}; }

Ref<Domain> open(const FakeHost& host, const Settings& settings = {}) {
  auto domain = Domain::open(host.library(), "mlx5_0", settings);
  REQUIRE(domain.ok());
  return std::move(*domain);
}

Ref<Slab> make_slab(uint32_t index, size_t pages = 4) {
  auto slab = Slab::make(index, 1, pages * page_size());
  REQUIRE(slab.ok());
  return std::move(*slab);
}

class Noted final : public Observer {
 public:
  void on_event(const AsyncEvent& event) override { events.push_back(event); }
  std::vector<AsyncEvent> events;
};

// What a forked child finds, as its exit code.
template <class Check>
int in_child(Check&& check) {
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) _exit(check());
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST_SUITE("verbs") {
  TEST_CASE("a slab is registered once, whole, whoever asks, until the arena drops it") {
    FakeHost host({usual()});
    auto domain = open(host);
    auto slab = make_slab(0);
    auto other = make_slab(1);
    for (int i = 0; i < 3; ++i) {
      const auto registered = domain->slab(*slab);
      REQUIRE(registered.ok());
      CHECK((*registered)->data() == slab->base());
      CHECK((*registered)->size() == slab->size());
    }
    CHECK(host.counts().last_access ==
          (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_MW_BIND));
    auto in_use = domain->slab(*other);
    REQUIRE(in_use.ok());
    CHECK((*in_use)->remote_key() != domain->slab(*slab).value()->remote_key());
    CHECK(host.counts().registered == 2);
    CHECK(domain->stats().registrations == 2);
    CHECK(domain->stats().pinned == 2 * slab->size());

    domain->slabs_dropped();  // none was
    CHECK(domain->stats().registrations == 2);
    slab->drop();
    other->drop();
    const SlabWatch watch(*slab), watch_other(*other);
    slab = other = nullptr;
    CHECK_FALSE(watch.gone());
    domain->slabs_dropped();
    CHECK(domain->stats().registrations == 1);  // the other is still in use
    CHECK(watch.gone());
    CHECK_FALSE(watch_other.gone());
    in_use = Status{};
    CHECK(domain->stats().registrations == 0);
    CHECK(domain->stats().pinned == 0);
    CHECK(watch_other.gone());
    domain->close();
  }

  TEST_CASE("a slab that was dropped goes when the next one is registered, at the latest") {
    FakeHost host({usual()});
    auto domain = open(host);
    auto slab = make_slab(0);
    REQUIRE(domain->slab(*slab).ok());
    slab->drop();
    auto next = make_slab(1);
    const SlabWatch watch(*slab), watch_next(*next);
    slab = nullptr;
    CHECK_FALSE(watch.gone());
    REQUIRE(domain->slab(*next).ok());
    CHECK(domain->stats().registrations == 1);
    CHECK(watch.gone());
    next = nullptr;
    CHECK_FALSE(watch_next.gone());
    domain->close();
    CHECK(watch_next.gone());
  }

  TEST_CASE("everything is gone after close, and what is held goes with its holder") {
    FakeHost host({usual()});
    {
      auto slab = make_slab(0);
      std::array<std::byte, 256> buffer;
      auto domain = open(host);
      REQUIRE(domain->slab(*slab).ok());
      auto held = domain->add(buffer.data(), buffer.size(), kLocalWrite);
      auto once = domain->add_temporary(buffer.data(), 100, kLocalWrite);
      auto window = domain->window();
      REQUIRE(held.ok());
      REQUIRE(once.ok());
      REQUIRE(window.ok());
      CHECK(domain->stats().registrations == 3);
      CHECK(domain->stats().pinned == slab->size() + 356);
      CHECK(domain->stats().temporary == 1);
      CHECK(domain->stats().windows == 1);
      once = Status{};
      CHECK(domain->stats().temporary == 0);
      CHECK(domain->stats().temporary_made == 1);
      domain->close();
      CHECK(domain->stats().registrations == 1);
      CHECK(domain->slab(*slab).status().code() == Code::kUnavailable);
      const SlabWatch watch(*slab);
      slab = nullptr;
      CHECK(watch.gone());
      domain = nullptr;
      CHECK(host.counts().contexts == 1);  // held and window are still there
    }
    FakeHost::Counts none;
    none.registered = host.counts().registered;
    none.last_access = host.counts().last_access;
    CHECK(host.counts() == none);
  }

  TEST_CASE("registering keeps the memory that it was given a hold on") {
    FakeHost host({usual()});
    auto domain = open(host);
    auto slab = make_slab(0);  // stands for any memory with an owner
    auto held = domain->add(slab->base(), 64, kRemoteRead, Ref<Slab>(slab));
    REQUIRE(held.ok());
    CHECK(host.counts().last_access == IBV_ACCESS_REMOTE_READ);
    CHECK(domain->add(slab->base(), 0, kRemoteRead).status().code() == Code::kInvalidArgument);
    const SlabWatch watch(*slab);
    slab = nullptr;
    CHECK_FALSE(watch.gone());
    held = Status{};
    CHECK(watch.gone());
  }

  TEST_CASE("memory that the device does not let go of is not given back") {
    FakeHost host({usual()});
    auto domain = open(host);
    auto slab = make_slab(0);
    auto held = domain->add(slab->base(), 64, kRemoteRead, Ref<Slab>(slab));
    REQUIRE(held.ok());
    Registration* const stuck = held.value().get();
    host.deregistration_error = EBUSY;
    held = Status{};
    CHECK(domain->stats().registrations == 1);
    const SlabWatch watch(*slab);
    slab = nullptr;
    CHECK_FALSE(watch.gone());
    host.deregistration_error = 0;
    stuck->release();  // once more, so that the test itself leaks nothing
    CHECK(domain->stats().registrations == 0);
    CHECK(watch.gone());
  }

  // What a link holds that lets its peer at memory.
  struct Grant {
    Grant(Domain& domain, std::byte* data, size_t size, Rights rights)
        : share(domain.share(data, size).value()), window(domain.window().value()) {
      const auto bound = window->bind(share.memory(), data, size, rights).bind_mw.bind_info;
      memory = bound.mr;
      access = bound.mw_access_flags;
    }

    SharedRegistration share;
    Ref<Window> window;
    ibv_mr* memory = nullptr;
    unsigned access = 0;
  };

  TEST_CASE("memory that three links expose is registered once, until the last one conceals it") {
    FakeHost host({usual()});
    auto domain = open(host);
    std::array<std::byte, 256> bytes;
    std::optional<Grant> first(std::in_place, *domain, bytes.data(), 256, kMayRead),
        second(std::in_place, *domain, bytes.data(), 256, kMayRead | kMayWrite),
        third(std::in_place, *domain, bytes.data(), 256, kMayUpdate);
    CHECK(host.counts().registered == 1);
    CHECK(host.counts().windows == 3);
    CHECK(domain->stats().pinned == 256);
    // Nobody comes there but by a window.
    CHECK(host.counts().last_access == (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND));
    CHECK(first->memory == second->memory);
    CHECK(first->memory == third->memory);
    CHECK(first->access == IBV_ACCESS_REMOTE_READ);
    CHECK(second->access == (IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE));
    CHECK(third->access == IBV_ACCESS_REMOTE_ATOMIC);

    // Windows that are not exact are bounded by what they lie on: other bytes have their own.
    std::optional<Grant> part(std::in_place, *domain, bytes.data(), 255, kMayRead);
    CHECK(host.counts().registered == 2);
    CHECK(part->memory != first->memory);
    part.reset();

    first.reset();
    second.reset();
    CHECK(host.counts().windows == 1);
    CHECK(host.counts().regions == 1);
    third.reset();
    CHECK(host.counts().regions == 0);
    CHECK(domain->stats().registrations == 0);
    first.emplace(*domain, bytes.data(), 256, kMayRead);
    CHECK(host.counts().registered == 3);
  }

  TEST_CASE("nobody joins in on memory that all links have let go of, while one still leaves") {
    FakeHost host({usual()});
    auto domain = open(host);
    std::array<std::byte, 256> bytes;
    Grant first(*domain, bytes.data(), 256, kMayRead), second(*domain, bytes.data(), 256, kMayRead);
    first.share.close();
    Grant third(*domain, bytes.data(), 256, kMayRead);
    CHECK(third.memory == second.memory);
    second.share.close();
    second.share.close();  // nothing more
    third.share.close();
    // Other pages may lie there now.
    Grant fresh(*domain, bytes.data(), 256, kMayRead);
    CHECK(fresh.memory != third.memory);
    CHECK(Grant(*domain, bytes.data(), 256, kMayRead).memory == fresh.memory);
    CHECK(host.counts().regions == 2);
  }

  TEST_CASE("memory that the device refuses is shared by nobody") {
    FakeHost host({usual()});
    auto domain = open(host);
    std::array<std::byte, 256> bytes;
    host.lockable = 0;
    CHECK(domain->share(bytes.data(), 256).status().code() == Code::kResourceExhausted);
    host.lockable = SIZE_MAX;
    const auto shared = domain->share(bytes.data(), 256);
    REQUIRE(shared.ok());
    CHECK(host.counts().regions == 1);
    CHECK(in_child([&] {
            const auto refused = domain->share(bytes.data(), 256);
            return refused.ok() || refused.status().code() != Code::kFailedPrecondition;
          }) == 0);
  }

  TEST_CASE("links that come and go at once share what is there") {
    FakeHost host({usual()});
    auto domain = open(host);
    std::array<std::byte, 256> bytes;
    std::vector<std::thread> links;
    std::atomic<int> wrong{0};
    for (int i = 0; i < 4; ++i) {
      links.emplace_back([&] {
        for (int round = 0; round < 500; ++round) {
          const auto share = domain->share(bytes.data(), 256);
          wrong += !share.ok() || share->memory()->handle()->addr != bytes.data() ||
                   share->memory()->handle()->length != 256;
        }
      });
    }
    for (std::thread& link : links) link.join();
    CHECK(wrong == 0);
    CHECK(host.counts().regions == 0);
    CHECK(domain->stats().registrations == 0);
  }

  TEST_CASE("too little lockable memory is explained with the limit and the commands") {
    FakeHost host({usual()});
    host.lockable = 100;
    auto domain = open(host);
    auto slab = make_slab(0);
    rlimit before{};
    REQUIRE(getrlimit(RLIMIT_MEMLOCK, &before) == 0);
    const rlimit lowered{65536, before.rlim_max};
    REQUIRE(setrlimit(RLIMIT_MEMLOCK, &lowered) == 0);
    for (const int error : {ENOMEM, EPERM}) {
      host.registration_error = error;
      const auto refused = domain->slab(*slab);
      REQUIRE_FALSE(refused.ok());
      CHECK(refused.status().code() == Code::kResourceExhausted);
      const std::string& said = refused.status().details();
      INFO(said);
      for (const char* part :
           {"mlx5_0", "could not register 16384 bytes", "65536 bytes", "`ulimit -l unlimited`",
            "LimitMEMLOCK=infinity", "`docker run --ulimit memlock=-1`"})
        CHECK(said.find(part) != std::string::npos);
    }
    const rlimit unlimited{RLIM_INFINITY, RLIM_INFINITY};
    if (before.rlim_max == RLIM_INFINITY && setrlimit(RLIMIT_MEMLOCK, &unlimited) == 0) {
      host.registration_error = ENOMEM;
      CHECK(domain->slab(*slab).status().details().find("locked memory is not limited") !=
            std::string::npos);
    }
    setrlimit(RLIMIT_MEMLOCK, &before);
    host.registration_error = EFAULT;
    CHECK(domain->slab(*slab).status().code() == Code::kInvalidArgument);
    host.registration_error = EIO;
    CHECK(domain->slab(*slab).status().code() == Code::kUnavailable);
    const SlabWatch watch(*slab);
    slab = nullptr;
    CHECK(watch.gone());
    slab = make_slab(0);
    host.lockable = SIZE_MAX;
    CHECK(domain->slab(*slab).ok());  // a refusal is not remembered
    domain->close();
  }

  TEST_CASE("a window is bound under a new key each time, and keeps what it lies on") {
    FakeHost host({usual()});
    auto domain = open(host);
    auto slab = make_slab(0);
    auto memory = domain->slab(*slab);
    auto window = domain->window();
    REQUIRE(memory.ok());
    REQUIRE(window.ok());
    const uint32_t first = (*window)->key();
    ibv_send_wr request = (*window)->bind(*memory, slab->base() + 10, 20, kMayRead | kMayUpdate);
    CHECK(request.opcode == IBV_WR_BIND_MW);
    CHECK(request.bind_mw.rkey == (*window)->key());
    CHECK((*window)->key() == (first & ~0xffU));  // 0xff wraps round within its byte
    CHECK(request.bind_mw.bind_info.addr == reinterpret_cast<uint64_t>(slab->base() + 10));
    CHECK(request.bind_mw.bind_info.length == 20);
    CHECK(request.bind_mw.bind_info.mr == (*memory)->handle());
    CHECK(request.bind_mw.bind_info.mw_access_flags ==
          (IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC));
    const uint32_t second = (*window)->key();
    request = (*window)->bind(*memory, slab->base(), 4096, kMayWrite);
    CHECK((*window)->key() == second + 1);
    CHECK(request.bind_mw.bind_info.mw_access_flags == IBV_ACCESS_REMOTE_WRITE);

    // A device may refuse to let go of memory with a window on it: the window goes first.
    memory = Status{};
    domain->close();
    CHECK(host.counts().regions == 1);
    window = Status{};
    CHECK(host.counts().regions == 0);
  }

  TEST_CASE("a device without windows says so, and its memory is registered without") {
    FakeDevice plain = usual();
    plain.flags = 0;
    FakeHost host({plain});
    auto domain = open(host);
    CHECK(domain->window().status().code() == Code::kUnimplemented);
    auto slab = make_slab(0);
    REQUIRE(domain->slab(*slab).ok());
    CHECK(host.counts().last_access == (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ));
    domain->close();
  }

  TEST_CASE("the inline size is what the device takes, and no more than the setting") {
    FakeHost host({usual()});
    Settings settings;
    settings.inline_bytes = 100;
    CHECK(open(host, settings)->inline_bytes() == 100);
    settings.inline_bytes = 1024;  // refused, halved until it is not
    CHECK(open(host, settings)->inline_bytes() == 256);
    settings.inline_bytes = 0;
    CHECK(open(host, settings)->inline_bytes() == 0);
    host.devices[0].max_inline = 0;
    settings.inline_bytes = 64;
    CHECK(open(host, settings)->inline_bytes() == 0);
    CHECK(host.counts() == FakeHost::Counts{});
  }

  TEST_CASE("events reach every observer, in words, and are acknowledged") {
    FakeHost host({usual()});
    auto poller = Poller::create();
    REQUIRE(poller.ok());
    auto domain = open(host);
    REQUIRE(domain->watch(**poller).ok());
    auto noted = make_ref<Noted>();
    auto forgotten = make_ref<Noted>();
    domain->observe(noted);
    domain->observe(forgotten);
    domain->forget(*forgotten);
    host.report("mlx5_0", IBV_EVENT_PORT_ERR, 1);
    host.report("mlx5_0", IBV_EVENT_SM_CHANGE, 1);  // nobody's business
    host.report("mlx5_0", IBV_EVENT_GID_CHANGE, 1);
    host.report("mlx5_0", IBV_EVENT_PORT_ACTIVE, 2);
    host.report_queue_pair("mlx5_0", IBV_EVENT_QP_FATAL, 1234);
    (*poller)->poll(now() + 5 * kSecond);
    CHECK(host.counts().unacknowledged == 0);
    REQUIRE(noted->events.size() == 4);
    CHECK(noted->events[0].kind == AsyncEvent::Kind::kPortDown);
    CHECK(noted->events[0].port == 1);
    CHECK(noted->events[0].why.code() == Code::kUnavailable);
    CHECK(noted->events[0].why.details() == "RDMA device mlx5_0: an event");
    CHECK(noted->events[1].kind == AsyncEvent::Kind::kPortChanged);
    CHECK(noted->events[2].kind == AsyncEvent::Kind::kPortUp);
    CHECK(noted->events[2].port == 2);
    CHECK(noted->events[3].kind == AsyncEvent::Kind::kQueuePair);
    CHECK(noted->events[3].queue_pair == 1234);
    CHECK_FALSE(domain->lost());
    CHECK(forgotten->events.empty());

    host.report("mlx5_0", IBV_EVENT_DEVICE_FATAL);
    (*poller)->poll(now() + 5 * kSecond);
    CHECK(domain->lost());
    CHECK(noted->events.back().kind == AsyncEvent::Kind::kDeviceLost);
    auto slab = make_slab(0);
    CHECK(domain->slab(*slab).status().code() == Code::kUnavailable);
    CHECK(domain->port(1).status().code() == Code::kUnavailable);
    domain->close();
  }

  TEST_CASE("a device that is pulled out is lost, and its poller rests") {
    FakeHost host({usual()});
    auto poller = Poller::create();
    REQUIRE(poller.ok());
    auto domain = open(host);
    REQUIRE(domain->watch(**poller).ok());
    auto noted = make_ref<Noted>();
    domain->observe(noted);
    auto slab = make_slab(0);
    REQUIRE(domain->slab(*slab).ok());
    host.remove("mlx5_0");
    (*poller)->poll(now() + 5 * kSecond);
    CHECK(domain->lost());
    REQUIRE(noted->events.size() == 1);
    CHECK(noted->events[0].kind == AsyncEvent::Kind::kDeviceLost);
    CHECK(noted->events[0].why.details() == "RDMA device mlx5_0 has been removed");
    // With the device went what it knew: its errors keep nothing alive.
    host.deregistration_error = EIO;
    domain->close();
    CHECK(domain->stats().registrations == 0);
    const SlabWatch watch(*slab);
    slab = nullptr;
    CHECK(watch.gone());
    host.deregistration_error = 0;
  }

  TEST_CASE("a forked child releases nothing of its parent's and registers nothing in it") {
    FakeHost host({usual()});
    auto domain = open(host);
    auto slab = make_slab(0);
    auto held = domain->slab(*slab);
    auto window = domain->window();
    REQUIRE(held.ok());
    REQUIRE(window.ok());
    const FakeHost::Counts before = host.counts();
    CHECK(in_child([&] {
            if (domain->add(slab->base(), 64, kRemoteRead).status().code() !=
                Code::kFailedPrecondition)
              return 1;
            if (domain->window().status().code() != Code::kFailedPrecondition) return 2;
            held = Status{};
            window = Status{};
            domain->close();
            domain = nullptr;
            return host.counts() == before ? 0 : 3;
          }) == 0);
    CHECK(host.counts() == before);
    domain->close();
  }

  TEST_CASE("forks are made safe before anything is registered, where the kernel needs it") {
    struct Row {
      ibv_fork_status status;
      int init_error;
      ForkSafety safety;
      int inits;
    };
    for (const Row& row : {Row{IBV_FORK_UNNEEDED, 0, ForkSafety::kKernel, 0},
                           Row{IBV_FORK_ENABLED, 0, ForkSafety::kNotInherited, 0},
                           Row{IBV_FORK_DISABLED, 0, ForkSafety::kNotInherited, 1},
                           Row{IBV_FORK_DISABLED, EINVAL, ForkSafety::kNone, 1}}) {
      FakeHost host;
      host.forks = row.status;
      host.fork_init_error = row.init_error;
      CHECK(protect_forks(host.library()) == row.safety);
      CHECK(host.counts().fork_inits == row.inits);
    }
    FakeHost old;
    old.table().is_fork_initialized = nullptr;
    CHECK(protect_forks(old.library()) == ForkSafety::kNotInherited);
    CHECK(old.counts().fork_inits == 1);
  }

  TEST_CASE("a child keeps the arena's slabs where registered memory is not inherited") {
    FakeHost host({usual()});
    host.forks = IBV_FORK_ENABLED;
    auto domain = open(host);
    auto slab = make_slab(0);
    slab->base()[7] = std::byte{42};
    // As libibverbs does it on registration.
    REQUIRE(madvise(slab->base(), slab->size(), MADV_DONTFORK) == 0);
    REQUIRE(domain->slab(*slab).ok());
    CHECK(in_child([&] { return std::to_integer<int>(slab->base()[7]); }) == 42);
    domain->close();
  }
}

}  // namespace
}  // namespace tw::verbs

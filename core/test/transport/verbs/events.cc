// SPDX-License-Identifier: Apache-2.0
// What a device reports beside completions, as Soft-RoCE never does: its functions, with events of
// the test's own.
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "test/transport/verbs/world.h"
#include "test/wire/support.h"
#include "transport/verbs/library.h"

namespace tw::test {
namespace {

struct Eventful {
  struct Opened {
    int kernels;  // the descriptor by which the kernel's events come
    int own;
    std::deque<ibv_async_event> events;
  };
  inline static std::mutex mutex;  // guards what follows
  inline static std::map<ibv_context*, Opened> contexts;
  inline static std::vector<ibv_cq*> queues;  // made since the test began

  static const verbs::Library& real() { return **verbs::Library::get(); }

  static ibv_context* open(ibv_device* device) {
    ibv_context* const context = real().open_device(device);
    if (!context) return nullptr;
    std::lock_guard lock(mutex);
    const int own = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    contexts[context] = {std::exchange(context->async_fd, own), own, {}};
    return context;
  }
  static int close(ibv_context* context) {
    {
      std::lock_guard lock(mutex);
      const Opened& opened = contexts.at(context);
      context->async_fd = opened.kernels;
      ::close(opened.own);
      contexts.erase(context);
    }
    return real().close_device(context);
  }
  static int get_event(ibv_context* context, ibv_async_event* out) {
    std::lock_guard lock(mutex);
    Opened& opened = contexts.at(context);
    eventfd_t reported;
    if (eventfd_read(opened.own, &reported) != 0) return -1;
    *out = opened.events.front();
    opened.events.pop_front();
    return 0;
  }
  // Mutex held. The kernel is told where the events of what is made go.
  struct Kernels {
    explicit Kernels(ibv_context* of) : context(of) {
      context->async_fd = contexts.at(context).kernels;
    }
    ~Kernels() { context->async_fd = contexts.at(context).own; }
    ibv_context* const context;
  };
  static ibv_cq* create_queue(ibv_context* context, int depth, void* tag, ibv_comp_channel* channel,
                              int vector) {
    std::lock_guard lock(mutex);
    const Kernels events(context);
    ibv_cq* const queue = real().create_cq(context, depth, tag, channel, vector);
    queues.push_back(queue);
    return queue;
  }
  static ibv_qp* create_pair(ibv_pd* domain, ibv_qp_init_attr* attributes) {
    std::lock_guard lock(mutex);
    const Kernels events(domain->context);
    return real().create_qp(domain, attributes);
  }

  // On all that is open.
  static void report(ibv_event_type type, ibv_cq* queue) {
    std::lock_guard lock(mutex);
    for (auto& [context, opened] : contexts) {
      ibv_async_event event{};
      event.event_type = type;
      event.element.cq = queue;
      opened.events.push_back(event);
      REQUIRE(eventfd_write(opened.own, 1) == 0);
    }
  }
  static size_t opened() {
    std::lock_guard lock(mutex);
    return contexts.size();
  }
  static std::vector<ibv_cq*> take_queues() {
    std::lock_guard lock(mutex);
    return std::exchange(queues, {});
  }
};

// Never destroyed.
VerbsWorld& eventful_world() {
  auto& library = *new verbs::Library(Eventful::real());
  library.open_device = Eventful::open;
  library.close_device = Eventful::close;
  library.get_async_event = Eventful::get_event;
  library.ack_async_event = [](ibv_async_event*) {};
  library.create_cq = Eventful::create_queue;
  library.create_qp = Eventful::create_pair;
  return *new VerbsWorld({}, library);
}

// A device that takes requests, and from some time on neither carries them out nor fails them.
struct Silent {
  inline static std::atomic<bool> silent{false};
  inline static int (*post)(ibv_qp*, ibv_send_wr*, ibv_send_wr**) = nullptr;  // the device's own

  static int post_or_not(ibv_qp* pair, ibv_send_wr* request, ibv_send_wr** bad) {
    return silent ? 0 : post(pair, request, bad);
  }
  static ibv_context* open(ibv_device* device) {
    ibv_context* const context = (*verbs::Library::get())->open_device(device);
    if (context) post = std::exchange(context->ops.post_send, post_or_not);
    return context;
  }
};

VerbsWorld& silent_world() {
  auto& library = *new verbs::Library(**verbs::Library::get());
  library.open_device = Silent::open;
  verbs::Settings settings;
  settings.timeout = 12;
  settings.retry_count = 6;
  return *new VerbsWorld(settings, library);
}

void pass_bytes(Transport& from, Transport& to) {
  REQUIRE(send_pattern(from, 0, 1000) == 1000);
  for (uint64_t at = 0; at < 1000;) {
    const size_t n = receive_pattern(to, at, 1000 - at);
    if (n == 0) REQUIRE(to.sleep(false, patience()) == Wake::kReady);
    at += n;
  }
}

// What ends a transport that nobody has anything to send on.
Status its_end(Transport& transport) {
  for (;;) {
    char byte;
    const iovec room = run_of(&byte, 1);
    const auto got = transport.receive({&room, 1});
    if (!got.ok()) return got.status();
    REQUIRE(*got == 0);
    REQUIRE(transport.sleep(false, patience()) == Wake::kReady);
  }
}

TEST_CASE(
    "verbs events: a completion queue that has overrun ends its links, and takes no new ones") {
  TENSORWIRE_NEEDS_VERBS;
  VerbsWorld& world = eventful_world();
  REQUIRE(world.here());
  Eventful::take_queues();  // those that were made to try what the device takes
  TransportPair lost = world.join(verbs_world());
  pass_bytes(*lost.a, *lost.b);
  const auto queues = Eventful::take_queues();
  REQUIRE(queues.size() == 1);
  Eventful::report(IBV_EVENT_CQ_ERR, queues[0]);
  check_says(its_end(*lost.a), Code::kUnavailable, {"RDMA device"});
  TransportPair next = world.join(verbs_world());
  CHECK(Eventful::take_queues().size() == 1);
  pass_bytes(*next.a, *next.b);
}

TEST_CASE("verbs events: a device that is lost ends its links, and is opened anew for the next") {
  TENSORWIRE_NEEDS_VERBS;
  VerbsWorld& world = eventful_world();
  REQUIRE(world.here());
  auto memory = world.arena->allocate(1 << 20);
  REQUIRE(memory.ok());
  TransportPair lost = world.join(verbs_world());
  REQUIRE(lost.a->share((*memory)->slab()).ok());
  pass_bytes(*lost.a, *lost.b);
  Eventful::report(IBV_EVENT_DEVICE_FATAL, nullptr);
  check_says(its_end(*lost.a), Code::kUnavailable, {"RDMA device"});
  const size_t opened = Eventful::opened();
  TransportPair next = world.join(verbs_world());
  CHECK(Eventful::opened() == opened + 1);
  REQUIRE(next.a->share((*memory)->slab()).ok());
  pass_bytes(*next.a, *next.b);
}

TEST_CASE("verbs events: a device that neither completes nor fails a request ends its link") {
  TENSORWIRE_NEEDS_VERBS;
  VerbsWorld& world = silent_world();
  REQUIRE(world.here());
  TransportPair pair = world.join(verbs_world());
  pass_bytes(*pair.a, *pair.b);
  pass_bytes(*pair.b, *pair.a);
  Silent::silent = true;
  REQUIRE(send_pattern(*pair.a, 0, 1000) == 1000);
  check_says(its_end(*pair.a), Code::kUnavailable,
             {"RDMA device", "has neither completed nor failed a request for 1 s"});
  Silent::silent = false;
}

}  // namespace
}  // namespace tw::test

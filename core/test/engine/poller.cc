// SPDX-License-Identifier: Apache-2.0
// A Poller where the kernel, or a sandbox, does not know what it asks first.
#include "engine/poller.h"

#include <doctest/doctest.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>

#include <cerrno>

#include "test/base/forbidden.h"
#include "test/engine/patience.h"
#include "test/process.h"

namespace tw::test {
namespace {

// In a process of its own: what a Poller has found out holds for all of them.
TEST_CASE("helper: poller without epoll_pwait2" * doctest::skip()) {
  forbid(SYS_epoll_pwait2, read_thing<uint32_t>(kFromTest));
  struct Counting final : Watcher {
    void on_event(uint32_t, uint32_t) override { ++events; }
    int events = 0;
  };
  const auto poller = std::move(Poller::create().value());
  const Fd signal(eventfd(1, EFD_CLOEXEC | EFD_NONBLOCK));
  const auto watcher = make_ref<Counting>();
  REQUIRE(poller->watch(signal.get(), EPOLLIN, watcher).ok());
  write_thing(kToTest, poller->poll(patience()) && watcher->events == 1);
}

TEST_CASE("poller: events are seen where a sandbox refuses the system call that it does not know") {
  for (const uint32_t error : {ENOSYS, EPERM}) {
    CAPTURE(error);
    Helper helper("poller without epoll_pwait2");
    helper.tell(error);
    CHECK(helper.hear<bool>());
  }
}

}  // namespace
}  // namespace tw::test

// SPDX-License-Identifier: Apache-2.0
// What is the process's, as its peers hear of it.
#include "process/runtime.h"

#include <doctest/doctest.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace tw::test {
namespace {

TEST_CASE("runtime: its Hello says what the process is, whoever its user has become") {
  auto runtime = Runtime::get();
  REQUIRE(runtime.ok());
  const auto now = [&] {
    return wire::local_hello((*runtime)->instance(), (*runtime)->settings().stream_window_bytes);
  };
  CHECK((*runtime)->hello() == now());
  // Of this thread alone; only root may.
  const uid_t before = ::geteuid();
  (void)::syscall(SYS_setresuid, -1, before + 1, -1);
  CHECK((*runtime)->hello().uid == ::geteuid());
  CHECK((*runtime)->hello() == now());
  (void)::syscall(SYS_setresuid, -1, before, -1);
  CHECK(::geteuid() == before);
}

}  // namespace
}  // namespace tw::test

// SPDX-License-Identifier: Apache-2.0
#include "base/identity.h"

#include <doctest/doctest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>

namespace tw {
namespace {

constexpr std::array<uint8_t, 16> kUnknown{};

// Whoever reads a file meanwhile fails.
class NoDescriptors {
 public:
  NoDescriptors() {
    REQUIRE(getrlimit(RLIMIT_NOFILE, &before_) == 0);
    rlimit none = before_;
    none.rlim_cur = 0;
    REQUIRE(setrlimit(RLIMIT_NOFILE, &none) == 0);
  }
  ~NoDescriptors() { setrlimit(RLIMIT_NOFILE, &before_); }
  NoDescriptors(const NoDescriptors&) = delete;
  NoDescriptors& operator=(const NoDescriptors&) = delete;

 private:
  rlimit before_{};
};

TEST_CASE("identity: files are read once, and again after they could not be read") {
  std::thread([] {
    {
      const NoDescriptors none;
      CHECK(read_identity().boot_id == kUnknown);
    }
    const Identity first = read_identity();
    CHECK(first.boot_id != kUnknown);
    CHECK(first.pid_namespace != 0);
    const NoDescriptors none;
    CHECK(read_identity().boot_id == first.boot_id);
    CHECK(read_identity().pid_namespace == first.pid_namespace);
  }).join();
}

TEST_CASE("identity: a forked child reads its own") {
  const Identity before = read_identity();
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    const Identity own = read_identity();
    const bool right = own.pid == static_cast<uint32_t>(getpid()) && own.pid != before.pid &&
                       own.boot_id == before.boot_id;
    const rlimit none{};
    // It has read the files, hence needs them no more; another child of it will.
    const bool kept = setrlimit(RLIMIT_NOFILE, &none) == 0 && read_identity().boot_id != kUnknown;
    const pid_t grandchild = fork();
    if (grandchild == 0) _exit(read_identity().boot_id == kUnknown ? 0 : 1);
    int status = 1;
    waitpid(grandchild, &status, 0);
    _exit(right && kept && status == 0 ? 0 : 1);
  }
  int status = 1;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(status == 0);
}

}  // namespace
}  // namespace tw

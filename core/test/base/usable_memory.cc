// SPDX-License-Identifier: Apache-2.0
#include "base/usable_memory.h"

#include <doctest/doctest.h>
#include <stdlib.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>

namespace tw {
namespace {

constexpr size_t kMi = size_t{1} << 20;
constexpr size_t kGi = size_t{1} << 30;

// A folder that stands in for /proc and for the control groups.
class Host {
 public:
  Host() {
    char name[] = "/tmp/tensorwire-test-XXXXXX";
    REQUIRE(::mkdtemp(name) != nullptr);
    root_ = name;
    write("proc/meminfo",
          "MemFree:  1 kB\nMemTotal:       16777216 kB\nCommitLimit:    2097152 kB\n");
    write("proc/sys/vm/overcommit_memory", "0\n");
  }
  ~Host() { std::filesystem::remove_all(root_); }

  void write(const std::string& path, const std::string& text) const {
    std::filesystem::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << text;
  }
  MemoryFiles files() const { return {root_ / "proc", root_ / "groups"}; }

 private:
  std::filesystem::path root_;
};

TEST_CASE("usable memory: the host's, where no group limits it") {
  const Host host;
  CHECK(group_memory_limit(host.files()) == 0);
  CHECK(usable_memory(host.files()) <= 16 * kGi);
  host.write("proc/self/cgroup", "0::/\n");
  host.write("groups/memory.max", "max\n");
  CHECK(group_memory_limit(host.files()) == 0);
}

TEST_CASE("usable memory: the smallest limit of a group of version 2 and of those around it") {
  const Host host;
  host.write("proc/self/cgroup", "12:devices:/elsewhere\n0::/a/b\n");
  host.write("groups/a/b/memory.max", "max\n");
  host.write("groups/a/c/memory.max", "10\n");
  CHECK(group_memory_limit(host.files()) == 0);
  host.write("groups/a/memory.max", "2147483648\n");
  CHECK(group_memory_limit(host.files()) == 2 * kGi);
  CHECK(usable_memory(host.files()) == 2 * kGi);
  host.write("groups/a/b/memory.max", "1073741824\n");
  CHECK(usable_memory(host.files()) == kGi);
}

TEST_CASE("usable memory: a group of version 1, as seen from outside of a container and within") {
  const Host host;
  host.write("proc/self/cgroup", "5:cpu,cpuacct:/x\n4:memory:/docker/1\n0::/\n");
  host.write("groups/memory/memory.limit_in_bytes", "536870912\n");  // all that a container sees
  CHECK(usable_memory(host.files()) == 512 * kMi);
  host.write("groups/memory/memory.limit_in_bytes", "9223372036854771712\n");  // none
  host.write("groups/memory/docker/1/memory.limit_in_bytes", "268435456\n");
  CHECK(usable_memory(host.files()) == 256 * kMi);
}

TEST_CASE("usable memory: what the host commits to, if it does so strictly") {
  const Host host;
  host.write("proc/sys/vm/overcommit_memory", "2\n");
  CHECK(usable_memory(host.files()) == 2 * kGi);
}

TEST_CASE("usable memory: the arena's share") {
  CHECK(arena_share(0) == kGi);
  CHECK(arena_share(24 * kGi) == 6 * kGi);
  CHECK(arena_share(kGi * 1024) == 64 * kGi);
  CHECK(arena_share(3 * kGi) == kGi);
  CHECK(arena_share(512 * kMi) == 256 * kMi);
  CHECK(arena_share(4096) == kMi);
  CHECK(arena_share(8 * kGi + 12345) == 2 * kGi);
  CHECK(arena_share(SIZE_MAX) == 64 * kGi);
}

}  // namespace
}  // namespace tw

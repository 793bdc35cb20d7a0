// SPDX-License-Identifier: Apache-2.0
#include "base/settings.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "base/usable_memory.h"
#include "test/base/environment.h"

namespace tw {
namespace {

Result<Settings> with(const std::vector<std::pair<const char*, const char*>>& variables) {
  const test::Environment environment(variables);
  return settings_from_environment();
}

TEST_CASE("settings default when nothing, or an empty string, is set") {
  const Settings defaults;
  for (const auto& result : {with({}), with({{"TENSORWIRE_CHUNK_BYTES", ""}})}) {
    REQUIRE(result.ok());
    CHECK(result->coalesce_bytes == defaults.coalesce_bytes);
    CHECK(result->chunk_bytes == defaults.chunk_bytes);
    CHECK(result->buffer_bytes == arena_share(usable_memory()));
    CHECK(result->spin == defaults.spin);
    CHECK(result->stall == defaults.stall);
  }
}

TEST_CASE("what is sized after the arena follows what was set, not what the machine has") {
  constexpr size_t kGiB = size_t{1} << 30;
  const auto nothing = with({});
  CHECK(nothing->pool_bytes == std::min(nothing->buffer_bytes, kGiB));
  CHECK(nothing->unread_bytes == nothing->pool_bytes);
  CHECK(with({{"TENSORWIRE_BUFFER_BYTES", "4G"}})->unread_bytes == 4 * kGiB);
  CHECK(with({{"TENSORWIRE_BUFFER_BYTES", "1M"}})->unread_bytes == 1 << 20);
  CHECK(with({{"TENSORWIRE_BUFFER_BYTES", "4G"}})->pool_bytes == 4 * kGiB);
  CHECK(with({{"TF_RDMA_BUF_SIZE", "4294967296"}})->pool_bytes == 4 * kGiB);
  CHECK(with({{"TF_RDMA_BUF_SIZE", "4G"}})->buffer_bytes == 4 * kGiB);
  CHECK(with({{"TENSORWIRE_BUFFER_BYTES", "1M"}})->pool_bytes == kGiB);
  CHECK(with({{"TENSORWIRE_BUFFER_BYTES", "4G"}, {"TENSORWIRE_POOL_BYTES", "5"}})->pool_bytes == 5);
}

TEST_CASE("a folder for sockets is an absolute path that leaves room for their names") {
  const std::string longest = "/" + std::string(kLongestRuntimeDir - 1, 'x');
  CHECK(with({{"TENSORWIRE_RUNTIME_DIR", longest.c_str()}})->runtime_dir == longest);
  for (const std::string& wrong : {longest + "x", std::string("tw"), std::string("/")}) {
    const auto s = with({{"TENSORWIRE_RUNTIME_DIR", wrong.c_str()}});
    REQUIRE_FALSE(s.ok());
    CHECK(s.status().code() == Code::kInvalidArgument);
    CHECK(s.status().details().find("TENSORWIRE_RUNTIME_DIR") != std::string::npos);
    CHECK(s.status().details().find("absolute") != std::string::npos);
  }
}

TEST_CASE("sizes are bytes, or bytes with a unit of 1024") {
  constexpr size_t kMi = 1 << 20;
  for (const std::pair<const char*, size_t>& size : std::vector<std::pair<const char*, size_t>>{
           {"2097152", 2 * kMi},
           {"2097152B", 2 * kMi},
           {"2048K", 2 * kMi},
           {"2048kb", 2 * kMi},
           {"2048 KiB", 2 * kMi},
           {"2M", 2 * kMi},
           {"2MB", 2 * kMi},
           {"2 mib", 2 * kMi},
           {"002m", 2 * kMi},
       }) {
    INFO(size.first);
    const auto s = with({{"TENSORWIRE_CHUNK_BYTES", size.first}});
    REQUIRE(s.ok());
    CHECK(s->chunk_bytes == size.second);
  }
  CHECK(with({{"TENSORWIRE_BUFFER_BYTES", "3G"}})->buffer_bytes == size_t{3} << 30);
  CHECK(with({{"TENSORWIRE_BUFFER_BYTES", "1TiB"}})->buffer_bytes == size_t{1} << 40);
}

TEST_CASE("the names of the RDMA-TensorFlow guide work, and ours win over them") {
  const auto guide = with({{"TF_RDMA_ACC_SIZE", "4096"},
                           {"TF_RDMA_CHUNK_SIZE", "2097152"},
                           {"TF_RDMA_BUF_SIZE", "10737418240"}});
  REQUIRE(guide.ok());
  CHECK(guide->coalesce_bytes == 4096);
  CHECK(guide->chunk_bytes == 2097152);
  CHECK(guide->buffer_bytes == 10737418240);

  const auto both = with({{"TF_RDMA_ACC_SIZE", "4096"},
                          {"TENSORWIRE_COALESCE_BYTES", "8K"},
                          {"TF_RDMA_CHUNK_SIZE", "nonsense, but nobody asks"},
                          {"TENSORWIRE_CHUNK_BYTES", "1M"},
                          {"TF_RDMA_BUF_SIZE", "1073741824"},
                          {"TENSORWIRE_BUFFER_BYTES", "2M"}});
  REQUIRE(both.ok());
  CHECK(both->coalesce_bytes == 8192);
  CHECK(both->chunk_bytes == 1 << 20);
  CHECK(both->buffer_bytes == 2 << 20);
}

}  // namespace
}  // namespace tw

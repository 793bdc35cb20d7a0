// SPDX-License-Identifier: Apache-2.0
#include "base/settings.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <utility>
#include <vector>

#include "base/usable_memory.h"

namespace tw {
namespace {

constexpr const char* kAll[] = {
    "TENSORWIRE_COALESCE_BYTES",
    "TF_RDMA_ACC_SIZE",
    "TENSORWIRE_EAGER_BYTES",
    "TENSORWIRE_CHUNK_BYTES",
    "TF_RDMA_CHUNK_SIZE",
    "TENSORWIRE_BUFFER_BYTES",
    "TF_RDMA_BUF_SIZE",
    "TENSORWIRE_POOL_BYTES",
    "TENSORWIRE_MAX_MESSAGE_BYTES",
    "TENSORWIRE_STREAM_WINDOW_BYTES",
    "TENSORWIRE_RING_BYTES",
    "TENSORWIRE_SPIN_US",
    "TENSORWIRE_STALL_SECONDS",
    "TENSORWIRE_TCP_CONGESTION",
    "TENSORWIRE_VERBS_DEVICE",
    "TF_RDMA_DEV_NAME",
    "TENSORWIRE_VERBS_GID_INDEX",
    "TENSORWIRE_VERBS_PKEY_INDEX",
    "TENSORWIRE_VERBS_MTU",
    "TENSORWIRE_VERBS_SERVICE_LEVEL",
    "TENSORWIRE_VERBS_TRAFFIC_CLASS",
    "TENSORWIRE_VERBS_QUEUE_DEPTH",
    "TENSORWIRE_VERBS_TIMEOUT",
    "TENSORWIRE_VERBS_RETRY_COUNT",
    "TENSORWIRE_VERBS_INLINE_BYTES",
    "TENSORWIRE_VERBS_QPS",
    "TENSORWIRE_VERBS_CQS",
    "TENSORWIRE_TRACE",
    "TENSORWIRE_TRACE_FOLDER",
    "TENSORWIRE_RUNTIME_DIR",
};

// Runs settings_from_environment with exactly these variables, and puts the others back.
Result<Settings> with(const std::vector<std::pair<const char*, const char*>>& variables) {
  std::vector<std::pair<const char*, std::string>> before;
  for (const char* name : kAll) {
    if (const char* value = std::getenv(name)) before.emplace_back(name, value);
    ::unsetenv(name);
  }
  for (const auto& [name, value] : variables) ::setenv(name, value, 1);
  auto result = settings_from_environment();
  for (const char* name : kAll) ::unsetenv(name);
  for (const auto& [name, value] : before) ::setenv(name, value.c_str(), 1);
  return result;
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
    CHECK(result->tcp_congestion == "auto");
  }
}

TEST_CASE("every setting is read") {
  const auto s = with({{"TENSORWIRE_COALESCE_BYTES", "1"},
                       {"TENSORWIRE_EAGER_BYTES", "2"},
                       {"TENSORWIRE_CHUNK_BYTES", "65537"},
                       {"TENSORWIRE_BUFFER_BYTES", "1048577"},
                       {"TENSORWIRE_POOL_BYTES", "5"},
                       {"TENSORWIRE_MAX_MESSAGE_BYTES", "1025"},
                       {"TENSORWIRE_STREAM_WINDOW_BYTES", "65538"},
                       {"TENSORWIRE_RING_BYTES", "16384"},
                       {"TENSORWIRE_SPIN_US", "7"},
                       {"TENSORWIRE_STALL_SECONDS", "0"},
                       {"TENSORWIRE_TCP_CONGESTION", "bbr"},
                       {"TENSORWIRE_VERBS_DEVICE", "mlx5_0"},
                       {"TENSORWIRE_VERBS_GID_INDEX", "255"},
                       {"TENSORWIRE_VERBS_PKEY_INDEX", "65535"},
                       {"TENSORWIRE_VERBS_MTU", "2048"},
                       {"TENSORWIRE_VERBS_SERVICE_LEVEL", "15"},
                       {"TENSORWIRE_VERBS_TRAFFIC_CLASS", "255"},
                       {"TENSORWIRE_VERBS_QUEUE_DEPTH", "4096"},
                       {"TENSORWIRE_VERBS_TIMEOUT", "31"},
                       {"TENSORWIRE_VERBS_RETRY_COUNT", "0"},
                       {"TENSORWIRE_VERBS_INLINE_BYTES", "1024"},
                       {"TENSORWIRE_VERBS_QPS", "16"},
                       {"TENSORWIRE_VERBS_CQS", "64"},
                       {"TENSORWIRE_TRACE", "8"},
                       {"TENSORWIRE_TRACE_FOLDER", "/traces"},
                       {"TENSORWIRE_RUNTIME_DIR", "/run/tw/"}});
  REQUIRE(s.ok());
  CHECK(s->coalesce_bytes == 1);
  CHECK(s->eager_bytes == 2);
  CHECK(s->chunk_bytes == 65537);
  CHECK(s->buffer_bytes == 1048577);
  CHECK(s->pool_bytes == 5);
  CHECK(s->max_message_bytes == 1025);
  CHECK(s->stream_window_bytes == 65538);
  CHECK(s->ring_bytes == 16384);
  CHECK(s->spin == 7 * kMicrosecond);
  CHECK(s->stall == 0);
  CHECK(s->tcp_congestion == "bbr");
  CHECK(s->trace_events == 8);
  CHECK(s->trace_folder == "/traces");
  CHECK(s->runtime_dir == "/run/tw");
  CHECK(s->verbs_devices == std::vector<std::string>{"mlx5_0"});
  CHECK(s->verbs_gid_index == 255);
  CHECK(s->verbs_pkey_index == 65535);
  CHECK(s->verbs_mtu == 2048);
  CHECK(s->verbs_service_level == 15);
  CHECK(s->verbs_traffic_class == 255);
  CHECK(s->verbs_queue_depth == 4096);
  CHECK(s->verbs_timeout == 31);
  CHECK(s->verbs_retry_count == 0);
  CHECK(s->verbs_inline_bytes == 1024);
  CHECK(s->verbs_qps == 16);
  CHECK(s->verbs_cqs == 64);
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

TEST_CASE("RDMA devices are a list of names, with ports or without, under either name") {
  const std::vector<std::string> two{"mlx5_0:2", "bnxt-re.1"};
  CHECK(with({{"TENSORWIRE_VERBS_DEVICE", "mlx5_0:2,bnxt-re.1"}})->verbs_devices == two);
  CHECK(with({{"TENSORWIRE_VERBS_DEVICE", " mlx5_0:2 , bnxt-re.1 "}})->verbs_devices == two);
  CHECK(with({{"TF_RDMA_DEV_NAME", "mlx5_0:2,bnxt-re.1"}})->verbs_devices == two);
  CHECK(with({{"TF_RDMA_DEV_NAME", "a"}, {"TENSORWIRE_VERBS_DEVICE", "b:255"}})->verbs_devices ==
        std::vector<std::string>{"b:255"});
  CHECK(with({})->verbs_devices.empty());
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

TEST_CASE("a congestion control may have the longest name that the kernel has") {
  const auto s = with({{"TENSORWIRE_TCP_CONGESTION", "fifteen_letters"}});
  REQUIRE(s.ok());
  CHECK(s->tcp_congestion == "fifteen_letters");
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

TEST_CASE("what is not permitted is refused with name, value and range") {
  struct Wrong {
    const char* name;
    const char* value;
    const char* range;
  };
  for (const Wrong& wrong : {
           Wrong{"TENSORWIRE_COALESCE_BYTES", "2M", "from 0 to 1M"},
           Wrong{"TENSORWIRE_EAGER_BYTES", "-1", "from 0 to 1M"},
           Wrong{"TENSORWIRE_CHUNK_BYTES", "65535", "from 64K to 64M"},
           Wrong{"TENSORWIRE_CHUNK_BYTES", "64M1", "from 64K to 64M"},
           Wrong{"TENSORWIRE_CHUNK_BYTES", "67108865", "from 64K to 64M"},
           Wrong{"TENSORWIRE_CHUNK_BYTES", "4 MBit", "from 64K to 64M"},
           Wrong{"TENSORWIRE_CHUNK_BYTES", "M", "from 64K to 64M"},
           Wrong{"TENSORWIRE_CHUNK_BYTES", " ", "from 64K to 64M"},
           Wrong{"TENSORWIRE_CHUNK_BYTES", "0x100000", "from 64K to 64M"},
           Wrong{"TENSORWIRE_BUFFER_BYTES", "4K", "from 1M to 1T"},
           Wrong{"TENSORWIRE_BUFFER_BYTES", "99999999999999999999", "from 1M to 1T"},
           Wrong{"TENSORWIRE_BUFFER_BYTES", "16777217T", "from 1M to 1T"},
           Wrong{"TENSORWIRE_POOL_BYTES", "2T", "from 0 to 1T"},
           Wrong{"TENSORWIRE_MAX_MESSAGE_BYTES", "0", "from 1K to 16G"},
           Wrong{"TENSORWIRE_STREAM_WINDOW_BYTES", "1", "from 64K to 1G"},
           Wrong{"TENSORWIRE_RING_BYTES", "8K", "from 16K to 64M, a power of two"},
           Wrong{"TENSORWIRE_RING_BYTES", "100000", "a power of two"},
           Wrong{"TENSORWIRE_SPIN_US", "10001", "whole number from 0 to 10000"},
           Wrong{"TENSORWIRE_STALL_SECONDS", "86401", "whole number from 0 to 86400"},
           Wrong{"TENSORWIRE_SPIN_US", "1.5", "whole number from 0 to 10000"},
           Wrong{"TENSORWIRE_TCP_CONGESTION", "a/b", "auto, system, or a name"},
           Wrong{"TENSORWIRE_TCP_CONGESTION", "sixteen_letters_", "auto, system, or a name"},
           Wrong{"TENSORWIRE_VERBS_DEVICE", "mlx5_0,", "names of RDMA devices"},
           Wrong{"TENSORWIRE_VERBS_DEVICE", "mlx5_0:0", ":<port>"},
           Wrong{"TENSORWIRE_VERBS_DEVICE", "mlx5_0:256", ":<port>"},
           Wrong{"TENSORWIRE_VERBS_DEVICE", "mlx5_0:", ":<port>"},
           Wrong{"TENSORWIRE_VERBS_DEVICE", ":1", "names of RDMA devices"},
           Wrong{"TENSORWIRE_VERBS_DEVICE", "../etc", "names of RDMA devices"},
           Wrong{"TF_RDMA_DEV_NAME", "mlx5 0", "names of RDMA devices"},
           Wrong{"TENSORWIRE_VERBS_GID_INDEX", "256", "whole number from 0 to 255"},
           Wrong{"TENSORWIRE_VERBS_PKEY_INDEX", "65536", "from 0 to 65535"},
           Wrong{"TENSORWIRE_VERBS_MTU", "1500", "from 256 to 4096, a power of two"},
           Wrong{"TENSORWIRE_VERBS_MTU", "8192", "from 256 to 4096"},
           Wrong{"TENSORWIRE_VERBS_SERVICE_LEVEL", "16", "from 0 to 15"},
           Wrong{"TENSORWIRE_VERBS_TRAFFIC_CLASS", "256", "from 0 to 255"},
           Wrong{"TENSORWIRE_VERBS_QUEUE_DEPTH", "7", "from 8 to 4096"},
           Wrong{"TENSORWIRE_VERBS_TIMEOUT", "0", "from 1 to 31"},
           Wrong{"TENSORWIRE_VERBS_TIMEOUT", "32", "from 1 to 31"},
           Wrong{"TENSORWIRE_VERBS_RETRY_COUNT", "7", "from 0 to 6"},
           Wrong{"TENSORWIRE_VERBS_INLINE_BYTES", "1025", "from 0 to 1024"},
           Wrong{"TENSORWIRE_VERBS_QPS", "0", "from 1 to 16"},
           Wrong{"TENSORWIRE_VERBS_CQS", "65", "from 1 to 64"},
           Wrong{"TF_RDMA_ACC_SIZE", "1G", "from 0 to 1M"},
           Wrong{"TF_RDMA_CHUNK_SIZE", "1", "from 64K to 64M"},
           Wrong{"TF_RDMA_BUF_SIZE", "1073741825", "a multiple of 1073741824"},
           Wrong{"TF_RDMA_BUF_SIZE", "0", "a multiple of 1073741824"},
           Wrong{"TF_RDMA_BUF_SIZE", "1536M", "a multiple of 1073741824"},
       }) {
    const auto result = with({{wrong.name, wrong.value}});
    INFO(wrong.name << "=" << wrong.value);
    REQUIRE_FALSE(result.ok());
    CHECK(result.status().code() == Code::kInvalidArgument);
    const std::string& said = result.status().details();
    INFO(said);
    CHECK(said.find(std::string(wrong.name) + "='" + wrong.value + "'") != std::string::npos);
    CHECK(said.find(wrong.range) != std::string::npos);
  }
}

}  // namespace
}  // namespace tw

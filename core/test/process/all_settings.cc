// SPDX-License-Identifier: Apache-2.0
#include "process/all_settings.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <set>

#include "test/base/environment.h"

namespace tw {
namespace {

using Variables = std::vector<std::pair<const char*, const char*>>;
using Kinds = std::vector<std::unique_ptr<Kind>>;

Kinds kinds_with(const Settings& settings) {
  static const Ref<Arena> arena = make_ref<Arena>(size_t{1} << 20);
  return make_kinds(
      {settings, *arena, [] { return Result<Poller*>(Status{Code::kUnavailable, "none"}); }});
}

// What a process with these variables would go by, as users would write it.
Result<std::map<std::string, std::string>> in_force(const Variables& variables) {
  const test::Environment environment(variables);
  const auto settings = settings_from_environment();
  if (!settings) return settings.status();
  const Kinds kinds = kinds_with(*settings);
  for (const auto& kind : kinds)
    if (Status status = kind->read_settings(); !status.ok()) return status;
  std::map<std::string, std::string> found;
  each_setting(*settings, kinds, [&](const Setting& setting, const Value* value, const Value*) {
    if (value) found[setting.name] = value_text(*value, setting.permitted);
  });
  return found;
}

TEST_CASE("every setting is read") {
  const std::map<std::string, std::pair<const char*, const char*>> given{
      {"coalesce_bytes", {"TENSORWIRE_COALESCE_BYTES", "1"}},
      {"eager_bytes", {"TENSORWIRE_EAGER_BYTES", "2"}},
      {"chunk_bytes", {"TENSORWIRE_CHUNK_BYTES", "65537"}},
      {"buffer_bytes", {"TENSORWIRE_BUFFER_BYTES", "1048577"}},
      {"pool_bytes", {"TENSORWIRE_POOL_BYTES", "5"}},
      {"shared_memory_bytes", {"TENSORWIRE_SHARED_MEMORY_BYTES", "1048578"}},
      {"max_message_bytes", {"TENSORWIRE_MAX_MESSAGE_BYTES", "1025"}},
      {"stream_window_bytes", {"TENSORWIRE_STREAM_WINDOW_BYTES", "65538"}},
      {"link_tuning", {"TENSORWIRE_LINK_TUNING", "./links"}},
      {"tune_online", {"TENSORWIRE_TUNE_ONLINE", "on"}},
      {"ring_bytes", {"TENSORWIRE_RING_BYTES", "16K"}},
      {"spin_us", {"TENSORWIRE_SPIN_US", "7"}},
      {"stall_seconds", {"TENSORWIRE_STALL_SECONDS", "0"}},
      {"silence_seconds", {"TENSORWIRE_SILENCE_SECONDS", "7"}},
      {"group_silence_seconds", {"TENSORWIRE_GROUP_SILENCE_SECONDS", "8"}},
      {"tcp_congestion", {"TENSORWIRE_TCP_CONGESTION", "fifteen_letters"}},
      {"verbs_device", {"TENSORWIRE_VERBS_DEVICE", "mlx5_0"}},
      {"verbs_gid_index", {"TENSORWIRE_VERBS_GID_INDEX", "255"}},
      {"verbs_pkey_index", {"TENSORWIRE_VERBS_PKEY_INDEX", "65535"}},
      {"verbs_mtu", {"TENSORWIRE_VERBS_MTU", "2048"}},
      {"verbs_service_level", {"TENSORWIRE_VERBS_SERVICE_LEVEL", "15"}},
      {"verbs_traffic_class", {"TENSORWIRE_VERBS_TRAFFIC_CLASS", "255"}},
      {"verbs_queue_depth", {"TENSORWIRE_VERBS_QUEUE_DEPTH", "4096"}},
      {"verbs_timeout", {"TENSORWIRE_VERBS_TIMEOUT", "31"}},
      {"verbs_retry_count", {"TENSORWIRE_VERBS_RETRY_COUNT", "0"}},
      {"verbs_inline_bytes", {"TENSORWIRE_VERBS_INLINE_BYTES", "1024"}},
      {"verbs_qps", {"TENSORWIRE_VERBS_QPS", "16"}},
      {"verbs_cqs", {"TENSORWIRE_VERBS_CQS", "64"}},
      {"trace_events", {"TENSORWIRE_TRACE", "8"}},
      {"trace_folder", {"TENSORWIRE_TRACE_FOLDER", "/traces"}},
      {"runtime_dir", {"TENSORWIRE_RUNTIME_DIR", "/run/tw"}}};
  Variables variables;
  for (const auto& [name, setting] : given) variables.push_back(setting);
  const auto before = in_force({});
  REQUIRE(before.ok());
  const auto found = in_force(variables);
  REQUIRE(found.ok());
  CHECK(found->size() == given.size());
  for (const auto& each : given) {
    const std::string& name = each.first;
    CAPTURE(name);
    REQUIRE(found->contains(name));
    CHECK(found->at(name) == each.second.second);
    CHECK(before->at(name) != each.second.second);
  }
}

TEST_CASE("every setting says what it is") {
  std::set<std::string> names, variables;
  each_setting({}, kinds_with({}), [&](const Setting& setting, const Value* value, const Value*) {
    CAPTURE(setting.variable);
    CHECK(variables.insert(setting.variable).second);
    if (setting.alias) CHECK(variables.insert(setting.alias).second);
    CHECK((value != nullptr) == (*setting.name != 0));
    if (value) CHECK(names.insert(setting.name).second);
    CHECK((value || setting.fallback));
    CHECK(std::string_view(setting.help).size() > 10);
    CHECK_FALSE(permitted_text(setting.permitted).empty());
  });
  CHECK(variables.size() > names.size());
}

TEST_CASE("every variable is told once, with what it is where nobody sets it") {
  const Kinds kinds = kinds_with({});
  std::vector<const char*> own;
  each_setting({}, kinds, [&](const Setting& setting, const Value*, const Value*) {
    own.push_back(setting.variable);
  });
  std::map<std::string, std::string> fallbacks, aliases;
  size_t told = 0;
  each_variable(kinds, [&](const Variable& variable) {
    CAPTURE(variable.name);
    CHECK_FALSE(variable.permitted.empty());
    if (variable.alias) {
      CHECK(variable.fallback.empty());
      CHECK(fallbacks.contains(variable.setting.variable));  // after it
      CHECK(aliases.emplace(variable.name, variable.setting.variable).second);
    } else {
      REQUIRE(told < own.size());
      CHECK(std::string_view(variable.name) == own[told++]);
      CHECK(fallbacks.emplace(variable.name, variable.fallback).second);
    }
  });
  CHECK(told == own.size());
  CHECK(fallbacks["TENSORWIRE_MAX_MESSAGE_BYTES"] == "16G");  // what the field begins with
  CHECK(fallbacks["TENSORWIRE_GROUP_HOST"] == kLoopback);     // in words of its own
  CHECK(fallbacks["TENSORWIRE_FORBID"].empty());
  CHECK(aliases["TF_RDMA_DEV_NAME"] == "TENSORWIRE_VERBS_DEVICE");
  CHECK(aliases["TF_RDMA_CHUNK_SIZE"] == "TENSORWIRE_CHUNK_BYTES");
}

TEST_CASE("what is in force is told by its names, numbers as numbers") {
  Settings settings;
  settings.eager_bytes = 12345;
  settings.tune_online = "on";
  const Facts facts = settings_in_force(settings, kinds_with(settings));
  const auto fact = [&](std::string_view name) {
    const auto found = std::ranges::find(facts, name, &Fact::name);
    REQUIRE(found != facts.end());
    return *found;
  };
  CHECK(fact("eager_bytes").kind == Fact::Kind::kNumber);
  CHECK(fact("eager_bytes").number == 12345);
  CHECK(fact("spin_us").number == Settings{}.spin / kMicrosecond);  // in the user's unit
  CHECK(fact("tune_online").kind == Fact::Kind::kText);
  CHECK(fact("tune_online").text == "on");
  CHECK(facts.size() == in_force({})->size());  // and none that is read anew
}

TEST_CASE("the ways that users name are those of the kinds that they may choose, and gRPC") {
  const Kinds kinds = kinds_with({});
  const std::vector<const Kind*> chosen = chosen_kinds(kinds);
  const std::vector<std::string> ways = known_ways(kinds);
  REQUIRE(ways.size() == chosen.size() + 1);
  for (size_t i = 0; i < chosen.size(); ++i) CHECK(ways[i] == chosen[i]->name());
  CHECK(ways.back() == kStock);
  CHECK(chosen.size() < kinds.size());
  for (const Kind* kind : chosen) CHECK(kind->chosen());
}

TEST_CASE("RDMA devices are a list of names, with ports or without, under either name") {
  const auto devices = [](const Variables& variables) {
    return in_force(variables)->at("verbs_device");
  };
  CHECK(devices({{"TENSORWIRE_VERBS_DEVICE", " mlx5_0:2 , bnxt-re.1 "}}) == "mlx5_0:2,bnxt-re.1");
  CHECK(devices({{"TF_RDMA_DEV_NAME", "mlx5_0:2,bnxt-re.1"}}) == "mlx5_0:2,bnxt-re.1");
  CHECK(devices({{"TF_RDMA_DEV_NAME", "a"}, {"TENSORWIRE_VERBS_DEVICE", "b:255"}}) == "b:255");
  CHECK(devices({}).empty());
}

TEST_CASE("what is read anew is what the environment holds now") {
  const Kinds kinds = kinds_with({});
  const auto read = [&](const char* variable, const char* value) {
    const Variables variables{{variable, value}};
    const test::Environment environment(variables);
    return read_anew(kinds, variable);
  };
  CHECK(*read("TF_RDMA_ENABLED", "") == "");
  CHECK(*read("TF_RDMA_ENABLED", "TRUE") == "true");
  CHECK(*read("TF_RDMA_ENABLED", "0") == "false");
  CHECK(*read("TENSORWIRE_TF_ARENA", "traced") == "traced");
  CHECK(*read("TENSORWIRE_TF_COLLECTIVES", "ring") == "ring");
  CHECK(read("TENSORWIRE_TF_COLLECTIVES", "tree").status().code() == Code::kInvalidArgument);
  CHECK(*read("TENSORWIRE_TF_PLAN", "on") == "on");
  CHECK(read("TENSORWIRE_TF_PLAN", "always").status().code() == Code::kInvalidArgument);
  CHECK(*read("TF_RDMA_DEV_NAME", "a, b:1") == "a,b:1");
  CHECK(*read("TENSORWIRE_CHUNK_BYTES", "1048576") == "1M");
  CHECK(*read("TENSORWIRE_DATA_HOSTS", "10.0.0.0/8 , node7") == "10.0.0.0/8,node7");
  CHECK(read("TF_RDMA_ENABLED", "perhaps").status().code() == Code::kInvalidArgument);
  CHECK(read("TENSORWIRE_TF_ARENA", "x").status().code() == Code::kInvalidArgument);
  CHECK(read("TENSORWIRE_NOTHING", "x").status().code() == Code::kNotFound);
}

TEST_CASE("another name holds nothing where the first one is set") {
  const Kinds kinds = kinds_with({});
  const auto alias = [&](const Variables& variables) {
    const test::Environment environment(variables);
    return read_anew(kinds, "TF_RDMA_DEV_NAME");
  };
  CHECK(*alias({{"TF_RDMA_DEV_NAME", "a:1"}}) == "a:1");
  CHECK(*alias({{"TF_RDMA_DEV_NAME", "a:1"}, {"TENSORWIRE_VERBS_DEVICE", ""}}) == "a:1");
  CHECK(*alias({{"TF_RDMA_DEV_NAME", "a:1"}, {"TENSORWIRE_VERBS_DEVICE", "b"}}) == "");
  CHECK(*alias({{"TF_RDMA_DEV_NAME", "a:x"}, {"TENSORWIRE_VERBS_DEVICE", "b"}}) == "");
  CHECK(*alias({{"TENSORWIRE_VERBS_DEVICE", "b"}}) == "");
}

TEST_CASE("the devices that the settings name are a fact of the host") {
  const Variables variables{{"TENSORWIRE_VERBS_DEVICE", "nowhere_0:1,nowhere_1"}};
  const test::Environment environment(variables);
  const auto settings = settings_from_environment();
  REQUIRE(settings.ok());
  std::vector<std::string> named;
  for (const auto& kind : kinds_with(*settings)) {
    REQUIRE(kind->read_settings().ok());
    for (const Fact& fact : kind->facts())
      if (fact.name == "named")
        for (const Fact& each : fact.facts) named.push_back(each.text);
  }
  CHECK(named == std::vector<std::string>{"nowhere_0", "nowhere_1"});
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
           Wrong{"TENSORWIRE_TUNE_ONLINE", "yes", "on or off"},
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
           Wrong{"TF_RDMA_DEV_NAME", "a, mlx5:0,b", "is not permitted for 'mlx5:0': set names"},
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
    const auto result = in_force({{wrong.name, wrong.value}});
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

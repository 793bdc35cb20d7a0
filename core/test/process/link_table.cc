// SPDX-License-Identifier: Apache-2.0
// Tables of `tensorwire tune links`: for which links they hold, and what is none.
#include "process/link_table.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "test/base/environment.h"

namespace tw::test {
namespace {

constexpr const char* kTable =
    "# made by hand\n"
    "shm same_host eager_bytes 8192\n"
    "tcp\tsame_host chunk_bytes 65536 # least\n"
    "tcp other_hosts eager_bytes 32768\n"
    "tcp other_hosts coalesce_bytes 0\n"
    "tcp 10.0.0.2 eager_bytes 1048576\r\n"
    "tcp fd00::2 eager_bytes 4096";

std::string complaint(const std::string& table) {
  return LinkTable::parse(table).status().details();
}

TEST_CASE("link table: rules hold for their transport and peer") {
  const auto table = LinkTable::parse(kTable);
  REQUIRE(table.ok());
  const std::optional<size_t> open;
  CHECK(table->of("shm", true, "unix:") == Wanted{open, 8192, open});
  CHECK(table->of("tcp", true, "ipv4:127.0.0.1:5") == Wanted{open, open, 65536});
  CHECK(table->of("tcp", false, "ipv4:10.0.0.3:5") == Wanted{0, 32768, open});
  CHECK(table->of("tcp", false, "ipv4:10.0.0.2:5") == Wanted{0, 1 << 20, open});
  CHECK(table->of("tcp", false, "ipv6:[fd00::2]:5") == Wanted{0, 4096, open});
  CHECK(table->of("tcp", true, "ipv4:10.0.0.2:5") == Wanted{open, open, 65536});
  CHECK(table->of("verbs", false, "ipv4:10.0.0.2:5") == Wanted{});
  CHECK(table->of("tcp", false, "") == Wanted{0, 32768, open});
}

TEST_CASE("link table: what is none is told by its line") {
  CHECK(complaint("\nshm same_host eager_bytes") ==
        "line 2: a rule is: transport peer threshold bytes");
  CHECK(complaint("shm here eager_bytes 1") ==
        "line 1: 'here' is neither same_host, other_hosts nor an address");
  CHECK(complaint("shm same_host eager 1") == "line 1: 'eager' is no threshold");
  for (const char* bytes : {"-1", "8K", "1048577", "99999999999999999999"})
    CHECK(complaint(std::string("shm same_host eager_bytes ") + bytes) ==
          "line 1: eager_bytes is '" + std::string(bytes) + "', not a number from 0 to 1048576");
  CHECK(complaint("tcp same_host chunk_bytes 65535").find("from 65536 to 67108864") !=
        std::string::npos);
  CHECK(complaint("shm same_host eager_bytes 1\nshm same_host eager_bytes 1") ==
        "line 2: a second rule for eager_bytes of 'shm' to same_host");
}

TEST_CASE("link table: damaged ones are parsed, or told so, and nothing else") {
  std::mt19937 random(7);
  for (int round = 0; round < 2000; ++round) {
    std::string text = kTable;
    for (int i = 0; i < 3; ++i) text[random() % text.size()] = static_cast<char>(random());
    const auto table = LinkTable::parse(text.substr(0, random() % (text.size() + 1)));
    if (!table.ok()) {
      CHECK(!table.status().details().empty());
      continue;
    }
    const Wanted wanted = table->of("tcp", false, "ipv4:10.0.0.2:5");
    for (size_t i = 0; i < kThresholds; ++i)
      if (wanted[i]) CHECK(*wanted[i] <= sizes_of(static_cast<Threshold>(i)).highest);
  }
}

TEST_CASE("link table: it is this user's, or the one that is named") {
  std::string folder = "/tmp/tensorwire-links-XXXXXX";
  REQUIRE(mkdtemp(folder.data()) != nullptr);
  const std::string path = folder + "/links";
  const std::vector<std::pair<const char*, const char*>> cache{{"XDG_CACHE_HOME", folder.c_str()}};
  const Environment environment(cache);
  Settings settings;
  CHECK(LinkTable::read(settings).ok());  // there is none
  settings.link_tuning = path;
  CHECK(LinkTable::read(settings).status().details().find(path + ", is not used") !=
        std::string::npos);
  std::ofstream(path) << kTable;
  CHECK(LinkTable::read(settings)->of("shm", true, "unix:")[1] == 8192);
  settings.link_tuning = "off";
  CHECK(LinkTable::read(settings)->of("shm", true, "unix:") == Wanted{});
  unlink(path.c_str());
  rmdir(folder.c_str());
}

}  // namespace
}  // namespace tw::test

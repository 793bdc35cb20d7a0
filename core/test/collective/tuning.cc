// SPDX-License-Identifier: Apache-2.0
// Tables of `tensorwire tune collectives`: what they say, and what is none.
#include "collective/tuning.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <random>
#include <string>

#include "base/rules_file.h"

namespace tw::test {
namespace {

using collective::CollectiveKind;
using collective::kMemoryFabric;
using collective::Tuning;
using collective::Way;
using collective::Ways;

constexpr const char* kTable =
    "# what people read\n"
    "all_reduce  memory       2  32768  one_step  # beside a rule, too\r\n"
    "\n"
    "all_reduce\tmemory 2 1048576 stage\n"
    "broadcast memory 3 100 in_place\n"
    "all_reduce tcp 2 100 ring\n"
    "broadcast other 2 100 tree";

std::string complaint(const std::string& table) { return Tuning::parse(table).status().details(); }

TEST_CASE("tuning: a rule holds up to its bytes, for its ranks and fabric") {
  const auto tuning = Tuning::parse(kTable);
  REQUIRE(tuning.ok());
  const Ways two = tuning->of(kMemoryFabric, 2);
  CHECK(two.of(CollectiveKind::kAllReduce, 0) == Way::kOneStep);
  CHECK(two.of(CollectiveKind::kAllReduce, 32768) == Way::kOneStep);
  CHECK(two.of(CollectiveKind::kAllReduce, 32769) == Way::kStage);
  CHECK(two.of(CollectiveKind::kAllReduce, 1048577) == std::nullopt);
  CHECK(two.of(CollectiveKind::kBroadcast, 8) == std::nullopt);
  CHECK(tuning->of(kMemoryFabric, 3).of(CollectiveKind::kBroadcast, 8) == Way::kInPlace);
  CHECK(tuning->of("tcp", 2).of(CollectiveKind::kAllReduce, 8) == Way::kRing);
  CHECK(tuning->of("tcp", 3).of(CollectiveKind::kAllReduce, 8) == std::nullopt);
  CHECK(tuning->of("tcp", 2).of(CollectiveKind::kBroadcast, 8) == std::nullopt);
  CHECK(tuning->of("other", 2).of(CollectiveKind::kBroadcast, 8) == Way::kTree);
  CHECK(tuning->of("", 2).of(CollectiveKind::kAllReduce, 8) == std::nullopt);
}

TEST_CASE("tuning: tables that say the same have the same digest") {
  const auto digest = [](const char* table) { return Tuning::parse(table)->digest(); };
  const char* const one = "all_reduce memory 2 8 stage\nall_gather memory 2 8 stage\n";
  CHECK(digest(one) == digest("all_gather  memory 2 8 stage # first\nall_reduce memory 2 8 stage"));
  CHECK(digest(one) != digest("all_reduce memory 2 9 stage\nall_gather memory 2 8 stage\n"));
  CHECK(digest("# nothing\n") == 0);
  CHECK(digest(one) != 0);
  CHECK(digest("all_gather tcp 2 8 ring") != digest("all_gather tcpp 2 8 ring"));
}

TEST_CASE("tuning: what is no table is told by its line") {
  CHECK(complaint("\nall_reduce memory 2 8") ==
        "line 2: a rule is: operation fabric ranks bytes way");
  CHECK(complaint("all_reduce memory 2 8 stage more").find("line 1: a rule is") == 0);
  CHECK(complaint("add memory 2 8 stage") == "line 1: 'add' is no operation");
  CHECK(complaint("reduce tcp 2 8 stage") == "line 1: reduce over 'tcp' cannot go by 'stage'");
  CHECK(complaint("reduce messages 2 8 direct") ==
        "line 1: a rule for messages names the transport by which they go: measure anew, by "
        "tensorwire tune collectives");
  for (const char* ranks : {"0", "1", "-2", "2x", "99999999999999999999", "1048577"})
    CHECK(complaint(std::string("reduce memory ") + ranks + " 8 stage")
              .find("is no number of ranks") != std::string::npos);
  CHECK(complaint("reduce memory 2 8K stage") == "line 1: '8K' is no number of bytes");
  for (const char* wrong :
       {"barrier memory 2 8 one_step", "all_reduce memory 2 8 ring", "all_reduce tcp 2 8 stage",
        "scatter memory 2 8 one_step", "broadcast tcp 2 8 ring", "all_reduce tcp 2 8 tree",
        "reduce tcp 2 8 messages", "gather tcp 2 8 direct", "all_gather memory 2 8 ring",
        "all_reduce memory 2 8 \x1b[2J"})
    CHECK(complaint(wrong).find("cannot go by") != std::string::npos);
  CHECK(complaint("all_reduce memory 2 8 stage\nall_reduce memory 2 8 one_step") ==
        "two rules for 8 bytes of all_reduce over 'memory' between 2 ranks");
  CHECK(complaint(std::string(rules::kMostBytes + 1, '\n')) == "it is larger than 64K");
  CHECK(complaint(std::string(1, '\0')).find("line 1: a rule is") == 0);
}

TEST_CASE("tuning: damaged tables are parsed, or told so, and nothing else") {
  std::mt19937 random(7);
  for (int round = 0; round < 2000; ++round) {
    std::string table = kTable;
    for (int i = 0; i < 3; ++i) table[random() % table.size()] = static_cast<char>(random());
    const auto tuning = Tuning::parse(table.substr(0, random() % (table.size() + 1)));
    if (tuning.ok())
      tuning->of(kMemoryFabric, 2).of(CollectiveKind::kAllReduce, random());
    else
      CHECK(!tuning.status().details().empty());
  }
}

TEST_CASE("tuning: files that are none") {
  std::string folder = "/tmp/tensorwire-tuning-XXXXXX";
  REQUIRE(mkdtemp(folder.data()) != nullptr);
  const std::string path = folder + "/table";
  CHECK(Tuning::read(path).status().code() == Code::kNotFound);
  CHECK(Tuning::read(folder).status().details() == "it is no file");
  std::ofstream(path) << kTable;
  CHECK(Tuning::read(path)->digest() == Tuning::parse(kTable)->digest());
  std::ofstream(path) << std::string(rules::kMostBytes + 1, 'x');
  CHECK(Tuning::read(path).status().details() == "it is larger than 64K");
  unlink(path.c_str());
  rmdir(folder.c_str());
}

}  // namespace
}  // namespace tw::test

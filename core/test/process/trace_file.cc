// SPDX-License-Identifier: Apache-2.0
// Files of traces: each process writes to one that it has made.
#include "process/trace_file.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

namespace tw::test {
namespace {

namespace fs = std::filesystem;

std::string content(const fs::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace

TEST_CASE("trace file: what is there already is not written to, and no link is followed") {
  char name[] = "/tmp/tensorwire-test-XXXXXX";
  REQUIRE(mkdtemp(name) != nullptr);
  const fs::path folder(name), secret = folder / "secret";
  std::ofstream(secret) << "mine";
  const std::string pid = std::to_string(getpid());
  fs::create_symlink(secret, folder / (pid + ".jsonl"));
  fs::create_hard_link(secret, folder / (pid + "-1.jsonl"));
  fs::create_symlink(folder / "new", folder / (pid + "-2.jsonl"));

  TraceFile file(folder);
  file.add({"client", "tcp", "peer"}, {});
  file.add({"server", "tcp", "peer", {{1, 2, 3}, {Source::kDefault, Source::kTable}}}, {});
  CHECK(content(secret) == "mine");
  CHECK_FALSE(fs::exists(folder / "new"));
  const fs::path written = folder / (pid + "-3.jsonl");
  const std::string lines = content(written);
  CHECK(lines.find("\"role\":\"client\"") != std::string::npos);
  CHECK(lines.find("\"role\":\"server\"") != std::string::npos);
  CHECK(lines.find("{\"coalesce_bytes\":[1,\"default\"],\"eager_bytes\":[2,\"table\"],"
                   "\"chunk_bytes\":[3,\"default\"]}") != std::string::npos);
  CHECK((fs::status(written).permissions() & fs::perms::all) ==
        (fs::perms::owner_read | fs::perms::owner_write));
  fs::remove_all(folder);
}

}  // namespace tw::test

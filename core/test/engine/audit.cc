// SPDX-License-Identifier: Apache-2.0
#include "engine/audit.h"

#include <doctest/doctest.h>

#include <set>
#include <string>
#include <thread>
#include <vector>

namespace tw {
namespace {

constexpr Nanos kLater = 3600 * kSecond;

std::vector<Audit::Line> told(Audit& audit) {
  std::vector<Audit::Line> lines(1);
  while (audit.next(lines.back(), 0) == Waited::kDone) lines.emplace_back();
  lines.pop_back();
  return lines;
}

TEST_CASE("audit: each incident has a name of its own") {
  std::set<std::string> names;
  for (size_t i = 0; i < kIncidents; ++i) {
    const IncidentName name = name_of(static_cast<Incident>(i));
    REQUIRE(name.kind[0] != 0);
    REQUIRE(name.reason[0] != 0);
    names.insert(std::string(name.kind) + "/" + name.reason);
  }
  CHECK(names.size() == kIncidents);
}

TEST_CASE("audit: all are counted, some are told, and the next line says how many were not") {
  Audit audit;
  const Nanos start = now() + kLater;  // nothing that was not told is due before
  for (int i = 0; i < 100; ++i)
    audit.note(Incident::kHandshakeProof, "ipv4:192.0.2.1:7", "no secret", start + i);
  audit.note(Incident::kHandshakeSilent, "unix:", "nothing came", start);
  CHECK(audit.count(Incident::kHandshakeProof) == 100);
  CHECK(audit.count(Incident::kHandshakeSilent) == 1);
  CHECK(audit.count(Incident::kHandshakeLate) == 0);
  auto lines = told(audit);
  REQUIRE(lines.size() == Audit::kBurst + 1);
  CHECK(lines[0].incident == Incident::kHandshakeProof);
  CHECK(lines[0].peer == "ipv4:192.0.2.1:7");
  CHECK(lines[0].what == "no secret");
  CHECK(lines[0].more == 0);
  CHECK(lines.back().incident == Incident::kHandshakeSilent);
  // One for each pace, and the whole burst when it was quiet for long.
  audit.note(Incident::kHandshakeProof, "", "again", start + Audit::kPace);
  audit.note(Incident::kHandshakeProof, "", "again", start + Audit::kPace + 1);
  lines = told(audit);
  REQUIRE(lines.size() == 1);
  CHECK(lines[0].more == 100 - Audit::kBurst);
  for (int i = 0; i < 100; ++i)
    audit.note(Incident::kHandshakeProof, "", "again", start + 100 * Audit::kPace);
  lines = told(audit);
  REQUIRE(lines.size() == Audit::kBurst);
  CHECK(lines[0].more == 1);
}

TEST_CASE("audit: what was not told is told at the end of its pace, without another incident") {
  Audit audit;
  const Nanos past = now() - Audit::kPace + 10 * kMillisecond;
  for (int i = 0; i < Audit::kBurst + 3; ++i)
    audit.note(Incident::kEvictedStranger, "ipv4:192.0.2.1:" + std::to_string(i), "", past);
  Audit::Line line;
  for (int i = 0; i < Audit::kBurst; ++i) REQUIRE(audit.next(line, 0) == Waited::kDone);
  REQUIRE(audit.next(line, kForever) == Waited::kDone);
  CHECK(line.peer == "ipv4:192.0.2.1:" + std::to_string(Audit::kBurst + 2));
  CHECK(line.more == 2);
  CHECK(audit.next(line, 0) == Waited::kTimeout);
}

TEST_CASE("audit: nobody who reads lines costs no memory") {
  Audit audit;
  for (int i = 0; i < 10'000; ++i)
    audit.note(Incident::kHandshakeLate, "", "", now() + i * Audit::kPace);
  CHECK(told(audit).size() < 100);
  CHECK(audit.count(Incident::kHandshakeLate) == 10'000);
}

TEST_CASE("audit: probes of a port are counted only") {
  Audit audit;
  audit.note(Incident::kHandshakeLeft, "", "");
  CHECK(audit.count(Incident::kHandshakeLeft) == 1);
  CHECK(told(audit).empty());
}

TEST_CASE("audit: closed, it tells the rest and lets the reader go") {
  Audit audit;
  std::vector<uint64_t> more;
  std::thread reader([&] {
    Audit::Line line;
    while (audit.next(line, kForever) == Waited::kDone) more.push_back(line.more);
  });
  for (int i = 0; i < Audit::kBurst + 7; ++i) audit.note(Incident::kHandshakeUser, "", "");
  audit.close();
  reader.join();
  REQUIRE(more.size() == Audit::kBurst + 1);
  CHECK(more.back() == 6);
}

}  // namespace
}  // namespace tw

// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <string>

#include "transport/shm/facts.h"

namespace tw::shm {
namespace {

const Fact& in(const Facts& facts, const std::string& name) {
  for (const Fact& fact : facts)
    if (fact.name == name) return fact;
  FAIL("there is no fact ", name);
  return facts.front();
}

std::string verdicts(const KernelFeatures& kernel) {
  const Facts told = facts(kernel);
  std::string all;
  for (const Fact& check : in(told, "checks").facts) {
    const std::string verdict = in(check.facts, "verdict").text;
    CHECK_FALSE(in(check.facts, "meaning").text.empty());
    CHECK(in(check.facts, "mend").text.empty() == (verdict == "ok"));
    all += in(check.facts, "subject").text + ": " + verdict + "; ";
  }
  return all;
}

TEST_CASE("what the kernel lacks for shared memory comes with its remedy") {
  CHECK(verdicts({true, true, true}) == "sealed memory (memfd): ok; pidfd: ok; ");
  CHECK(verdicts({true, false, true}) == "sealed memory (memfd): fail; pidfd: ok; ");
  CHECK(verdicts({true, true, false}) == "sealed memory (memfd): ok; pidfd: warn; ");
}

TEST_CASE("a kernel that runs these tests over shared memory offers sealed memory") {
  const KernelFeatures kernel = look();
  CHECK(kernel.memfd);
  CHECK(kernel.sealing);
}

}  // namespace
}  // namespace tw::shm

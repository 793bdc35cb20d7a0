// SPDX-License-Identifier: Apache-2.0
// doctest's main(); the cases are in the folders beside it, which mirror core/. What they could not
// try comes last, in lines that scripts/in-parts reads: NOT TRIED: <why><tab><case>.
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <cstdio>
#include <set>
#include <utility>

#include "base/mutex.h"
#include "test/not_tried.h"

namespace tw::test {
namespace {

struct NotTried {
  Mutex mutex;
  std::set<std::pair<std::string, std::string>> whys_and_cases TW_GUARDED_BY(mutex);
};

NotTried& all_not_tried() {
  static NotTried all;
  return all;
}

}  // namespace

void not_tried(const std::string& why) {
  MESSAGE("not tried: " << why);
  const doctest::TestCaseData* const running = doctest::getContextOptions()->currentTest;
  NotTried& all = all_not_tried();
  const MutexLock lock(all.mutex);
  all.whys_and_cases.emplace(why, running->m_name);
}

}  // namespace tw::test

int main(int count, char** words) {
  doctest::Context context(count, words);
  const int status = context.run();
  auto& all = tw::test::all_not_tried();
  const tw::MutexLock lock(all.mutex);
  for (const auto& [why, name] : all.whys_and_cases)
    std::printf("NOT TRIED: %s\t%s\n", why.c_str(), name.c_str());
  return status;
}

// SPDX-License-Identifier: Apache-2.0
#include "base/few.h"

#include <doctest/doctest.h>

#include <memory>
#include <string>
#include <vector>

#include "test/shortage.h"

namespace tw {
namespace {

using Texts = Few<std::unique_ptr<std::string>, 3>;

Texts texts(int count) {
  Texts list;
  for (int i = 0; i < count; ++i) list.push_back(std::make_unique<std::string>(std::to_string(i)));
  return list;
}

std::vector<std::string> contents(const Texts& list) {
  std::vector<std::string> found;
  for (const auto& text : list) found.push_back(*text);
  return found;
}

TEST_CASE("few: elements keep their order from those inside of it to those beyond") {
  std::vector<std::string> expected;
  for (int count = 0; count <= 20; ++count) {
    CAPTURE(count);
    const Texts list = texts(count);
    CHECK(list.size() == static_cast<size_t>(count));
    CHECK(list.empty() == (count == 0));
    CHECK(contents(list) == expected);
    expected.push_back(std::to_string(count));
  }
}

TEST_CASE("few: all that is moved arrives, and nothing is left behind") {
  for (const int count : {0, 1, 3, 4, 9}) {
    for (const int before : {0, 2, 7}) {
      CAPTURE(count);
      CAPTURE(before);
      Texts from = texts(count);
      Texts to = texts(before);
      to = std::move(from);
      CHECK(contents(to) == contents(texts(count)));
      CHECK(from.empty());
      from.push_back(std::make_unique<std::string>("again"));
      CHECK(*from.back() == "again");
      const Texts made(std::move(to));
      CHECK(contents(made) == contents(texts(count)));
      CHECK(to.empty());
    }
  }
}

TEST_CASE("few: what is cleared can be filled again, and what is not there is refused") {
  Texts list = texts(5);
  list.clear();
  CHECK(list.empty());
  CHECK_THROWS_AS(list.at(0), std::out_of_range);
  list.push_back(std::make_unique<std::string>("one"));
  CHECK(*list.at(0) == "one");
}

TEST_CASE("few: those inside of it take no memory, and without any for more all stay") {
  if (!test::kFailsOnDemand) return;
  Few<int, 3> list;
  {
    test::Failing failing(1);
    for (int i = 0; i < 3; ++i) list.push_back(i);
    CHECK_THROWS_AS(list.push_back(3), std::bad_alloc);
    CHECK(failing.end());
  }
  REQUIRE(list.size() == 3);
  for (int i = 0; i < 3; ++i) CHECK(list[static_cast<size_t>(i)] == i);
}

}  // namespace
}  // namespace tw

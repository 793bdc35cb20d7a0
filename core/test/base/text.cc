// SPDX-License-Identifier: Apache-2.0
#include "base/text.h"

#include <doctest/doctest.h>

#include <limits>

namespace tw {
namespace {

TEST_CASE("text joins words and numbers of every width") {
  CHECK(text({}).empty());
  CHECK(text({"a ", 0, std::string(" b "), std::string_view("c ")}) == "a 0 b c ");
  CHECK(text({std::numeric_limits<uint64_t>::max()}) == "18446744073709551615");
  CHECK(text({std::numeric_limits<int64_t>::min()}) == "-9223372036854775808");
  CHECK(text({std::numeric_limits<int8_t>::min(), ",", uint8_t{200}}) == "-128,200");
}

TEST_CASE("quoted makes any bytes safe for a log") {
  CHECK(quoted("") == "''");
  CHECK(quoted("plain ~") == "'plain ~'");
  CHECK(quoted(std::string_view("\0\n'\\\x7f\xff", 6)) == "'\\x00\\x0a\\x27\\x5c\\x7f\\xff'");
  CHECK(quoted("abcdef", 6) == "'abcdef'");
  CHECK(quoted("abcdefg", 6) == "'abcdef...'");
}

}  // namespace
}  // namespace tw

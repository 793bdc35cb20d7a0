// What a caller has no memory for is a status, never an exception.
#include "test/shortage.h"

#include "test/abi/world.h"

namespace tw::test::abi {
namespace {

TEST_CASE_TEMPLATE("abi: each allocation of a caller may fail, and the next call works" *
                       doctest::skip(!kFailsOnDemand),
                   Way, TENSORWIRE_ABI_WAYS) {
  House house;
  const std::string text = text_of(60'000);
  const std::vector<std::string_view> parts(20, text);
  const Payload payload(parts);
  Link link = house.dial(Way::kName);
  bool failed = true;
  int refused = 0;
  for (int n = 1; failed; ++n) {
    REQUIRE(n < 500);
    CAPTURE(n);
    // The link may have been lost by what failed last.
    if (unary(link.get(), "/t/Echo", kNothing).code != kOk) link = house.dial(Way::kName);
    REQUIRE(unary(link.get(), "/t/Echo", kNothing).code == kOk);
    suffer(true);
    fail_allocation(n);
    tw_reply reply{};
    tw_status status{};
    const int code =
        tw_link_unary(link.get(), "/t/Echo", 7, {}, payload, &kPatience, &reply, &status);
    failed = allocation_failed();
    fail_allocation(0);
    suffer(false);
    const Message message(reply.message);
    const Metadata initial(reply.initial), trailing(reply.trailing);
    CHECK((code == kOk || code == kUnavailable || code == kResourceExhausted));
    refused += code != kOk;
  }
  CHECK(refused != 0);
}

}  // namespace
}  // namespace tw::test::abi

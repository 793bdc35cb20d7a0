// SPDX-License-Identifier: Apache-2.0
#include "transport/verbs/library.h"

#include <doctest/doctest.h>

#include "test/not_tried.h"

namespace tw::verbs {
namespace {

TEST_SUITE("verbs") {
  TEST_CASE("a library that is not there is an answer that says what to install") {
    const auto library = Library::load("libtensorwire-no-such-library.so.1");
    REQUIRE_FALSE(library.ok());
    CHECK(library.status().code() == Code::kFailedPrecondition);
    const std::string& said = library.status().details();
    INFO(said);
    CHECK(said.find("libtensorwire-no-such-library.so.1") != std::string::npos);
    CHECK(said.find("libibverbs1 and ibverbs-providers") != std::string::npos);
    CHECK(said.find("rdma-core") != std::string::npos);
  }

  TEST_CASE("a library without a function that is needed is another answer, which names it") {
    const auto library = Library::load("libm.so.6");
    REQUIRE_FALSE(library.ok());
    CHECK(library.status().code() == Code::kFailedPrecondition);
    const std::string& said = library.status().details();
    INFO(said);
    CHECK(said.find("newer libm.so.6") != std::string::npos);
    CHECK(said.find("has no ibv_get_device_list") != std::string::npos);
  }

  TEST_CASE("this host's library has every function") {
    const auto library = Library::get();
    if (!library) return test::not_tried(library.status().details());
    CHECK(Library::get().value() == library.value());
    CHECK(std::string((*library)->wc_status_str(IBV_WC_SUCCESS)) == "success");
  }
}

}  // namespace
}  // namespace tw::verbs

// SPDX-License-Identifier: Apache-2.0
#include "device/cuda_driver.h"

#include <doctest/doctest.h>

#include "device/cuda_functions.h"

namespace tw::test {
namespace {

TEST_CASE("without CUDA's library the error says what is missing") {
  const auto none = device::cuda::Functions::load("libcuda-of-nobody.so.1");
  REQUIRE(!none);
  CHECK(none.status().code() == Code::kFailedPrecondition);
  CHECK(none.status().details().find("libcuda-of-nobody.so.1, which comes with NVIDIA's driver") !=
        std::string::npos);
  const auto other = device::cuda::Functions::load("libc.so.6");
  REQUIRE(!other);
  CHECK(other.status().details().find("libc.so.6 lacks cuInit") != std::string::npos);
}

TEST_CASE("CUDA's driver is there or says why not, each time the same") {
  const auto first = device::cuda_driver(), second = device::cuda_driver();
  REQUIRE(first.ok() == second.ok());
  if (first) {
    CHECK((*first)->devices() > 0);
    CHECK(*first == *second);
    return;
  }
  CHECK(first.status().code() == Code::kFailedPrecondition);
  CHECK(first.status().details() == second.status().details());
}

}  // namespace
}  // namespace tw::test

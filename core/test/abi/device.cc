// SPDX-License-Identifier: Apache-2.0
// Devices where there are none: everything says so, and what lies in the host's memory goes on.
#include <doctest/doctest.h>

#include <cstring>
#include <string>

#include "device/cuda_driver.h"
#include "tensorwire.h"
#include "test/not_tried.h"

namespace tw::test {
namespace {

tw_group* alone() {
  tw_store store{};
  tw_group* group = nullptr;
  REQUIRE(tw_group_join(&store, 0, 1, nullptr, 0, nullptr, &group, nullptr) == TW_OK);
  return group;
}

TEST_CASE("abi: without a device its arrays are refused, and the group goes on") {
  if (device::cuda_driver()) return not_tried("there is a CUDA device");
  int count = -1;
  tw_status status{};
  CHECK(tw_device_count(&count, &status) == TW_CODE_FAILED_PRECONDITION);
  CHECK(count == -1);
  CHECK(std::string(status.details).find("CUDA") == 0);
  tw_group* const group = alone();
  float in = 3, out = 0;
  const tw_collective sum{TW_ALL_REDUCE, TW_FLOAT32, TW_SUM, 0, 1, 1};
  const tw_collective exchange{TW_ALL_TO_ALL, TW_FLOAT32, TW_SUM, 0, 1, 0};
  for (const int ordinal : {-1, 0}) {
    const tw_device device{ordinal, nullptr};
    CHECK(tw_group_run_on(group, &sum, &device, &in, &out, nullptr, &status) ==
          TW_CODE_FAILED_PRECONDITION);
    const tw_run run{0, 4};
    CHECK(tw_group_exchange_on(group, &exchange, &device, &in, &run, &out, &run, nullptr,
                               &status) == TW_CODE_FAILED_PRECONDITION);
  }
  CHECK(out == 0);
  CHECK(tw_group_run_on(group, &sum, nullptr, &in, &out, nullptr, &status) == TW_OK);
  CHECK(out == 3);
  tw_group_release(group);
}

}  // namespace
}  // namespace tw::test

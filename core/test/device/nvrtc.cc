// SPDX-License-Identifier: Apache-2.0
// Kernels through the real compiler, where there is one. It needs no device.
#include "device/nvrtc.h"

#include <doctest/doctest.h>

#include <string>

#include "collective/device_reduction.h"
#include "test/not_tried.h"

namespace tw::test {
namespace {

bool has_factor(ReduceOp op) { return op == ReduceOp::kSum || op == ReduceOp::kAverage; }

void check_compiled(size_t type, size_t op, bool scaled, int architecture) {
  const std::string macros[] = {"TW_TYPE=" + std::to_string(type), "TW_OP=" + std::to_string(op),
                                "TW_SCALED=" + std::to_string(scaled)};
  const auto code =
      device::compile({collective::kReductionKernels, macros, "reduce"}, architecture);
  CAPTURE(macros[0]);
  CAPTURE(macros[1]);
  CAPTURE(macros[2]);
  CAPTURE(architecture);
  // An architecture that this compiler does not know.
  if (!code && code.status().code() == Code::kFailedPrecondition && architecture != 90) return;
  REQUIRE_MESSAGE(code.ok(), code.status().details());
  REQUIRE(code->size() > 4);
  CHECK(std::string(code->data(), 4) == "\177ELF");
}

TEST_CASE("NVRTC compiles the kernels of each type, and of each reduction") {
  const std::string first[] = {"TW_TYPE=1", "TW_OP=0", "TW_SCALED=0"};
  const auto tried = device::compile({collective::kReductionKernels, first, "reduce"}, 80);
  if (!tried && tried.status().code() == Code::kFailedPrecondition) {
    CHECK(tried.status().details().find("nvidia-cuda-nvrtc") != std::string::npos);
    return not_tried(tried.status().details());
  }
  for (size_t type = 0; type < kDataTypes; ++type)
    for (size_t op = 0; op < kReduceOps; ++op) {
      const auto by = static_cast<ReduceOp>(op);
      if (by == ReduceOp::kAdasum || !reducible(static_cast<DataType>(type), by)) continue;
      // All of them would take as many seconds as there are types.
      if (op != static_cast<size_t>(ReduceOp::kMin) &&
          type != static_cast<size_t>(DataType::kInt32) &&
          type != static_cast<size_t>(DataType::kBfloat16))
        continue;
      for (const bool scaled : {false, true})
        if (!scaled || (has_factor(by) && is_float(static_cast<DataType>(type))))
          check_compiled(type, op, scaled, 90);
    }
  // Of other devices, as far as this compiler knows them.
  for (const int architecture : {75, 80, 86, 100, 120})
    for (const bool scaled : {false, true})
      check_compiled(static_cast<size_t>(DataType::kFloat16), static_cast<size_t>(ReduceOp::kSum),
                     scaled, architecture);

  const auto wrong = device::compile({"__global__ void f() { g(); }", {}, "f"}, 80);
  REQUIRE(!wrong);
  CHECK(wrong.status().code() == Code::kInvalidArgument);
  CHECK(wrong.status().details().find("\"g\" is undefined") != std::string::npos);
  CHECK(device::compile({"", {}, "f"}, 13).status().code() == Code::kFailedPrecondition);
}

}  // namespace
}  // namespace tw::test

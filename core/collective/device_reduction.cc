// SPDX-License-Identifier: Apache-2.0
#include "collective/device_reduction.h"

#include <algorithm>
#include <string>

#include "base/text.h"

namespace tw::collective {

Result<device::Kernel> DeviceReduction::kernel(int device, DataType type, ReduceOp op,
                                               bool scaled) {
  const MutexLock lock(mutex_);
  const std::tuple key{device, type, op, scaled};
  if (const auto known = kernels_.find(key); known != kernels_.end()) return known->second;
  const std::string macros[] = {text({"TW_TYPE=", static_cast<int>(type)}),
                                text({"TW_OP=", static_cast<int>(op)}),
                                text({"TW_SCALED=", static_cast<int>(scaled)})};
  auto made = driver_.load(device, {kReductionKernels, macros, "reduce"});
  if (made) kernels_.emplace(key, *made);
  return made;
}

Status DeviceReduction::start(int device, DataType type, ReduceOp op,
                              std::span<const std::byte* const> in, std::span<const double> factors,
                              std::byte* out, uint64_t count, unsigned ranks,
                              device::Stream stream) {
  if (count == 0) return {};
  auto found = kernel(device, type, op, !factors.empty());
  if (!found) return found.status();
  ReductionArguments arguments{
      {}, out, {}, count, static_cast<uint32_t>(in.size()), static_cast<uint32_t>(ranks)};
  std::ranges::copy(in, arguments.in);
  std::ranges::copy(factors, arguments.factors);
  constexpr unsigned kThreads = 256, kMaxBlocks = 1024;  // each takes several elements then
  const auto blocks =
      static_cast<unsigned>(std::min<uint64_t>((count + kThreads - 1) / kThreads, kMaxBlocks));
  return driver_.launch(device, *found, blocks, kThreads, &arguments, sizeof arguments, stream);
}

}  // namespace tw::collective

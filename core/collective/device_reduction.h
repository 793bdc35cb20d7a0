// SPDX-License-Identifier: Apache-2.0
// Reductions by a device, of arrays in memory that it reaches.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <tuple>

#include "base/mutex.h"
#include "collective/data_type.h"
#include "device/driver.h"

namespace tw::collective {

// What the kernels are given.
struct ReductionArguments {
  static constexpr size_t kMaxInputs = 16;
  const std::byte* in[kMaxInputs];
  std::byte* out;
  double factors[kMaxInputs];
  uint64_t count;
  uint32_t inputs, ranks;
};
static_assert(sizeof(ReductionArguments) == 280);

extern const char kReductionKernels[];

// Thread-safe.
class DeviceReduction {
 public:
  explicit DeviceReduction(device::Driver& driver) : driver_(driver) {}

  // Compiles what start() needs, if nobody has before; that may take a second. `scaled`: there are
  // factors.
  Result<device::Kernel> kernel(int device, DataType type, ReduceOp op, bool scaled);
  // Queues reduce() of collective/reduction.h. All arrays begin at a multiple of size_of(type), and
  // there are up to kMaxInputs. `factors`: none, or for each of them what scale() makes of it
  // first, while it stays as it is.
  Status start(int device, DataType type, ReduceOp op, std::span<const std::byte* const> in,
               std::span<const double> factors, std::byte* out, uint64_t count, unsigned ranks,
               device::Stream stream);

 private:
  device::Driver& driver_;
  Mutex mutex_;  // guards what follows; held while a kernel is compiled, which is done once
  std::map<std::tuple<int, DataType, ReduceOp, bool>, device::Kernel> kernels_
      TW_GUARDED_BY(mutex_);
};

}  // namespace tw::collective

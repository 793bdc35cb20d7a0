// SPDX-License-Identifier: Apache-2.0
#include "collective/kernels.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace tw {
namespace {

#if defined(__x86_64__)

struct CpuidLeaf {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
};

CpuidLeaf cpuid(unsigned leaf) {
  CpuidLeaf got;
  __get_cpuid_count(leaf, 0, &got.eax, &got.ebx, &got.ecx, &got.edx);
  return got;
}

constexpr bool all(unsigned set, unsigned wanted) { return (set & wanted) == wanted; }

// Which registers the kernel keeps for a process: XCR0, readable when OSXSAVE is set.
unsigned kept_registers() {
  unsigned low, high;
  __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return low;
}

// __builtin_cpu_supports would do, but zig's runtime library answers no to everything.
size_t usable() {
  constexpr unsigned kOsxsave = 1u << 27, kF16c = 1u << 29;
  constexpr unsigned kAvx2 = 1u << 5;
  constexpr unsigned kAvx512 = 1u << 16 | 1u << 17 | 1u << 30 | 1u << 31;  // F, DQ, BW, VL
  constexpr unsigned kYmm = 0x6, kZmm = 0xe6;
  const CpuidLeaf first = cpuid(1), extended = cpuid(7);
  if (!all(first.ecx, kOsxsave | kF16c)) return 1;
  const unsigned kept = kept_registers();
  if (!all(extended.ebx, kAvx2) || !all(kept, kYmm)) return 1;
  return all(extended.ebx, kAvx512) && all(kept, kZmm) ? 3 : 2;
}

constexpr const Kernels* kAll[] = {&kBaselineKernels, &kAvx2Kernels, &kAvx512Kernels};

#else

size_t usable() { return 1; }

constexpr const Kernels* kAll[] = {&kBaselineKernels};

#endif

}  // namespace

std::span<const Kernels* const> usable_kernels() {
  static const size_t count = usable();
  return {kAll, count};
}

}  // namespace tw

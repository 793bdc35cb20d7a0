// SPDX-License-Identifier: Apache-2.0
// How floats are computed with, whatever the calling thread is set to.
#pragma once

#include <cstdint>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace tw {

// Rounds to nearest and keeps denormals while it lives, whatever the thread does otherwise:
// frameworks set their threads to flush denormals.
class DefaultRounding {
 public:
  DefaultRounding() : before_(control()) {
    if (before_ != kDefault) set_control(kDefault);
  }
  ~DefaultRounding() {
    if (before_ != kDefault) set_control(before_);
  }
  DefaultRounding(const DefaultRounding&) = delete;
  DefaultRounding& operator=(const DefaultRounding&) = delete;

 private:
#if defined(__x86_64__)
  using Control = unsigned;
  static constexpr Control kDefault = 0x1f80;  // without the flags of what has happened
  static Control control() { return _mm_getcsr() & ~0x3fu; }
  static void set_control(Control control) { _mm_setcsr(control); }
#elif defined(__aarch64__)
  using Control = uint64_t;
  static constexpr Control kDefault = 0;
  static Control control() {
    Control control;
    __asm__ volatile("mrs %0, fpcr" : "=r"(control));
    return control;
  }
  static void set_control(Control control) { __asm__ volatile("msr fpcr, %0" ::"r"(control)); }
#else
  using Control = int;
  static constexpr Control kDefault = 0;
  static Control control() { return kDefault; }
  static void set_control(Control) {}
#endif

  const Control before_;
};

}  // namespace tw

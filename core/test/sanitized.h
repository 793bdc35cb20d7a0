// SPDX-License-Identifier: Apache-2.0
// Whether a sanitizer watches: what a program takes of memory and time is not its own then.
#pragma once

#if !defined(__has_feature)
#define __has_feature(name) 0
#endif

#if defined(__SANITIZE_THREAD__) || __has_feature(thread_sanitizer)
#define TENSORWIRE_THREAD_SANITIZED 1
#else
#define TENSORWIRE_THREAD_SANITIZED 0
#endif

namespace tw::test {

#if TENSORWIRE_THREAD_SANITIZED || defined(__SANITIZE_ADDRESS__) || __has_feature(address_sanitizer)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

}  // namespace tw::test

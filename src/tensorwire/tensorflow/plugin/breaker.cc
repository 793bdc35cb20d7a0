// SPDX-License-Identifier: Apache-2.0
#include "breaker.h"

#include <algorithm>
#include <utility>

namespace tensorwire {
namespace {

// What lived so long was a good link. An adapter that nobody answers may take 4 x 2 s to say so.
constexpr auto kSteady = std::chrono::seconds(30);
constexpr int kEnough = 2;  // links in a row that died young, after which there is a pause
constexpr auto kFirstPause = std::chrono::seconds(10);
constexpr auto kLongestPause = std::chrono::seconds(300);

}  // namespace

void Breaker::died(Clock::duration lived, std::string why) {
  if (lived >= kSteady)
    *this = Breaker();
  else
    fail(std::move(why), failures_ + 1 >= kEnough);
}

void Breaker::unreached(std::string why) { fail(std::move(why), true); }

void Breaker::fail(std::string why, bool pause) {
  why_ = std::move(why);
  ++failures_;
  if (!pause) return;
  const auto seconds = kFirstPause * (1 << std::min(failures_ - 1, 8));
  until_ = Clock::now() + std::min<Clock::duration>(seconds, kLongestPause);
}

bool Breaker::news() {
  if (told_ || Clock::now() >= until_) return false;
  return told_ = true;
}

}  // namespace tensorwire

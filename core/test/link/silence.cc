// SPDX-License-Identifier: Apache-2.0
// Hosts that fall silent, and such as only seem to, by a clock of the test's own.
#include "link/silence.h"

#include <doctest/doctest.h>

#include <optional>

namespace tw {
namespace {

constexpr Nanos kLimit = kSecond;
constexpr Nanos kLook = kLimit / Silence::kLooks;
constexpr Nanos kStart = 1'000 * kSecond;

// A host at the end of a cable, and what the kernel here notes of it.
struct Far {
  std::optional<Nanos> cut;  // from then on it hears nothing, and is not heard
  bool room = true;          // its process reads
  Nanos heard = kStart;
  std::optional<Nanos> sent;  // and not acknowledged
  int asked = 0;

  void send(Nanos at) {
    if (cut && at >= *cut) {
      sent = sent.value_or(at);
    } else {
      heard = at;
    }
  }
  HostAnswer answer(Nanos at) const { return {sent.has_value(), at - heard, room}; }
  Silence::Verdict look(Silence& silence, Nanos at) {
    const auto verdict = silence.look(at, answer(at));
    if (verdict == Silence::Verdict::kAsk) {
      ++asked;
      send(at);
    }
    return verdict;
  }
};

TEST_CASE("silence: a host that is there is asked four times within the limit, and never lost") {
  Silence silence(kLimit);
  Far far;
  for (Nanos at = kStart; at < kStart + 100 * kLimit; at += kLook)
    REQUIRE(far.look(silence, at) != Silence::Verdict::kLost);
  CHECK(far.asked <= 400);
  CHECK(far.asked >= 390);
}

TEST_CASE("silence: a host that is cut off is lost within the limit, whenever that was") {
  for (Nanos cut = kStart + kLimit; cut < kStart + 2 * kLimit; cut += kMillisecond) {
    CAPTURE(cut);
    Silence silence(kLimit);
    Far far;
    far.cut = cut;
    Nanos at = kStart;
    while (far.look(silence, at) != Silence::Verdict::kLost) {
      at += kLook;
      REQUIRE(at <= cut + kLimit);
    }
    CHECK(at > cut);
  }
}

TEST_CASE("silence: a host is lost, too, to whom something was on the way") {
  for (Nanos cut = kStart + kLimit; cut < kStart + 2 * kLimit; cut += kMillisecond) {
    Silence silence(kLimit);
    Far far;
    far.cut = cut;
    Nanos at = kStart;
    do {
      far.send(at);
      at += kLook;
      REQUIRE(at <= cut + kLimit);
    } while (far.look(silence, at) != Silence::Verdict::kLost);
  }
}

TEST_CASE("silence: what a host acknowledges now and then keeps it, whatever is on the way") {
  Silence silence(kLimit);
  Far far;
  far.sent = kStart;
  for (Nanos at = kStart; at < kStart + 100 * kLimit; at += kLook) {
    if ((at - kStart) % (kLimit / 2) == 0) far.heard = at;
    REQUIRE(far.look(silence, at) != Silence::Verdict::kLost);
  }
}

TEST_CASE("silence: a host whose process reads nothing is neither asked nor lost") {
  Silence silence(kLimit);
  Far far;
  far.room = false;
  for (Nanos at = kStart; at < kStart + 100 * kLimit; at += kLook)
    REQUIRE(far.look(silence, at) == Silence::Verdict::kThere);
}

TEST_CASE("silence: by the limit of a link a host is lost only after that, and soon then") {
  for (Nanos cut = kStart + kLimit; cut < kStart + 2 * kLimit; cut += kMillisecond) {
    CAPTURE(cut);
    Silence silence = Silence::after(kLimit);
    Far far;
    far.cut = cut;
    Nanos at = kStart;
    do {
      far.send(at);
      at += silence.every();
    } while (far.look(silence, at) != Silence::Verdict::kLost);
    CHECK(at >= cut + kLimit - silence.every());
    CHECK(at <= cut + kLimit + 2 * silence.every());
  }
}

TEST_CASE("silence: who has not looked for long finds nobody guilty") {
  Silence silence(kLimit);
  Far far;
  far.cut = kStart;
  // Looks come so late that the machine here may have been stopped, again and again.
  Nanos at = kStart;
  for (int i = 0; i < 100; ++i) {
    REQUIRE(far.look(silence, at) != Silence::Verdict::kLost);
    at += kLimit;
  }
  // It goes on, and the host is still not heard.
  while (far.look(silence, at) != Silence::Verdict::kLost) {
    at += kLook;
    REQUIRE(at <= kStart + 102 * kLimit);
  }
}

TEST_CASE("silence: what is sent after a long peace is given the time that everything has") {
  Silence silence(kLimit);
  Far far;
  far.room = false;  // nobody asks
  for (Nanos at = kStart; at < kStart + 10 * kLimit; at += kLook) (void)far.look(silence, at);
  const Nanos cut = kStart + 10 * kLimit;
  far.cut = cut;
  far.send(cut);
  for (Nanos at = cut; at < cut + kLimit / 2; at += kLook)
    REQUIRE(far.look(silence, at) == Silence::Verdict::kThere);
}

}  // namespace
}  // namespace tw

// SPDX-License-Identifier: Apache-2.0
// The shared-memory rings, exactly as they are, under the explorer: programs of two or three
// threads that move a few bytes and sleep whenever they can.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "test/model/model.h"
#include "transport/shm/ring.h"

namespace tw {

// What an end of a link remembers besides its atomics.
struct RingProbe {
  template <class A>
  static std::array<uint64_t, 6> locals(const RingPair<A>& pair) {
    const auto& writer = pair.writer_;
    const auto& reader = pair.reader_;
    return {writer.tail_, writer.head_, writer.blocked_here_,
            reader.tail_, reader.head_, reader.freed_};
  }
};

}  // namespace tw

namespace tw::model {

// The rings' atomics and bytes under the explorer; one site can be made weaker than it is.
struct ModelAtomics {
  template <class T>
  using Atomic = model::Atomic<T>;
  using Byte = model::Plain;

  static inline std::optional<RingSite> weakened;

  static std::memory_order order(RingSite site) {
    return site == weakened ? std::memory_order_relaxed : HardwareAtomics::order(site);
  }
  static void fence(RingSite site) {
    if (site != weakened) model::fence();
  }
  static void copy_in(Byte* ring, const void* from, size_t n) {
    for (size_t i = 0; i < n; ++i) ring[i].write(static_cast<const uint8_t*>(from)[i]);
  }
  static void copy_out(void* to, const Byte* ring, size_t n) {
    for (size_t i = 0; i < n; ++i) static_cast<uint8_t*>(to)[i] = ring[i].read();
  }
};

// What two processes share: the rings' memory, and bytes that side 0 lends to side 1.
struct SharedMemory {
  explicit SharedMemory(size_t ring_capacity) : capacity(ring_capacity) {}

  const size_t capacity;  // of each ring: 1 or 2 bytes
  RingHeader<ModelAtomics> header;
  Plain data[4];
  Plain lent[2];
};

// A way to sleep, and how often a sleep may end without having been rung.
struct SleepStyle {
  Sleeper as = Sleeper::kBackground;
  unsigned timeouts = 0;
};

// One end of the link, used by one thread.
class End {
 public:
  End(SharedMemory& memory, int side, SleepStyle style)
      : rings_(memory.header, memory.data, memory.capacity, side), side_(side), style_(style) {}

  // Bytes taken; wakes the reader.
  size_t write(const uint8_t* bytes, size_t n) {
    const iovec data{const_cast<uint8_t*>(bytes), n};
    const auto written = rings_.write({&data, 1});
    require(written.ok(), "an honest peer was called corrupt");
    if (*written != 0) wake(rings_.after_write());
    return *written;
  }
  // Bytes stored; wakes the writer.
  size_t read(uint8_t* bytes, size_t n) {
    const iovec room{bytes, n};
    const auto got = rings_.read({&room, 1});
    require(got.ok(), "an honest peer was called corrupt");
    wake(rings_.after_read());
    return *got;
  }
  // Until there may be something to read, or room after a write was cut short.
  void sleep() {
    if (!rings_.prepare_sleep(style_.as)) return;
    if (style_.timeouts != 0 && choose(2) == 1) {
      --style_.timeouts;
    } else if (style_.as == Sleeper::kBackground) {
      wait(static_cast<uint8_t>(side_));
    } else {
      futex_wait(rings_.sleep_word(), static_cast<uint32_t>(Sleeper::kDriver));
    }
    rings_.awake();
  }

  // A checkpoint of a thread whose state is this end and two numbers.
  void checkpoint(uint64_t a, uint64_t b = 0) const {
    const auto locals = RingProbe::locals(rings_);
    model::checkpoint(
        {a, b, style_.timeouts, locals[0], locals[1], locals[2], locals[3], locals[4], locals[5]});
  }

  // Sends all, sleeping while there is no room; `place` tells where in the program this is.
  void send(const std::vector<uint8_t>& bytes, uint64_t place) {
    for (size_t done = 0; done < bytes.size();) {
      checkpoint(place, done);
      const size_t n = write(bytes.data() + done, bytes.size() - done);
      done += n;
      if (n == 0) sleep();
    }
  }
  // The next byte, sleeping until there is one.
  uint8_t receive(uint64_t place) {
    for (;;) {
      checkpoint(place);
      uint8_t byte = 0;
      if (read(&byte, 1) == 1) return byte;
      sleep();
    }
  }

 private:
  void wake(Sleeper who) {
    if (who == Sleeper::kBackground) ring(static_cast<uint8_t>(1 - side_));
    if (who == Sleeper::kDriver) futex_wake(rings_.peer_sleep_word());
  }

  RingPair<ModelAtomics> rings_;
  const int side_;
  SleepStyle style_;
};

// Side 0 sends the messages, side 1 reads at most `room` bytes at a time.
void one_way(Program& program, SleepStyle style, size_t capacity,
             const std::vector<size_t>& messages, size_t room);
// Each side sends its number of bytes and reads what the other sends, sleeping when it can do
// neither.
void both_ways(Program& program, SleepStyle style, std::array<size_t, 2> bytes);
// Side 0 lends memory by a descriptor; side 1 reads the memory and gives it back through its ring;
// side 0 writes to it again.
void lend(Program& program, SleepStyle style);
// Side 0 has two threads: one sends more than there is room for, the other drives and sleeps (as
// the background: with eventfds).
void driver_beside_sender(Program& program, SleepStyle style);

}  // namespace tw::model

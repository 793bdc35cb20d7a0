// SPDX-License-Identifier: Apache-2.0
// The memory of a program under exploration: what each thread may still read, and who has touched
// what.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "test/model/model.h"

namespace tw::model {

inline constexpr size_t kThreads = 4;
inline constexpr size_t kAtomics = 12;
inline constexpr size_t kPlains = 24;

// For each location the oldest store that may still be read, as an index into its modification
// order; for each thread how much of what it did has happened before.
struct View {
  std::array<uint8_t, kAtomics> oldest{};
  std::array<uint8_t, kThreads> clock{};

  void join_oldest(const View& other);
  void join(const View& other);
};

struct Store {
  uint64_t value = 0;
  bool update = false;  // by a read-modify-write: nothing may come between it and the store before
  View view;            // what a load that acquires it learns
};

struct PlainByte {
  uint8_t value = 0;
  uint8_t writer = 0;
  uint8_t write_clock = 0;                     // 0: not written by a thread
  std::array<uint8_t, kThreads> read_clock{};  // 0: not read
};

class Memory {
 public:
  explicit Memory(const Program& program);

  // Stores that a load by `thread` may return: indices from first_readable() up to the newest.
  size_t first_readable(size_t thread, uint8_t location) const {
    return threads_[thread].now.oldest[location];
  }
  size_t stores(uint8_t location) const { return atomics_[location].size(); }
  uint64_t value(uint8_t location, size_t index) const { return atomics_[location][index].value; }
  // Whether a store may be put at `index` of the modification order.
  bool insertable(uint8_t location, size_t index) const {
    return index == atomics_[location].size() || !atomics_[location][index].update;
  }

  uint64_t load(size_t thread, const Op& op, size_t index);
  void store(size_t thread, const Op& op, size_t index);
  // Reads the store at `index` and puts its own behind it.
  uint64_t update(size_t thread, const Op& op, size_t index);
  void fence(size_t thread);
  // Entering the kernel's futex code: its lock orders all who do.
  void enter_kernel(size_t thread);
  // Hands on, and takes over, all that a thread knows.
  void ring(size_t thread, size_t bell);
  void wait(size_t thread, size_t bell) { threads_[thread].now.join(bells_[bell]); }
  // Both return false on a data race.
  bool plain_read(size_t thread, uint8_t at, uint64_t& value);
  bool plain_write(size_t thread, uint8_t at, uint8_t value);

  void thread_ended(size_t thread);
  // Forgets what no thread can tell any more, so that states with the same future look the same.
  void forget();
  // Appends everything that matters for the future.
  void describe(std::vector<uint8_t>& out) const;

 private:
  struct Thread {
    View now;
    View acquired;  // of relaxed loads, for an acquire fence to come
    View released;  // at the last release fence, for relaxed stores to come
    bool ended = false;
  };

  void put(size_t thread, uint8_t location, size_t index, const Store& store, bool releases);
  template <class Visit>
  void each_view(Visit&& visit);
  void forget_stores();
  void forget_clocks(size_t thread);
  uint8_t known_to_all(size_t of) const;

  std::vector<Thread> threads_;
  std::vector<std::vector<Store>> atomics_;  // in modification order
  std::vector<PlainByte> plains_;
  std::array<View, kBells> bells_{};
  View kernel_;  // of the futex lock; like the next it orders atomics only
  View fences_;  // the order of seq_cst fences; its clocks are not used: fences alone synchronise
                 // nothing
};

}  // namespace tw::model

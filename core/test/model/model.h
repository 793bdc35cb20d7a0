// SPDX-License-Identifier: Apache-2.0
// An exhaustive explorer of small concurrent programs under the C++ memory model.
//
// A program is a handful of threads over locations of this header's types. explore() runs every
// interleaving of them and, at each load, every store that the load may return, and reports the
// first violation: a data race on plain memory, a failed require(), or threads that wait for ever.
//
// The memory model is the operational, view-based one: each location keeps its stores in
// modification order; each thread has a view, the oldest store of each location that it may still
// read; a release store carries its thread's view to whoever acquires it, sequentially consistent
// fences share one view among them, and stores may enter the modification order anywhere after
// their thread's view. It covers relaxed, acquire, release and acq_rel accesses, seq_cst fences and
// release sequences, and leaves out load buffering (a load that returns a store of its own future),
// which no order here depends on.
//
// Threads are ordinary functions. They are run again from the beginning for each step, with the
// results of the steps before, so they must depend on nothing else, and what they construct must
// stay theirs.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace tw::model {

enum class OpKind : uint8_t {
  kLoad,
  kStore,
  kExchange,
  kFetchAdd,
  kFence,
  kPlainRead,
  kPlainWrite,
  kChoose,
  kWait,
  kRing,
  kFutexWait,
  kFutexWake,
  kFail,
  kEnd,
};

struct Op {
  OpKind kind = OpKind::kEnd;
  uint8_t target = 0;  // location, plain byte or bell
  std::memory_order order = std::memory_order_relaxed;
  uint64_t value = 0;
  const char* text = "";
};

// For the types below: what happens, from inside a thread. Returns the result.
uint64_t perform(const Op& op);
// Registers a location or a plain byte while a program is set up, or finds it again in a thread.
uint8_t declare_atomic(uint64_t initial);
uint8_t declare_plain(uint8_t initial);

// Stands for std::atomic<T>.
template <class T>
class Atomic {
  static_assert(std::is_unsigned_v<T>);

 public:
  Atomic(T initial) : at_(declare_atomic(initial)) {}  // implicit
  Atomic(const Atomic&) = delete;
  Atomic& operator=(const Atomic&) = delete;

  T load(std::memory_order order) const {
    return static_cast<T>(perform({OpKind::kLoad, at_, order}));
  }
  void store(T value, std::memory_order order) { perform({OpKind::kStore, at_, order, value}); }
  T exchange(T value, std::memory_order order) {
    return static_cast<T>(perform({OpKind::kExchange, at_, order, value}));
  }
  T fetch_add(T value, std::memory_order order) {
    return static_cast<T>(perform({OpKind::kFetchAdd, at_, order, value}));
  }
  uint8_t location() const { return at_; }

 private:
  const uint8_t at_;
};

// A byte of plain memory: unordered accesses to it are a violation.
class Plain {
 public:
  Plain(uint8_t initial = 0) : at_(declare_plain(initial)) {}  // implicit
  Plain(const Plain&) = delete;
  Plain& operator=(const Plain&) = delete;

  uint8_t read() const { return static_cast<uint8_t>(perform({OpKind::kPlainRead, at_})); }
  void write(uint8_t value) {
    perform({OpKind::kPlainWrite, at_, std::memory_order_relaxed, value});
  }

 private:
  const uint8_t at_;
};

inline void fence() { perform({OpKind::kFence}); }
// Any number below `options`.
inline unsigned choose(unsigned options) {
  return static_cast<unsigned>(perform({OpKind::kChoose, 0, std::memory_order_relaxed, options}));
}
inline void require(bool condition, const char* text) {
  if (!condition) perform({OpKind::kFail, 0, std::memory_order_relaxed, 0, text});
}

// Promises that all the thread does from here on depends on these values and not on how it came
// here, which lets the explorer join its paths.
void checkpoint(std::initializer_list<uint64_t> locals);

// ring() makes the present or the next wait() return. The first kEventfds bells are eventfds, which
// lose nothing but order no memory; the others order it as the events of one process do.
inline constexpr size_t kBells = 4;
inline constexpr size_t kEventfds = 2;
inline void wait(uint8_t bell) { perform({OpKind::kWait, bell}); }
inline void ring(uint8_t bell) { perform({OpKind::kRing, bell}); }

// futex(2): whoever changes the word before he wakes is not missed.
template <class T>
void futex_wait(const Atomic<T>& word, T expected) {
  perform({OpKind::kFutexWait, word.location(), std::memory_order_relaxed, expected});
}
template <class T>
void futex_wake(const Atomic<T>& word) {
  perform({OpKind::kFutexWake, word.location()});
}

// Objects that are constructed in threads while a Shared with the same key lives are one object:
// their atomics are the same locations. Without it what a thread constructs is its own.
class Shared {
 public:
  explicit Shared(unsigned key);
  ~Shared();
  Shared(const Shared&) = delete;
  Shared& operator=(const Shared&) = delete;

 private:
  const unsigned outer_;
};

// Holds what a program declares; the memory itself is the explorer's.
class Program {
 public:
  // Runs `setup`, which constructs what the threads share and adds them.
  explicit Program(const std::function<void(Program&)>& setup);

  void thread(std::function<void()> body) { threads.push_back(std::move(body)); }

  std::vector<std::function<void()>> threads;
  std::vector<uint64_t> atomics;  // initial values
  std::vector<uint8_t> plains;
  std::vector<std::pair<uint64_t, uint8_t>> declared_in_threads;  // key, location

  // Whether no other thread can reach the location.
  bool is_private(size_t thread, uint8_t location) const;
};

struct Report {
  std::string violation;  // empty: there is none
  std::vector<std::string> trace;
  uint64_t states = 0;
};

// Ways to reach the same verdict by fewer states: checkpoints, steps that lose nothing by going
// first, locations that only one thread can reach.
enum class Shortcuts { kTaken, kNotTaken };

// Throws std::length_error when the program is too large for the explorer or has more than `limit`
// states.
Report explore(Program& program, Shortcuts shortcuts = Shortcuts::kTaken,
               uint64_t limit = 4'000'000);

}  // namespace tw::model

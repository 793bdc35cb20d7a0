// SPDX-License-Identifier: Apache-2.0
// Depth first through all states; states that have been seen are not entered again.
#include <algorithm>
#include <array>
#include <cstring>
#include <sstream>
#include <stdexcept>
#include <unordered_set>
#include <utility>

#include "test/model/memory.h"
#include "test/model/model.h"
#include "test/model/replay.h"

namespace tw::model {
namespace {

struct State {
  Memory memory;
  std::vector<const Step*> at;  // each thread's next step
  std::array<bool, kBells> bells{};
  std::array<bool, kThreads> asleep{};  // in a futex wait
};

// 128 bits of a state's description: that two states share them is out of the question.
struct Digest {
  uint64_t a, b;
  friend bool operator==(const Digest&, const Digest&) = default;
};
struct DigestHash {
  size_t operator()(const Digest& digest) const { return digest.a; }
};

Digest digest(const std::vector<uint8_t>& bytes) {
  Digest out{0x9e3779b97f4a7c15, 0xc2b2ae3d27d4eb4f};
  const auto mix = [](uint64_t x, uint64_t factor) {
    x *= factor;
    return x ^ x >> 29;
  };
  for (size_t i = 0; i < bytes.size(); i += 8) {
    uint64_t word = 0;
    std::memcpy(&word, bytes.data() + i, std::min<size_t>(8, bytes.size() - i));
    out.a = mix(out.a ^ word, 0xff51afd7ed558ccd);
    out.b = mix(out.b + word, 0xc4ceb9fe1a85ec53) ^ out.a >> 7;
  }
  return out;
}

class Explorer {
 public:
  Explorer(Program& program, Shortcuts shortcuts, uint64_t limit)
      : steps_(program, shortcuts), shortcuts_(shortcuts), limit_(limit), program_(program) {}

  Report run() {
    State state{Memory(program_), {}, {}, {}};
    for (size_t i = 0; i < program_.threads.size(); ++i) state.at.push_back(steps_.first(i));
    bool good = true;
    for (size_t i = 0; i < state.at.size() && good; ++i) good = settle(state, i);
    if (good) enter(state);
    if (!report_.violation.empty())
      for (const Taken& taken : path_) report_.trace.push_back(label(taken));
    report_.states = seen_.size();
    return report_;
  }

 private:
  // All return false once there is a violation.
  bool enter(State& state) {
    state.memory.forget();
    if (!seen_.insert(describe(state)).second) return true;
    if (seen_.size() > limit_) throw std::length_error("too many states");
    size_t alive = 0;
    std::vector<size_t> able;
    for (size_t thread = 0; thread < state.at.size(); ++thread) {
      const Op& op = state.at[thread]->op;
      alive += op.kind != OpKind::kEnd;
      if (op.kind == OpKind::kEnd || state.asleep[thread]) continue;
      if (op.kind == OpKind::kWait && !state.bells[op.target]) continue;
      able.push_back(thread);
    }
    if (alive != 0 && able.empty()) return violation("threads wait for ever");
    if (shortcuts_ == Shortcuts::kTaken)
      for (const size_t thread : able)
        if (loses_nothing_by_going_first(state, thread, alive)) return outcomes(state, thread);
    for (const size_t thread : able)
      if (!outcomes(state, thread)) return false;
    return true;
  }

  // Steps for which it is enough to look at what follows when they come at once. A store takes no
  // choice from others: they may still read what was there before, and put their own stores before
  // it. So with a bell that is rung while it is silent, unless a third thread might ring it too.
  bool loses_nothing_by_going_first(const State& state, size_t thread, size_t alive) const {
    const Op& op = state.at[thread]->op;
    return op.kind == OpKind::kStore || op.kind == OpKind::kChoose ||
           (op.kind == OpKind::kRing && !state.bells[op.target] && alive <= 2);
  }

  bool outcomes(const State& state, size_t thread) {
    const Op& op = state.at[thread]->op;
    const Memory& memory = state.memory;
    switch (op.kind) {
      case OpKind::kLoad:
        for (size_t i = memory.first_readable(thread, op.target); i < memory.stores(op.target); ++i)
          if (!take(state, thread, [&](State& next) { return next.memory.load(thread, op, i); }))
            return false;
        return true;
      case OpKind::kStore:
        for (size_t i = memory.first_readable(thread, op.target) + 1; i <= memory.stores(op.target);
             ++i) {
          if (!memory.insertable(op.target, i)) continue;
          if (!take(state, thread, [&](State& next) {
                next.memory.store(thread, op, i);
                return uint64_t{0};
              }))
            return false;
        }
        return true;
      case OpKind::kExchange:
      case OpKind::kFetchAdd:
        for (size_t i = memory.first_readable(thread, op.target); i < memory.stores(op.target);
             ++i) {
          if (!memory.insertable(op.target, i + 1)) continue;
          if (!take(state, thread, [&](State& next) { return next.memory.update(thread, op, i); }))
            return false;
        }
        return true;
      case OpKind::kChoose:
        for (uint64_t i = 0; i < op.value; ++i)
          if (!take(state, thread, [i](State&) { return i; })) return false;
        return true;
      case OpKind::kFutexWait:
        return futex_wait(state, thread);
      default:
        return take(state, thread, [&](State& next) {
          if (op.kind == OpKind::kWait) hear(next, thread, op.target);
          if (op.kind == OpKind::kRing) ring(next, thread, op.target);
          if (op.kind == OpKind::kFence) next.memory.fence(thread);
          if (op.kind == OpKind::kFutexWake) futex_wake(next, thread, op.target);
          return uint64_t{0};
        });
    }
  }

  static void hear(State& next, size_t thread, size_t bell) {
    next.bells[bell] = false;
    if (bell >= kEventfds) next.memory.wait(thread, bell);
  }

  static void ring(State& next, size_t thread, size_t bell) {
    next.bells[bell] = true;
    if (bell >= kEventfds) next.memory.ring(thread, bell);
  }

  bool futex_wait(const State& state, size_t thread) {
    const Op& op = state.at[thread]->op;
    State inside = state;
    inside.memory.enter_kernel(thread);
    for (size_t i = inside.memory.first_readable(thread, op.target);
         i < inside.memory.stores(op.target); ++i) {
      if (inside.memory.value(op.target, i) != op.value) {
        if (!take(inside, thread, [&](State& next) {
              next.memory.load(thread, op, i);
              return uint64_t{0};
            }))
          return false;
        continue;
      }
      State next = inside;
      next.memory.load(thread, op, i);
      next.asleep[thread] = true;
      path_.push_back({thread, op, 0});
      if (!enter(next)) return false;
      path_.pop_back();
    }
    return true;
  }

  void futex_wake(State& next, size_t thread, uint8_t location) {
    next.memory.enter_kernel(thread);
    for (size_t other = 0; other < next.at.size(); ++other) {
      if (!next.asleep[other] || next.at[other]->op.target != location) continue;
      next.asleep[other] = false;
      next.at[other] = steps_.next(next.at[other], 0);
      woken_.push_back(other);
    }
  }

  // Runs `effect` on a copy of `state`, hands its result to the thread, and goes on from there.
  template <class Effect>
  bool take(const State& state, size_t thread, Effect&& effect) {
    State next = state;
    const Step* const step = state.at[thread];
    woken_ = {thread};
    const uint64_t result = effect(next);
    path_.push_back({thread, step->op, result});
    next.at[thread] = steps_.next(step, result);
    for (const size_t other : std::exchange(woken_, {}))
      if (!settle(next, other)) return false;
    if (!enter(next)) return false;
    path_.pop_back();
    return true;
  }

  // Lets a thread do what no other thread can see the time of.
  bool settle(State& state, size_t thread) {
    for (;;) {
      const Step* const step = state.at[thread];
      const Op& op = step->op;
      uint64_t result = 0;
      switch (op.kind) {
        case OpKind::kPlainRead:
          if (!state.memory.plain_read(thread, op.target, result)) return race(thread, op);
          break;
        case OpKind::kPlainWrite:
          if (!state.memory.plain_write(thread, op.target, static_cast<uint8_t>(op.value)))
            return race(thread, op);
          break;
        case OpKind::kLoad:
        case OpKind::kStore:
          if (shortcuts_ != Shortcuts::kTaken || !program_.is_private(thread, op.target))
            return true;
          if (op.kind == OpKind::kStore) {
            state.memory.store(thread, op, state.memory.stores(op.target));
          } else {
            result = state.memory.load(thread, op, state.memory.stores(op.target) - 1);
          }
          break;
        case OpKind::kFail:
          return violation(op.text);
        case OpKind::kEnd:
          state.memory.thread_ended(thread);
          return true;
        default:
          return true;
      }
      state.at[thread] = steps_.next(step, result);
    }
  }

  bool race(size_t thread, const Op& op) {
    return violation("data race: thread " + std::to_string(thread) + " on plain byte " +
                     std::to_string(op.target));
  }

  bool violation(std::string what) {
    report_.violation = std::move(what);
    return false;
  }

  struct Taken {
    size_t thread;
    Op op;
    uint64_t result;
  };

  static std::string label(const Taken& taken) {
    static constexpr const char* kNames[] = {"load",  "store", "exchange",   "fetch_add",
                                             "fence", "read",  "write",      "choose",
                                             "wait",  "ring",  "futex_wait", "futex_wake"};
    std::ostringstream text;
    text << "thread " << taken.thread << ": " << kNames[static_cast<size_t>(taken.op.kind)] << " @"
         << static_cast<unsigned>(taken.op.target) << " (" << taken.op.value << ") -> "
         << taken.result;
    return text.str();
  }

  Digest describe(const State& state) {
    bytes_.clear();
    for (const Step* step : state.at)
      for (int shift = 0; shift < 32; shift += 8)
        bytes_.push_back(static_cast<uint8_t>(step->id >> shift));
    bytes_.insert(bytes_.end(), state.bells.begin(), state.bells.end());
    bytes_.insert(bytes_.end(), state.asleep.begin(), state.asleep.end());
    state.memory.describe(bytes_);
    return digest(bytes_);
  }

  Steps steps_;
  const Shortcuts shortcuts_;
  const uint64_t limit_;
  Program& program_;
  std::unordered_set<Digest, DigestHash> seen_;
  std::vector<uint8_t> bytes_;
  std::vector<size_t> woken_;
  std::vector<Taken> path_;
  Report report_;
};

}  // namespace

Report explore(Program& program, Shortcuts shortcuts, uint64_t limit) {
  return Explorer(program, shortcuts, limit).run();
}

}  // namespace tw::model

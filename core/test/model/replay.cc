// SPDX-License-Identifier: Apache-2.0
#include "test/model/replay.h"

#include <algorithm>
#include <stdexcept>

#include "test/model/memory.h"

namespace tw::model {
namespace {

// Thrown out of a thread at the first operation whose result is not known yet.
struct Pause {
  Op op;
};

struct Run {
  Program& program;
  uint64_t owner;  // who declares: 0 the program, 1 + i thread i, kSharedOwner + k a Shared
  const std::vector<uint64_t>* results = nullptr;
  size_t at = 0;
  std::map<uint64_t, uint64_t> declared = {};  // by owner
  std::vector<uint64_t> locals = {};           // at the checkpoint passed last, and where that was
  size_t locals_at = ~size_t{0};
};
constexpr uint64_t kSharedOwner = 1000;
constexpr unsigned kNotShared = ~0U;

thread_local Run* t_run = nullptr;
thread_local unsigned t_shared = kNotShared;

Run& run() {
  if (!t_run) throw std::logic_error("model types live inside programs only");
  return *t_run;
}

class Running {
 public:
  explicit Running(Run& now) { t_run = &now; }
  ~Running() { t_run = nullptr; }
  Running(const Running&) = delete;
  Running& operator=(const Running&) = delete;
};

}  // namespace

uint64_t perform(const Op& op) {
  Run& now = run();
  if (!now.results) throw std::logic_error("set-up declares, it does not run");
  if (now.at == now.results->size()) throw Pause{op};
  return (*now.results)[now.at++];
}

void checkpoint(std::initializer_list<uint64_t> locals) {
  Run& now = run();
  now.locals = locals;
  now.locals_at = now.at;
}

uint8_t declare_atomic(uint64_t initial) {
  Run& now = run();
  Program& program = now.program;
  const auto fresh = [&] {
    if (program.atomics.size() == kAtomics) throw std::length_error("too many atomics");
    program.atomics.push_back(initial);
    return static_cast<uint8_t>(program.atomics.size() - 1);
  };
  const uint64_t owner = t_shared != kNotShared ? kSharedOwner + t_shared : now.owner;
  if (owner == 0) return fresh();
  const uint64_t key = owner << 32 | now.declared[owner]++;
  auto& known = program.declared_in_threads;
  const auto found =
      std::find_if(known.begin(), known.end(), [key](const auto& k) { return k.first == key; });
  if (found != known.end()) return found->second;
  if (now.at != 0 || !now.results->empty())
    throw std::logic_error("threads declare before their first operation");
  known.emplace_back(key, fresh());
  return known.back().second;
}

uint8_t declare_plain(uint8_t initial) {
  Program& program = run().program;
  if (run().owner != 0) throw std::logic_error("plain bytes are declared in the set-up");
  if (program.plains.size() == kPlains) throw std::length_error("too many plain bytes");
  program.plains.push_back(initial);
  return static_cast<uint8_t>(program.plains.size() - 1);
}

Shared::Shared(unsigned key) : outer_(t_shared) { t_shared = key; }
Shared::~Shared() { t_shared = outer_; }

Program::Program(const std::function<void(Program&)>& setup) {
  Run declaring{*this, 0};
  const Running running(declaring);
  setup(*this);
  if (threads.size() > kThreads) throw std::length_error("too many threads");
}

bool Program::is_private(size_t thread, uint8_t location) const {
  for (const auto& [key, declared] : declared_in_threads)
    if (declared == location) return key >> 32 == 1 + thread;
  return false;
}

Steps::Steps(Program& program, Shortcuts shortcuts) : program_(program), shortcuts_(shortcuts) {
  for (size_t i = 0; i < program.threads.size(); ++i) first_.push_back(add(i, nullptr, 0));
}

const Step* Steps::next(const Step* step, uint64_t result) {
  const auto found = step->after.find(result);
  return found != step->after.end() ? found->second : add(step->thread, step, result);
}

const Step* Steps::add(size_t thread, const Step* before, uint64_t result) {
  std::vector<uint64_t> results;
  if (before) {
    results.push_back(result);
    for (const Step* step = before; step->before; step = step->before)
      results.push_back(step->result);
    std::reverse(results.begin(), results.end());
  }
  Op op;
  Run again{program_, 1 + thread, &results};
  {
    const Running running(again);
    try {
      program_.threads[thread]();
    } catch (const Pause& pause) {
      op = pause.op;
    }
  }
  const Step** joined = nullptr;
  if (shortcuts_ == Shortcuts::kTaken && again.locals_at == results.size()) {
    joined = &checkpoints_[{thread, again.locals}];
    if (*joined) {
      const_cast<Step*>(before)->after.emplace(result, *joined);
      return *joined;
    }
  }
  all_.push_back({op, thread, static_cast<uint32_t>(all_.size()), before, result, {}});
  Step* const added = &all_.back();
  if (joined) *joined = added;
  if (before) const_cast<Step*>(before)->after.emplace(result, added);
  return added;
}

}  // namespace tw::model

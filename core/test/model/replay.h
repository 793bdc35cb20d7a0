// SPDX-License-Identifier: Apache-2.0
// Running the threads of a program one step at a time, by running them again from the beginning.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <utility>
#include <vector>

#include "test/model/model.h"

namespace tw::model {

// A thread after the results that lead here: what it does next.
struct Step {
  Op op;
  size_t thread = 0;
  uint32_t id = 0;
  const Step* before = nullptr;
  uint64_t result = 0;  // of `before`
  std::map<uint64_t, const Step*> after;
};

// The steps of all threads, found as they are needed. A thread's next step depends on the results
// of those before and on nothing else, so each is found once.
class Steps {
 public:
  Steps(Program& program, Shortcuts shortcuts);

  const Step* first(size_t thread) const { return first_[thread]; }
  const Step* next(const Step* step, uint64_t result);

 private:
  const Step* add(size_t thread, const Step* before, uint64_t result);

  Program& program_;
  const Shortcuts shortcuts_;
  std::deque<Step> all_;
  std::map<std::pair<size_t, std::vector<uint64_t>>, const Step*> checkpoints_;
  std::vector<const Step*> first_;
};

}  // namespace tw::model

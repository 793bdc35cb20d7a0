// SPDX-License-Identifier: Apache-2.0
// Operations in the order in which they were begun, by a thread that starts with the first that its
// caller does not run, and ends once there was none for a while.
#pragma once

#include <sys/types.h>

#include <functional>
#include <memory>
#include <thread>

namespace tensorwire {

class Lane {
 public:
  using Job = std::function<void()>;

  Lane();
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;
  ~Lane();  // as join()

  // Whether the caller may run an operation itself: nothing is under way. Then end() has to follow.
  bool begin();
  void end();
  // Runs it after those before it. What a job itself pushes, as callbacks of futures do, runs at
  // once, within that job: the callback may wait for it, and so its place is the same on all ranks.
  // False: the lane is closed, and the job was not taken.
  bool push(Job job);

  // No job is taken from now on. True: none is under way.
  bool close();
  // Waits for what has been begun, after close(); not in a child that was forked, which lacks the
  // thread, and not on the thread itself.
  void join();

 private:
  struct State;
  static void run(const std::shared_ptr<State>& state);

  const std::shared_ptr<State> state_;
};

}  // namespace tensorwire

// SPDX-License-Identifier: Apache-2.0
// Signals belong to the threads of the user's program: threads of the runtime start with all of
// them blocked.
#pragma once

#include <pthread.h>
#include <signal.h>

namespace tw {

// Blocks all signals of the calling thread for as long as this lives, also where what it starts
// meanwhile cannot be had.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_;
};

}  // namespace tw

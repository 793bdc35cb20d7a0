// SPDX-License-Identifier: Apache-2.0
// Threads of the plugin. They block all signals, which are the application's, and mostly live as
// long as the process, as the threads of TensorFlow's servers do: nothing they touch is destroyed.
#pragma once

#include <pthread.h>
#include <signal.h>

#include <thread>
#include <utility>

namespace tensorwire {

// Blocks them in the calling thread for as long as it lives, also where no thread is to be had.
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

template <class Body>
std::thread start_thread(const char* name, Body&& body) {
  const SignalsBlocked blocked;
  std::thread thread(std::forward<Body>(body));
  pthread_setname_np(thread.native_handle(), name);
  return thread;
}

}  // namespace tensorwire

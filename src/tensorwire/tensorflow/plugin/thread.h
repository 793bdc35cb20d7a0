// SPDX-License-Identifier: Apache-2.0
// Threads of the plugin. They block all signals, which are the application's, and mostly live as
// long as the process, as the threads of TensorFlow's servers do: nothing they touch is destroyed.
#pragma once

#include <pthread.h>
#include <signal.h>

#include <system_error>
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

// One that is not joinable: the host or the container has no more threads, and `body` is gone.
template <class Body>
std::thread start_thread(const char* name, Body&& body) {
  const SignalsBlocked blocked;
  try {
    std::thread thread(std::forward<Body>(body));
    pthread_setname_np(thread.native_handle(), name);
    return thread;
  } catch (const std::system_error&) {
    return {};
  }
}

// False: the same.
template <class Body>
bool start_detached(const char* name, Body&& body) {
  std::thread thread = start_thread(name, std::forward<Body>(body));
  if (!thread.joinable()) return false;
  thread.detach();
  return true;
}

}  // namespace tensorwire

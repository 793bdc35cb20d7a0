// Threads of the plugin. They block all signals, which are the application's, and mostly live as
// long as the process, as the threads of TensorFlow's servers do: nothing they touch is destroyed.
#pragma once

#include <pthread.h>
#include <signal.h>

#include <thread>
#include <utility>

namespace tensorwire {

template <class Body>
std::thread start_thread(const char* name, Body&& body) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread thread(std::forward<Body>(body));
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  pthread_setname_np(thread.native_handle(), name);
  return thread;
}

}  // namespace tensorwire

// SPDX-License-Identifier: Apache-2.0
// The thread behind a Poller: what it does to the signals of the thread that starts it.
#include "engine/background.h"

#include <doctest/doctest.h>
#include <pthread.h>
#include <signal.h>

namespace tw::test {
namespace {

// While this lives, the system has no stack for a new thread.
class NoThreads {
 public:
  NoThreads() {
    pthread_attr_t attributes;
    REQUIRE(pthread_getattr_default_np(&attributes) == 0);
    REQUIRE(pthread_attr_getstacksize(&attributes, &before_) == 0);
    set(size_t{1} << 47);
    pthread_attr_destroy(&attributes);
  }
  ~NoThreads() { set(before_); }

 private:
  static void set(size_t stack) {
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    REQUIRE(pthread_attr_setstacksize(&attributes, stack) == 0);
    REQUIRE(pthread_setattr_default_np(&attributes) == 0);
    pthread_attr_destroy(&attributes);
  }
  size_t before_ = 0;
};

bool blocked(int signal) {
  sigset_t now;
  REQUIRE(pthread_sigmask(SIG_SETMASK, nullptr, &now) == 0);
  return sigismember(&now, signal) == 1;
}

}  // namespace

TEST_CASE("background: signals stay as they were, whether or not the thread starts") {
  {
    const NoThreads none;
    const auto failed = Background::start("test");
    REQUIRE_FALSE(failed.ok());
    CHECK(failed.status().code() == Code::kResourceExhausted);
    CHECK(failed.status().details().find("the thread test") != std::string::npos);
  }
  CHECK_FALSE(blocked(SIGINT));
  const auto started = Background::start("test");
  REQUIRE(started.ok());
  CHECK_FALSE(blocked(SIGINT));
}

}  // namespace tw::test

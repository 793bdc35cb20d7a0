// SPDX-License-Identifier: Apache-2.0
// A second process for tests: this binary again, which runs one hidden case in a role. It can be
// killed, unlike a thread.
#pragma once

#include <doctest/doctest.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <vector>

#include "base/fd.h"

namespace tw::test {

// Where a helper finds its ends of the pipes.
inline constexpr int kFromTest = 3, kToTest = 4;

inline bool read_all(int fd, void* out, size_t size) {
  for (size_t done = 0; done < size;) {
    const ssize_t n = ::read(fd, static_cast<char*>(out) + done, size - done);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    done += static_cast<size_t>(n);
  }
  return true;
}

template <class T>
T read_thing(int fd) {
  T thing{};
  REQUIRE(read_all(fd, &thing, sizeof thing));
  return thing;
}

template <class T>
void write_thing(int fd, const T& thing) {
  REQUIRE(::write(fd, &thing, sizeof thing) == static_cast<ssize_t>(sizeof thing));
}

class Helper {
 public:
  // `setting`, if any, is a variable more in its environment.
  explicit Helper(const char* role, const char* setting = nullptr) {
    int up[2], down[2];
    REQUIRE(pipe2(up, O_CLOEXEC) == 0);
    REQUIRE(pipe2(down, O_CLOEXEC) == 0);
    from_helper_.reset(up[0]);
    to_helper_.reset(down[1]);
    const Fd theirs_out(up[1]), theirs_in(down[0]);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    // Not straight to 3 and 4, which may be the other's number.
    posix_spawn_file_actions_adddup2(&actions, theirs_in.get(), 100);
    posix_spawn_file_actions_adddup2(&actions, theirs_out.get(), 101);
    posix_spawn_file_actions_adddup2(&actions, 100, kFromTest);
    posix_spawn_file_actions_adddup2(&actions, 101, kToTest);
    posix_spawn_file_actions_addclose(&actions, 100);
    posix_spawn_file_actions_addclose(&actions, 101);
    std::string name = "-tc=helper: " + std::string(role);
    char program[] = "/proc/self/exe", no_skip[] = "--no-skip", minimal[] = "-m";
    char* const arguments[] = {program, no_skip, minimal, name.data(), nullptr};
    std::vector<char*> environment;
    if (setting) environment.push_back(const_cast<char*>(setting));
    for (char** entry = environ; *entry; ++entry) environment.push_back(*entry);
    environment.push_back(nullptr);
    REQUIRE(posix_spawn(&pid_, program, &actions, nullptr, arguments, environment.data()) == 0);
    posix_spawn_file_actions_destroy(&actions);
  }
  ~Helper() {
    kill();
    to_helper_.reset();
    // What it has forked holds the other end until it has heard that this one is closed.
    char last;
    while (::read(from_helper_.get(), &last, 1) > 0) {
    }
  }

  template <class T>
  void tell(const T& thing) {
    write_thing(to_helper_.get(), thing);
  }
  template <class T>
  T hear() {
    return read_thing<T>(from_helper_.get());
  }

  pid_t pid() const { return pid_; }
  void stop() { REQUIRE(::kill(pid_, SIGSTOP) == 0); }
  void go_on() { REQUIRE(::kill(pid_, SIGCONT) == 0); }
  void kill() {
    if (pid_ == 0) return;
    ::kill(pid_, SIGKILL);
    int status;
    REQUIRE(waitpid(pid_, &status, 0) == pid_);
    pid_ = 0;
  }

 private:
  pid_t pid_ = 0;
  Fd from_helper_, to_helper_;
};

}  // namespace tw::test

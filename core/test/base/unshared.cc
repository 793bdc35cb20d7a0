// SPDX-License-Identifier: Apache-2.0
// Descriptors that forked children do not hold open.
#include "base/unshared.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "test/base/child.h"

namespace tw {
namespace {

std::pair<Fd, Fd> pair_of_sockets() {
  int ends[2];
  REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
  return {Fd(ends[0]), Fd(ends[1])};
}

// Whether the other end has been closed. Nothing is ever sent here.
bool ended(const Fd& end) {
  char byte;
  return recv(end.get(), &byte, 1, MSG_DONTWAIT) == 0;
}

// What a child answers to a question, by its exit status.
template <class Question>
bool in_a_child(Question&& question) {
  const pid_t pid = fork();
  REQUIRE(pid >= 0);
  if (pid == 0) _exit(question() ? 0 : 1);
  int status = -1;
  REQUIRE(waitpid(pid, &status, 0) == pid);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

TEST_CASE("unshared: the other end sees this process's end, whatever its children hold") {
  auto [here, there] = pair_of_sockets();
  UnsharedFd mine(std::move(here));
  UnsharedFd moved(std::move(mine));
  const test::Child child;
  CHECK_FALSE(ended(there));
  moved.reset();
  pollfd end{there.get(), POLLIN, 0};
  CHECK(poll(&end, 1, 30'000) == 1);  // once the child has let go of it, too
  CHECK(ended(there));
}

TEST_CASE("unshared: in a child the number stays taken, and what it makes of it is its own") {
  auto [here, there] = pair_of_sockets();
  const UnsharedFd mine(std::move(here));
  CHECK(in_a_child([&, number = mine.get()] {
    char byte = 0;
    // No socket any more, and no other descriptor comes to its number.
    if (send(number, &byte, 1, MSG_NOSIGNAL) != -1 || errno != ENOTSOCK) return false;
    return fcntl(number, F_GETFD) == FD_CLOEXEC;
  }));
  CHECK(send(mine.get(), "x", 1, MSG_NOSIGNAL) == 1);
}

TEST_CASE("unshared: what has been closed is no concern of children") {
  auto [here, there] = pair_of_sockets();
  const int number = here.get();
  UnsharedFd mine(std::move(here));
  mine.reset();
  const Fd later(fcntl(there.get(), F_DUPFD_CLOEXEC, number));
  REQUIRE(later.get() == number);
  CHECK(in_a_child([&] {
    char byte = 0;
    return send(number, &byte, 1, MSG_NOSIGNAL) == -1 && errno == EPIPE;
  }));
}

}  // namespace
}  // namespace tw

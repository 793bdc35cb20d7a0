// SPDX-License-Identifier: Apache-2.0
// Links over shared memory on a kernel that does not say which process is at a socket's other end:
// the two tell each other, and notice each other's death all the same.
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include <cerrno>
#include <cstddef>

#include "test/call/abroad.h"
#include "test/not_tried.h"

namespace tw::test {
namespace {

// From now on this process and its children have a kernel without SO_PEERPIDFD (77). False: seccomp
// is forbidden here.
bool without_peer_pidfds() {
  constexpr auto kNumber = static_cast<uint32_t>(offsetof(seccomp_data, nr));
  // The lower half of the third argument.
  constexpr auto kOption = static_cast<uint32_t>(offsetof(seccomp_data, args[2]));
  sock_filter rules[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, kNumber),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_getsockopt, 0, 3),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, kOption),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 77, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOPROTOOPT),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program{static_cast<unsigned short>(std::size(rules)), rules};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

// What does not hold here ends the helper before it says so.
TEST_CASE("helper: client on an old kernel" * doctest::skip()) {
  const bool possible = without_peer_pidfds();
  write_thing(kToTest, possible);
  if (!possible) return;
  {
    Abroad<ShmWay> abroad;
    REQUIRE(abroad.link->link().peer().pidfd);
    const auto bytes = bytes_of(300'000);
    const Reply reply = unary(*abroad.link, "/t/Echo", {out(bytes)});
    REQUIRE(reply.code == Code::kOk);
    REQUIRE(same(reply.segments.at(0), bytes));
    // Its child holds the socket.
    REQUIRE(unary(*abroad.link, "/t/Fork", {}).code == Code::kOk);
    const auto hanging = start(*abroad.link, "/t/Hang");
    abroad.helper.kill();
    REQUIRE(hanging->wait_ended(patience()) == Waited::kDone);
    REQUIRE(hanging->outcome().code == Code::kUnavailable);
    REQUIRE(hanging->outcome().details.find("has died") != std::string::npos);
  }
  write_thing(kToTest, true);
}

// Leaves a child that holds the socket.
TEST_CASE("helper: client that forks" * doctest::skip()) {
  const auto link = follow(read_thing<Invite>(kFromTest));
  fork_a_holder();
  write_thing(kToTest, static_cast<bool>(link->link().peer().pidfd));
  char byte;
  (void)read(kFromTest, &byte, 1);  // until it is killed
}

TEST_CASE("helper: server on an old kernel" * doctest::skip()) {
  const bool possible = without_peer_pidfds();
  write_thing(kToTest, possible);
  if (!possible) return;
  {
    House house(echo);
    Helper client("client that forks");
    client.tell(invite(house.invitation("shm")));
    REQUIRE(client.hear<bool>());
    REQUIRE(eventually([&] { return ports_of(house.server()).size() == 1; }));
    client.kill();
    REQUIRE(eventually([&] { return ports_of(house.server()).empty(); }));
  }
  write_thing(kToTest, true);
}

TEST_CASE("old kernel: a killed server is noticed, though its children hold its sockets") {
  Helper helper("client on an old kernel");
  const bool possible = helper.hear<bool>();
  if (!possible) return not_tried("seccomp filters are forbidden here");
  CHECK(helper.hear<bool>());
}

TEST_CASE("old kernel: a killed client is noticed, though its children hold its sockets") {
  Helper helper("server on an old kernel");
  const bool possible = helper.hear<bool>();
  if (!possible) return not_tried("seccomp filters are forbidden here");
  CHECK(helper.hear<bool>());
}

}  // namespace
}  // namespace tw::test

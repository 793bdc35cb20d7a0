// SPDX-License-Identifier: Apache-2.0
// Which links a large group has, and how it hears of what its ranks have no links with.
#include <arpa/inet.h>
#include <doctest/doctest.h>
#include <sys/socket.h>

#include <atomic>
#include <barrier>
#include <filesystem>
#include <thread>

#include "base/fd.h"
#include "collective/join.h"
#include "test/call/world.h"
#include "test/collective/operations.h"
#include "test/collective/ranks.h"

namespace tw::test {
namespace {

constexpr int kRanks = 16;
constexpr Placement kOverTcp{"messages", "tcp", 0};

size_t links_at_join(int rank) {
  size_t links = 0;
  for (int other = 0; other < kRanks; ++other)
    links += collective::meet_in_store(rank, other, kRanks);
  return links;
}

std::string barrier(Group& group) {
  return group.run({CollectiveKind::kBarrier}, nullptr, nullptr, within(kLong)).details();
}

// A rank that `rank` has no link with after it has joined.
int stranger_to(int rank, int size) {
  for (int other = size - 1; other > 0; --other)
    if (other != rank && !collective::meet_in_store(rank, other, size)) return other;
  return -1;
}

TEST_CASE("links: a large group makes those that an operation needs") {
  std::atomic<size_t> fewest{kRanks};
  as_ranks_of(kOverTcp, kRanks, [&](Group& group) -> std::string {
    if (group.members().links() != links_at_join(group.rank())) return "after it has joined";
    if (std::string why = barrier(group); !why.empty()) return why;
    auto data = array_of<double>(group.rank(), 1000);
    const CollectiveCall sum{CollectiveKind::kAllReduce, DataType::kFloat64, ReduceOp::kSum, 0,
                             data.size()};
    Status status = group.run(sum, bytes(data), bytes(data), within(kLong));
    if (!status.ok()) return status.details();
    if (data != sum_of<double>(kRanks, data.size())) return "another sum";
    for (size_t seen = fewest, links = group.members().links();
         links < seen && !fewest.compare_exchange_weak(seen, links);) {
    }
    std::vector<int64_t> in(kRanks), out(kRanks);
    std::vector<Fabric::Run> runs;
    for (size_t i = 0; i < kRanks; ++i) {
      in[i] = group.rank() * 100 + static_cast<int>(i);
      runs.push_back({i * 8, 8});
    }
    const CollectiveCall all{CollectiveKind::kAllToAll, DataType::kInt64, ReduceOp::kSum, 0,
                             CollectiveCall::kUneven};
    status = group.exchange(all, bytes(in), runs, bytes(out), runs, within(kLong));
    if (!status.ok()) return status.details();
    for (int i = 0; i < kRanks; ++i)
      if (out[static_cast<size_t>(i)] != i * 100 + group.rank()) return "another's share";
    return group.members().links() == kRanks - 1 ? "" : "after an all-to-all";
  });
  CHECK(fewest < kRanks - 1);
}

TEST_CASE("links: ranks that share memory have all of them") {
  as_ranks_of(kPlacements[0], 10, [](Group& group) -> std::string {
    if (group.fabric() != std::string("shared memory")) return group.fabric();
    return group.members().links() == 9 ? barrier(group) : "some";
  });
}

TEST_CASE("links: two ranks that begin at once come to use one, and no message is lost") {
  for (int round = 0; round < 20; ++round) {
    std::barrier<> start(2);
    as_ranks_of(kOverTcp, 9, [&](Group& group) -> std::string {
      const int other = 9 - group.rank();  // 3 and 6 have no link
      if (group.rank() == 3 || group.rank() == 6) {
        if (group.members().linked(other)) return "there is a link";
        start.arrive_and_wait();
        for (int64_t i = 0; i < 10; ++i) {
          const int64_t mine = i * 10 + group.rank();
          int64_t theirs = 0;
          Status status = group.send(other, 7, std::as_bytes(std::span(&mine, 1)), within(kLong));
          if (status.ok())
            status = group.receive(other, 7, std::as_writable_bytes(std::span(&theirs, 1)),
                                   within(kLong));
          if (!status.ok()) return status.details();
          if (theirs != i * 10 + other) return "another message";
        }
      }
      return barrier(group);
    });
  }
}

TEST_CASE("links: a rank that computes keeps nobody from sending to it") {
  std::barrier<> sent(2);
  as_ranks_of(kOverTcp, 9, [&](Group& group) -> std::string {
    int64_t value = 42;
    Status status;
    if (group.rank() == 3) {
      status = group.send(6, 1, std::as_bytes(std::span(&value, 1)), within(kLong));
      sent.arrive_and_wait();
    } else if (group.rank() == 6) {
      sent.arrive_and_wait();  // it looks only then
      value = 0;
      status = group.receive(3, 1, std::as_writable_bytes(std::span(&value, 1)), within(kLong));
      if (value != 42) return "another value";
    }
    return status.ok() ? barrier(group) : status.details();
  });
}

TEST_CASE("links: an abort wakes ranks that have no link with the one that gave up") {
  as_ranks_of(kOverTcp, 9, [](Group& group) -> std::string {
    if (group.rank() == 6) {
      group.abort("the user had enough");
      return {};
    }
    int64_t value = 0;
    const int from = group.rank() == 3 ? 5 : 3;  // who never sends
    const Status status =
        group.receive(from, 1, std::as_writable_bytes(std::span(&value, 1)), within(kLong));
    if (status.ok() || status.code() == Code::kDeadlineExceeded) return "it was not told";
    return status.details().find("the user had enough") != std::string::npos ? ""
                                                                             : status.details();
  });
}

TEST_CASE("links: who has left is known to ranks without a link, once one asks") {
  std::barrier<> asked(2);
  as_ranks_of(kOverTcp, 9, [&](Group& group) -> std::string {
    if (std::string why = barrier(group); !why.empty()) return why;
    if (group.rank() == 6) return {};  // it leaves
    if (group.rank() == 3) {
      while (!group.members().gone(6)) std::this_thread::yield();
      if (group.members().gone(5)) return "rank 5 is there";
      const Status why = group.members().standing(6);
      if (why.details() != "rank 6 (" + why.details().substr(8)) return why.details();
      asked.arrive_and_wait();
    } else if (group.rank() == 5) {
      asked.arrive_and_wait();
    }
    return group.members().standing().ok() ? "" : "it has ended the group";
  });
}

TEST_CASE("links: strangers at an entrance that stays open get nowhere, and disturb nobody") {
  as_ranks_of(kOverTcp, 9, [](Group& group) -> std::string {
    if (std::string why = barrier(group); !why.empty()) return why;
    if (group.rank() == 6) {
      // Rank 5's entrance is where this rank's link with it goes to.
      const std::string address = group.members().link(5).peer().address;
      sockaddr_in to{};
      to.sin_family = AF_INET;
      to.sin_port = htons(static_cast<uint16_t>(std::stoi(address.substr(address.rfind(':') + 1))));
      to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
      for (int i = 0; i < 50; ++i) {
        const Fd stranger(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
        if (::connect(stranger.get(), reinterpret_cast<sockaddr*>(&to), sizeof to) != 0)
          return "the entrance is shut";
        const std::vector<std::byte> noise(256, std::byte{0x5a});
        (void)::send(stranger.get(), noise.data(), noise.size(), MSG_NOSIGNAL);
      }
    }
    int64_t value = group.rank();
    Status status;
    if (const int other = stranger_to(5, 9); group.rank() == other)
      status = group.send(5, 1, std::as_bytes(std::span(&value, 1)), within(kLong));
    else if (group.rank() == 5)
      status = group.receive(other, 1, std::as_writable_bytes(std::span(&value, 1)), within(kLong));
    return status.ok() ? barrier(group) : status.details();
  });
}

// This rank's links are lost, as those of a process that has died are for the others. It may still
// tell some that it has lost others.
void die(Group& group) {
  for (int other = 0; other < group.size(); ++other)
    if (other != group.rank() && group.members().linked(other))
      group.members().link(other).surely([&] { group.members().link(other).lose_host(); });
}

// Of 12 ranks one dies, once all have joined; the others do the rest.
constexpr int kDead = 6;
template <class Rest>
void while_one_dies(Rest&& rest) {
  std::barrier<> joined(12);
  as_ranks_of(kOverTcp, 12, [&](Group& group) -> std::string {
    joined.arrive_and_wait();
    if (group.rank() != kDead) return rest(group);
    die(group);
    return {};
  });
}

Status receive_one(Group& group, int from) {
  int64_t value = 0;
  return group.receive(from, 1, std::as_writable_bytes(std::span(&value, 1)), within(kLong));
}

TEST_CASE("links: a rank that dies ends the waits of ranks that have no link with it") {
  while_one_dies([](Group& group) -> std::string {
    const Status status = receive_one(group, group.rank() == 3 ? 5 : 3);  // who never sends
    if (status.code() != Code::kUnavailable) return "it was not told: " + status.details();
    return status.details().find(" is gone: ") != std::string::npos ? "" : status.details();
  });
}

TEST_CASE("links: a rank that dies while others want links with it keeps none of them waiting") {
  for (int round = 0; round < 5; ++round)
    while_one_dies([](Group& group) -> std::string {
      const Status status = receive_one(group, kDead);
      return status.code() == Code::kUnavailable ? "" : "it was not told: " + status.details();
    });
}

TEST_CASE("links: operations of ranks that have few have their results") {
  for (const Placement& placement : {kOverTcp, Placement{"shared memory and messages", nullptr, 4}})
    as_ranks_of(placement, 12, [&](Group& group) -> std::string {
      if (group.fabric() != std::string(placement.fabric)) return group.fabric();
      if (std::string wrong = every_operation<float>(group, 1000); !wrong.empty()) return wrong;
      return every_pair(group, 100);
    });
  for (const std::string_view algorithm : wire::kAllReduceNames) {
    const Variable forced("TENSORWIRE_ALLREDUCE", std::string(algorithm).c_str());
    CAPTURE(algorithm);
    as_ranks_of(kOverTcp, 13, [](Group& group) -> std::string {
      auto data = array_of<double>(group.rank(), 1000);
      const CollectiveCall sum{CollectiveKind::kAllReduce, DataType::kFloat64, ReduceOp::kSum, 0,
                               data.size()};
      const Status status = group.run(sum, bytes(data), bytes(data), within(kLong));
      if (!status.ok()) return status.details();
      return data == sum_of<double>(13, data.size()) ? "" : "another sum";
    });
  }
}

TEST_CASE("links: processes have two large groups, and nothing of either when they have left") {
  const auto descriptors = [] {
    return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {});
  };
  (void)runtime().background();
  as_ranks_of(kOverTcp, 9, barrier);  // what the process keeps
  const auto before = descriptors();
  MemoryStore store;
  as_ranks_of(kOverTcp, 9, [&](Group& group) -> std::string {
    auto second = Group::make(store, {8 - group.rank(), 9, "127.0.0.1"}, within(kLong));
    if (!second) return second.status().details();
    for (int round = 0; round < 2; ++round) {
      if (std::string wrong = every_pair(group, 10); !wrong.empty()) return wrong;
      if (std::string wrong = every_pair(**second, 10); !wrong.empty()) return wrong;
    }
    *second = nullptr;
    return every_pair(group, 10);
  });
  CHECK(eventually([&] { return descriptors() <= before; }));
}

TEST_CASE("links: a message from any rank comes, whoever has a link") {
  as_ranks_of(kOverTcp, 9, [](Group& group) -> std::string {
    int64_t value = group.rank();
    const auto as_bytes = std::as_writable_bytes(std::span(&value, 1));
    if (group.rank() == 0)
      if (Status status = group.send(3, 2, as_bytes, within(kLong)); !status.ok())
        return status.details();
    if (group.rank() == 3) {
      const auto from = group.receive_any(2, as_bytes, within(kLong));
      if (!from) return from.status().details();
      if (group.members().linked(6)) return "it has made a link";  // where it waits for nobody
    }
    if (std::string why = barrier(group); !why.empty()) return why;
    if (group.rank() != 3) {
      const Status status = group.send(3, 1, as_bytes, within(kLong));
      return status.ok() ? barrier(group) : status.details();
    }
    int64_t all = 0;
    for (int i = 0; i < 8; ++i) {
      const auto from = group.receive_any(1, as_bytes, within(kLong));
      if (!from) return from.status().details();
      if (*from != value) return "another rank's";
      all += value;
    }
    return all == 33 ? barrier(group) : "a message came twice";
  });
}

TEST_CASE("links: who waits for a message from any rank is told when all have left") {
  as_ranks_of(kOverTcp, 9, [](Group& group) -> std::string {
    if (std::string why = barrier(group); !why.empty() || group.rank() != 3) return why;
    int64_t value = 0;
    const auto from =
        group.receive_any(1, std::as_writable_bytes(std::span(&value, 1)), within(kLong));
    return from ? "a message"
           : from.status().details() == "all other ranks have left the group"
               ? ""
               : from.status().details();
  });
}

}  // namespace
}  // namespace tw::test

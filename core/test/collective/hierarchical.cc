// SPDX-License-Identifier: Apache-2.0
// Operations in two levels, of ranks that are on hosts in any way.
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <bit>
#include <latch>
#include <map>
#include <semaphore>
#include <thread>

#include "collective/group.h"
#include "collective/reduction.h"
#include "test/collective/operations.h"

namespace tw::test {
namespace {

// By rank: which host it is on.
using Hosts = std::vector<int>;
using Run = Fabric::Run;
const Hosts kInARow{0, 0, 1, 1}, kInTurns{0, 1, 0, 1}, kUneven{0, 0, 1, 0}, kMixed{0, 1, 1, 2, 0},
    kThreeInTurns{0, 1, 2, 0, 1, 2, 0};

template <class Ranks>
void on(const Hosts& hosts, Ranks&& run) {
  as_ranks_placed(
      static_cast<int>(hosts.size()),
      [&](collective::Seat& seat) {
        seat.host_id = std::to_string(hosts[static_cast<size_t>(seat.rank)]);
      },
      run);
}

CollectiveCall floats(CollectiveKind kind, int root = 0, uint64_t count = 20,
                      ReduceOp op = ReduceOp::kSum) {
  return {kind, DataType::kFloat32, op, root, count};
}

// Rules by which shares go that way between so many hosts.
std::string rules_of(const char* way, int hosts) {
  std::string rules;
  for (const char* operation : {"all_gather", "reduce_scatter"})
    rules +=
        std::string(operation) + " shm " + std::to_string(hosts) + " 281474976710656 " + way + "\n";
  return rules;
}

std::string another_way(const Group& group, const std::string& way) {
  std::string wrong;
  group.tally().each([&](CollectiveKind kind, collective::Way went, uint64_t, uint64_t) {
    if ((kind == CollectiveKind::kAllGather || kind == CollectiveKind::kReduceScatter) &&
        way != collective::name_of(went))
      wrong = std::string(name_of(kind)) + " went " + collective::name_of(went);
  });
  return wrong;
}

TEST_CASE("hierarchical: operations have their results, whichever ranks share a host") {
  for (const Hosts& hosts : {kInARow, kInTurns, kUneven, kMixed, kThreeInTurns})
    for (const char* way : {"direct", "ring"}) {
      CAPTURE(hosts);
      CAPTURE(way);
      const Rules table(rules_of(way, 1 + *std::ranges::max_element(hosts)));
      const Variable tuning("TENSORWIRE_TUNING", table.path().c_str());
      on(hosts, [&](Group& group) -> std::string {
        if (!group.tuned()) return "not tuned: " + group.why_not_tuned();
        std::vector<size_t> counts{0, 1, 7, 1000, 70'003};
        // Some waves, of which the last one is smaller.
        if (hosts.size() == 4) counts.push_back(kSanitized ? 140'011 : 300'007);
        for (const size_t count : counts) {
          if (std::string wrong = every_operation<float>(group, count); !wrong.empty())
            return wrong;
          if (count > 1000) continue;
          if (std::string wrong = every_operation<uint8_t>(group, count); !wrong.empty())
            return wrong;
          if (std::string wrong = every_operation<int64_t>(group, count); !wrong.empty())
            return wrong;
        }
        return another_way(group, "two_levels");
      });
    }
}

TEST_CASE("hierarchical: averages and extremes, and arrays that are in place") {
  for (const Hosts& hosts : {kInTurns, kUneven, kMixed})
    for (const char* way : {"direct", "ring"})
      for (const size_t count : {5, 200'003}) {
        CAPTURE(hosts);
        CAPTURE(way);
        CAPTURE(count);
        const Rules table(rules_of(way, 1 + *std::ranges::max_element(hosts)));
        const Variable tuning("TENSORWIRE_TUNING", table.path().c_str());
        on(hosts, [&](Group& group) -> std::string {
          const auto self = static_cast<size_t>(group.rank()), ranks = hosts.size();
          const std::map<ReduceOp, int32_t> results = {
              {ReduceOp::kSum, static_cast<int32_t>(ranks * (ranks + 1) / 2)},
              {ReduceOp::kAverage, static_cast<int32_t>((ranks + 1) / 2)},
              {ReduceOp::kMin, 1},
              {ReduceOp::kMax, static_cast<int32_t>(ranks)}};
          for (const auto& [op, result] : results) {
            std::vector<int32_t> shares(ranks * count, group.rank() + 1);
            int32_t* const mine = shares.data() + self * count;
            const CollectiveCall scatter{CollectiveKind::kReduceScatter, DataType::kInt32, op, 0,
                                         count};
            Status status = group.run(scatter, bytes(shares), reinterpret_cast<std::byte*>(mine),
                                      within(kLong));
            if (!status.ok()) return status.details();
            for (size_t i = 0; i < count; ++i)
              if (mine[i] != result) return "wrong " + std::to_string(mine[i]);
            std::fill_n(mine, count, group.rank() + 1);
            const CollectiveCall gather{CollectiveKind::kAllGather, DataType::kInt32,
                                        ReduceOp::kSum, 0, count};
            status =
                group.run(gather, reinterpret_cast<std::byte*>(mine), bytes(shares), within(kLong));
            if (!status.ok()) return status.details();
            for (size_t i = 0; i < shares.size(); ++i)
              if (shares[i] != static_cast<int32_t>(i / count) + 1) return "another rank's share";
          }
          return {};
        });
      }
}

TEST_CASE("hierarchical: floats of 16 bits are rounded once, and go where they are fewer bytes") {
  for (const Hosts& hosts : {Hosts{0, 0, 0, 1, 1, 1}, kInARow, kThreeInTurns, Hosts{0, 1, 0, 0, 0}})
    for (const size_t count : {3, 150'001}) {
      CAPTURE(hosts);
      CAPTURE(count);
      on(hosts, [&](Group& group) -> std::string {
        // 256 + 1 is 256 in bfloat16, and 256 + 4 is not.
        std::vector<uint16_t> in(hosts.size() * count, group.rank() == 0 ? 0x4380 : 0x3f80);
        std::vector<uint16_t> out(count);
        const CollectiveCall call{CollectiveKind::kReduceScatter, DataType::kBfloat16,
                                  ReduceOp::kSum, 0, count};
        const Status status = group.run(call, bytes(in), bytes(out), within(kLong));
        if (!status.ok()) return status.details();
        const float whole = 256.0f + static_cast<float>(group.size() - 1);
        const auto bits = std::bit_cast<uint32_t>(whole);
        const auto rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
        for (const uint16_t half : out)
          if (half != rounded) return "wrong " + std::to_string(half);
        // Two ranks of a host send as many bytes as one that sends float32.
        return another_way(group, hosts == kInARow ? "direct" : "two_levels");
      });
    }
}

// Values that differ from place to place and from rank to rank; sums and averages of 8 ranks are
// exact in both types of 16 bits.
TEST_CASE("hierarchical: each share of floats of 16 bits comes to its place") {
  const size_t several_waves = kSanitized ? 70'001 : 140'003;
  for (const Hosts& hosts : {Hosts{0, 1, 0, 1, 0, 1, 0, 1}, Hosts{0, 0, 1, 1, 2, 2, 0, 1}})
    for (const char* way : {"direct", "ring"})
      for (const size_t count : {size_t{3}, several_waves}) {
        CAPTURE(hosts);
        CAPTURE(way);
        CAPTURE(count);
        const Rules table(rules_of(way, 1 + *std::ranges::max_element(hosts)));
        const Variable tuning("TENSORWIRE_TUNING", table.path().c_str());
        on(hosts, [&](Group& group) -> std::string {
          const auto value = [](size_t i, size_t rank) {
            return (i * 7 + i / 251 + rank * 13) % 31;
          };
          const size_t ranks = hosts.size(), self = static_cast<size_t>(group.rank());
          const auto of = [&](DataType type, auto&& each, size_t from, size_t size) {
            std::vector<float> wide(size);
            for (size_t i = 0; i < size; ++i) wide[i] = each(from + i);
            std::vector<uint16_t> halves(size);
            narrow(type, wide.data(), bytes(halves), size);
            return halves;
          };
          for (const DataType type : {DataType::kFloat16, DataType::kBfloat16})
            for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kAverage, ReduceOp::kMax}) {
              const auto result = [&](size_t i) {
                size_t sum = 0, most = 0;
                for (size_t rank = 0; rank < ranks; ++rank) {
                  sum += value(i, rank);
                  most = std::max(most, value(i, rank));
                }
                const auto whole = static_cast<float>(op == ReduceOp::kMax ? most : sum);
                return op == ReduceOp::kAverage ? whole / 8 : whole;
              };
              auto shares = of(
                  type, [&](size_t i) { return static_cast<float>(value(i, self)); }, 0,
                  ranks * count);
              const auto expected = of(type, result, self * count, count);
              const CollectiveCall call{CollectiveKind::kReduceScatter, type, op, 0, count};
              std::vector<uint16_t> out(count);
              Status status = group.run(call, bytes(shares), bytes(out), within(kLong));
              if (!status.ok()) return status.details();
              if (out != expected) return "wrong: " + call.text();
              uint16_t* const mine = shares.data() + self * count;
              status =
                  group.run(call, bytes(shares), reinterpret_cast<std::byte*>(mine), within(kLong));
              if (!status.ok()) return status.details();
              if (!std::equal(mine, mine + count, expected.begin()))
                return "wrong in place: " + call.text();
            }
          return another_way(group, "two_levels");
        });
      }
}

uint64_t sent_to(Group& group, int rank) {
  return group.members().linked(rank) ? group.members().link(rank).stats().sent.bytes : 0;
}

TEST_CASE("hierarchical: those that speak for hosts go by the rules of a table") {
  constexpr size_t kCount = 30'000, kBytes = kCount * sizeof(float);
  constexpr size_t kAnswers = 4000;  // bytes that tell a sender what has been taken
  struct Rule {
    CollectiveKind kind;
    const char* way;
  };
  for (const Hosts& hosts : {kMixed, kThreeInTurns})
    for (const Rule& rule : {Rule{CollectiveKind::kAllGather, "direct"},
                             {CollectiveKind::kAllGather, "ring"},
                             {CollectiveKind::kReduceScatter, "direct"},
                             {CollectiveKind::kReduceScatter, "ring"},
                             {CollectiveKind::kBroadcast, "tree"},
                             {CollectiveKind::kBroadcast, "scatter_all_gather"}}) {
      // Names that clang lets a lambda capture.
      const CollectiveKind kind = rule.kind;
      const char* const way = rule.way;
      CAPTURE(hosts);
      CAPTURE(name_of(kind));
      CAPTURE(way);
      const Rules table(std::string(name_of(kind)) + " shm 3 281474976710656 " + way + "\n");
      const Variable tuning("TENSORWIRE_TUNING", table.path().c_str());
      std::barrier through(static_cast<ptrdiff_t>(hosts.size()));
      on(hosts, [&](Group& group) -> std::string {
        std::vector<int> speakers;  // in the order of the hosts' names
        for (int host = 0; host < 3; ++host)
          speakers.push_back(static_cast<int>(std::ranges::find(hosts, host) - hosts.begin()));
        const auto place = std::ranges::find(speakers, group.rank()) - speakers.begin();
        const int right = speakers[static_cast<size_t>(place + 1) % 3],
                  left = speakers[static_cast<size_t>(place + 2) % 3];
        std::vector<float> in(hosts.size() * kCount), out(hosts.size() * kCount);
        const uint64_t to_left = sent_to(group, left), to_right = sent_to(group, right);
        through.arrive_and_wait();
        const Status status =
            group.run(floats(kind, 0, kCount), bytes(in), bytes(out), within(kLong));
        through.arrive_and_wait();
        if (!status.ok()) return status.details();
        if (place == 3) return "";  // it speaks for none
        const uint64_t left_has = sent_to(group, left) - to_left,
                       both_have = left_has + sent_to(group, right) - to_right;
        const bool as_it_says = way == std::string("ring")     ? left_has < kAnswers
                                : way == std::string("direct") ? left_has >= kBytes
                                : group.rank() != 0            ? true
                                : way == std::string("tree")   ? both_have >= 2 * kBytes
                                                               : both_have < kBytes + kAnswers;
        return as_it_says ? ""
                          : std::to_string(left_has) + " bytes to the left, " +
                                std::to_string(both_have) + " to both";
      });
    }
}

// What this process's ranks have sent to those of other hosts.
uint64_t sent_elsewhere(Group& group, const Hosts& hosts) {
  uint64_t bytes = 0;
  for (int i = 0; i < group.size(); ++i)
    if (hosts[static_cast<size_t>(i)] != hosts[static_cast<size_t>(group.rank())] &&
        group.members().linked(i))
      bytes += group.members().link(i).stats().sent.bytes;
  return bytes;
}

TEST_CASE("hierarchical: what one host has for another one leaves it once") {
  const Hosts hosts{0, 1, 0, 1, 0, 1};
  for (const size_t count : {1000, 200'000})
    for (const CollectiveKind kind : {CollectiveKind::kAllGather, CollectiveKind::kReduceScatter}) {
      CAPTURE(count);
      CAPTURE(name_of(kind));
      std::atomic<uint64_t> sent = 0;
      on(hosts, [&](Group& group) -> std::string {
        std::vector<float> in(6 * count), out(6 * count);
        const uint64_t before = sent_elsewhere(group, hosts);
        const CollectiveCall call{kind, DataType::kFloat32, ReduceOp::kSum, 0, count};
        const Status status = group.run(call, bytes(in), bytes(out), within(kLong));
        sent += sent_elsewhere(group, hosts) - before;
        return status.details();
      });
      // Three shares from each of two hosts. Straight from rank to rank it would be nine.
      const uint64_t once = 2 * 3 * count * sizeof(float);
      CHECK(sent >= once);
      CHECK(sent < once + once / 50 + 1000);  // headers
    }
}

TEST_CASE("hierarchical: ranks that disagree are told, those of one host and of several") {
  for (const CollectiveKind kind : {CollectiveKind::kAllGather, CollectiveKind::kReduceScatter})
    for (const size_t count : {10, 400'000})
      for (const int odd : {0, 1, 2, 3}) {
        CAPTURE(name_of(kind));
        CAPTURE(count);
        CAPTURE(odd);
        on(kInTurns, [&](Group& group) -> std::string {
          // The first waves have one size all the same.
          const size_t mine = group.rank() == odd ? count * 2 : count;
          std::vector<float> in(4 * mine), out(4 * mine);
          const CollectiveCall call{kind, DataType::kFloat32, ReduceOp::kSum, 0, mine};
          const Status status = group.run(call, bytes(in), bytes(out), within(kLong));
          return status.details().find("of " + std::to_string(2 * count) + " float32") !=
                         std::string::npos
                     ? ""
                     : "not told: " + status.details();
        });
      }
}

TEST_CASE("hierarchical: sums that move as another type are told from those of that type") {
  on({0, 0, 0, 1, 1, 1}, [](Group& group) -> std::string {
    std::vector<float> in(6 * 10), out(10);
    const DataType type = group.rank() == 4 ? DataType::kFloat32 : DataType::kBfloat16;
    const CollectiveCall call{CollectiveKind::kReduceScatter, type, ReduceOp::kSum, 0, 10};
    const Status status = group.run(call, bytes(in), bytes(out), within(kLong));
    return status.details().find("of 10 float32") != std::string::npos ? "" : status.details();
  });
}

// What a rank comes to that calls it, with arrays of its own.
Status called(Group& group, const CollectiveCall& call, const Wait& wait) {
  const auto ranks = static_cast<size_t>(group.size());
  const bool uneven = call.count == CollectiveCall::kUneven;
  const size_t share = uneven ? 80 : call.bytes();
  std::vector<std::byte> in(ranks * share), out(ranks * share);
  if (!uneven) return group.run(call, in.data(), out.data(), wait);
  std::vector<Run> gives(ranks, {0, share}), takes(ranks);
  for (size_t i = 0; i < ranks; ++i) takes[i] = {i * share, share};
  return group.exchange(call, in.data(), gives, out.data(), takes, wait);
}

// By the rank that has found it, or by another one.
bool told(const Status& status) { return status.details().find(" called ") != std::string::npos; }

// Rank `odd` calls something else than the others, and all are told, whoever waits for whom.
// Whoever has what it needs of the operation finds it in those that follow, in which all speak to
// all.
void tell_all_of(const Hosts& hosts, int odd, const CollectiveCall& usual,
                 const CollectiveCall& other) {
  CAPTURE(hosts);
  CAPTURE(odd);
  CAPTURE(usual.text());
  CAPTURE(other.text());
  std::barrier through(static_cast<ptrdiff_t>(hosts.size()));
  on(hosts, [&](Group& group) -> std::string {
    constexpr Nanos kLimit = 20 * kSecond;
    Status status = called(group, group.rank() == odd ? other : usual, within(kLimit));
    const CollectiveCall next{CollectiveKind::kAllToAll, DataType::kFloat32, ReduceOp::kSum, 0,
                              CollectiveCall::kUneven};
    for (int more = 2; status.ok() && more > 0; --more)
      status = called(group, next, within(kLimit));
    through.arrive_and_wait();  // none leaves before all are told
    return told(status) ? "" : "not told: " + status.details();
  });
}

TEST_CASE("hierarchical: a sum on one host is no average on another one") {
  for (const bool averages : {false, true})
    for (const CollectiveKind kind :
         {CollectiveKind::kAllReduce, CollectiveKind::kReduce, CollectiveKind::kReduceScatter}) {
      const ReduceOp usual = averages ? ReduceOp::kAverage : ReduceOp::kSum,
                     other = averages ? ReduceOp::kSum : ReduceOp::kAverage;
      tell_all_of({0, 0, 1}, 2, floats(kind, 0, 20, usual), floats(kind, 0, 20, other));
    }
}

TEST_CASE("hierarchical: an odd rank is found, whether it speaks for its host or not") {
  constexpr uint64_t kRows = CollectiveCall::kUneven;
  for (const int odd : {0, 1, 3}) {
    for (const CollectiveKind kind : {CollectiveKind::kAllGather, CollectiveKind::kAllToAll})
      tell_all_of(kInARow, odd, floats(CollectiveKind::kAllGather), floats(kind, 0, kRows));
    tell_all_of(kInARow, odd, floats(CollectiveKind::kReduceScatter),
                {CollectiveKind::kReduceScatter, DataType::kFloat8E4m3, ReduceOp::kSum, 0, 20});
  }
  // One that waits for a message of another rank alone, or sends its own to that one.
  for (const int odd : {0, 1, 2})
    for (const int root : {0, 1, 3})
      for (const CollectiveKind kind : {CollectiveKind::kGather, CollectiveKind::kScatter})
        tell_all_of(kInARow, odd, floats(CollectiveKind::kAllGather), floats(kind, root));
}

TEST_CASE("hierarchical: ranks that think of different roots are told") {
  for (const int odd : {0, 1, 2, 3})
    for (const int root : {1, 2, 3}) {
      tell_all_of(kInARow, odd, floats(CollectiveKind::kBroadcast),
                  floats(CollectiveKind::kBroadcast, root));
      tell_all_of(kInARow, odd, floats(CollectiveKind::kBroadcast),
                  floats(CollectiveKind::kScatter, root));
    }
}

// Each rank of a host thinks of another root than those of the other host. Some have what they
// wait for, and are done.
TEST_CASE("hierarchical: hosts that think of different roots are told") {
  std::barrier through(4);
  on(kInARow, [&](Group& group) -> std::string {
    const Status status = called(
        group, floats(CollectiveKind::kBroadcast, group.rank() < 2 ? 1 : 0), within(20 * kSecond));
    through.arrive_and_wait();
    if (group.rank() < 2) return "";
    return told(status) ? "" : "not told: " + status.details();
  });
}

// Each rank calls what it gives, and all are told, though none of them sends anything.
template <class Calls>
void tell_all_that_wait(const Hosts& hosts, Calls&& calls) {
  CAPTURE(hosts);
  std::barrier through(static_cast<ptrdiff_t>(hosts.size()));
  on(hosts, [&](Group& group) -> std::string {
    const Status status = called(group, calls(group.rank()), within(20 * kSecond));
    through.arrive_and_wait();
    return told(status) ? "" : "not told: " + status.details();
  });
}

TEST_CASE("hierarchical: ranks that wait for each other, as each takes another for the root") {
  const auto from = [](int root) { return floats(CollectiveKind::kBroadcast, root); };
  // Those that speak for their hosts, and then those that do not: who waits for a message of one
  // waits for a rank that waits for one of its own host.
  tell_all_that_wait(kInARow, [&](int rank) { return from(rank < 2 ? 2 : 0); });
  tell_all_that_wait(kInARow, [&](int rank) { return from(rank < 2 ? 3 : 1); });
  // Without common memory, around a circle.
  tell_all_that_wait({0, 1, 2}, [&](int rank) { return from((rank + 1) % 3); });
  tell_all_that_wait({0, 0, 1, 2}, [&](int rank) {
    return from(rank < 2 ? 2 : rank == 2 ? 3 : 0);
  });
}

// One has sent what it had to, and waits in the next operation for one that waits in the first.
TEST_CASE("hierarchical: a rank that is ahead is told what it called otherwise before") {
  std::latch through(2);
  on({0, 1, 2}, [&](Group& group) -> std::string {
    const Wait wait = within(20 * kSecond);
    if (group.rank() == 1) {  // has nothing to look at what came to it
      through.wait();
      return "";
    }
    Status status;
    if (group.rank() == 0) status = called(group, floats(CollectiveKind::kGather, 1), wait);
    if (status.ok())
      status = called(group, floats(CollectiveKind::kBroadcast, 2 - group.rank()), wait);
    through.arrive_and_wait();
    return told(status) ? "" : "not told: " + status.details();
  });
}

TEST_CASE("hierarchical: a rank that leaves, or does not come, ends the operation for all") {
  for (const CollectiveKind kind : {CollectiveKind::kAllGather, CollectiveKind::kReduceScatter})
    for (const bool leaves : {false, true})
      for (const int missing : {0, 3}) {  // one speaks for its host, and the other one does not
        CAPTURE(name_of(kind));
        CAPTURE(leaves);
        CAPTURE(missing);
        // None is still at the first operation when the second one fails.
        std::barrier through(4);
        on(kInARow, [&](Group& group) -> std::string {
          constexpr size_t kCount = 200'000;
          std::vector<float> in(4 * kCount), out(4 * kCount);
          const CollectiveCall call{kind, DataType::kFloat32, ReduceOp::kSum, 0, kCount};
          Status status = group.run(call, bytes(in), bytes(out), within(kLong));
          through.arrive_and_wait();
          if (!status.ok()) return status.details();
          if (group.rank() == missing) {
            while (!leaves && group.members().standing().ok()) std::this_thread::yield();
            return {};
          }
          status =
              group.run(call, bytes(in), bytes(out), within(leaves ? kLong : 200 * kMillisecond));
          const bool gone = status.code() == Code::kUnavailable,
                     late = status.code() == Code::kDeadlineExceeded;
          if (!gone && !(late && !leaves)) return "another end: " + status.details();
          // Beyond its host a rank knows only that the one that speaks for others has not come.
          const bool named =
              status.details().find("rank " + std::to_string(missing)) != std::string::npos;
          return named || !leaves ? "" : status.details();
        });
      }
}

// A gather to rank 2, which waits for rank `late_one`, while rank `first_one` is ahead, in `next`.
void go_on_while_one_waits(const CollectiveCall& next, int late_one, int first_one) {
  CAPTURE(next.text());
  CAPTURE(late_one);
  std::atomic<bool> ahead = false;
  std::atomic<int> looks = 0;
  std::counting_semaphore<8> late(0);
  struct Waits {
    std::atomic<bool>& ahead;
    std::atomic<int>& looks;
    std::counting_semaphore<8>& late;
  } waits{ahead, looks, late};
  // Whoever waits in the second operation has sent what it has to send.
  const Wait first{deadline_after(kLong),
                   [](void* context) {
                     static_cast<Waits*>(context)->ahead = true;
                     return 0;
                   },
                   &waits};
  // The root looks around in each slice of its wait.
  const Wait root{deadline_after(kLong),
                  [](void* context) {
                    auto& all = *static_cast<Waits*>(context);
                    if (all.ahead && ++all.looks == 3) all.late.release();
                    return 0;
                  },
                  &waits};
  on(kInARow, [&](Group& group) -> std::string {
    std::vector<float> in(1000), out(4000);
    if (group.rank() == late_one) late.acquire();
    const CollectiveCall gather{CollectiveKind::kGather, DataType::kFloat32, ReduceOp::kSum, 2,
                                1000};
    Status status =
        group.run(gather, bytes(in), bytes(out), group.rank() == 2 ? root : within(kLong));
    if (!status.ok()) {
      late.release();  // whoever fails keeps no other one waiting
      return status.details();
    }
    status =
        group.run(next, bytes(in), bytes(out), group.rank() == first_one ? first : within(kLong));
    return status.details();
  });
}

TEST_CASE("hierarchical: who waits takes what those say who are ahead for no disagreement") {
  const auto go_on = [](CollectiveKind kind) {
    // One that is ahead on another host, and one on that of the rank that waits.
    for (const auto& [late_one, first_one] : {std::pair{3, 0}, std::pair{0, 3}})
      go_on_while_one_waits(floats(kind, kind == CollectiveKind::kBroadcast ? late_one : 0, 1000),
                            late_one, first_one);
  };
  go_on(CollectiveKind::kAllGather);
  go_on(CollectiveKind::kBroadcast);
  const Variable forced("TENSORWIRE_ALLREDUCE", "pairwise");
  go_on(CollectiveKind::kAllReduce);
}

TEST_CASE("hierarchical: a rank that only gives goes ahead of one of its host until that comes") {
  std::counting_semaphore<1> late(0);
  std::atomic<bool> waits = false;
  struct Waits {
    std::counting_semaphore<1>& late;
    std::atomic<bool>& waits;
  } both{late, waits};
  const Wait ahead{deadline_after(kLong),
                   [](void* context) {
                     auto& its = *static_cast<Waits*>(context);
                     if (!its.waits.exchange(true)) its.late.release();
                     return 0;
                   },
                   &both};
  on(kInARow, [&](Group& group) -> std::string {
    if (group.rank() == 2) late.acquire();
    Status status;
    // More than a board has entries.
    for (int i = 0; status.ok() && i < 40; ++i)
      status = called(group,
                      floats(i % 2 == 0 ? CollectiveKind::kGather : CollectiveKind::kScatter,
                             i % 2 == 0 ? 0 : 3),
                      group.rank() == 3 ? ahead : within(kLong));
    if (!status.ok() && !waits.exchange(true)) late.release();
    if (status.ok()) status = called(group, floats(CollectiveKind::kAllReduce), within(kLong));
    return status.details();
  });
}

}  // namespace
}  // namespace tw::test

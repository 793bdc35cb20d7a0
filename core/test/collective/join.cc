// SPDX-License-Identifier: Apache-2.0
// Ranks that meet in a store which still has what an earlier attempt has left.
#include "collective/join.h"

#include <doctest/doctest.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <set>
#include <thread>

#include "collective/wire.h"
#include "test/collective/ranks.h"
#include "test/meet/dial.h"

namespace tw::test {
namespace {

// Tells when a key was read or set.
class WatchedStore final : public collective::Store {
 public:
  Status set(const std::string& key, std::span<const std::byte> value) override {
    Status status = store_.set(key, value);
    note(written_, key);
    return status;
  }
  Result<std::vector<std::byte>> get(const std::string& key, const Wait& wait) override {
    auto value = store_.get(key, wait);
    note(read_, key);
    return value;
  }

  // What was read and set so far does not count any more; the values stay.
  void forget() {
    const std::lock_guard lock(mutex_);
    written_.clear();
    read_.clear();
  }
  void await_written(const std::string& key) { await(written_, key); }
  void await_read(const std::string& key) { await(read_, key); }
  bool was_read(const std::string& key) {
    const std::lock_guard lock(mutex_);
    return read_.contains(key);
  }

 private:
  void note(std::set<std::string>& keys, const std::string& key) {
    const std::lock_guard lock(mutex_);
    keys.insert(key);
    changed_.notify_all();
  }
  void await(std::set<std::string>& keys, const std::string& key) {
    std::unique_lock lock(mutex_);
    REQUIRE(changed_.wait_for(lock, std::chrono::seconds(60), [&] { return keys.contains(key); }));
  }

  MemoryStore store_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::set<std::string> written_, read_;
};

// Reads of a key that is not there yet end in vain, and just then it is.
class LateStore final : public collective::Store {
 public:
  explicit LateStore(std::string key) : key_(std::move(key)) {}

  Status set(const std::string& key, std::span<const std::byte> value) override {
    return store_.set(key, value);
  }
  Result<std::vector<std::byte>> get(const std::string& key, const Wait& wait) override {
    auto value = store_.get(key, key == key_ && !late_ ? within(kLong) : wait);
    if (key != key_ || late_.exchange(true)) return value;
    return Status{Code::kDeadlineExceeded, "it was not there"};
  }

 private:
  const std::string key_;
  std::atomic<bool> late_{false};
  MemoryStore store_;
};

// Whoever reads the invitation first tries it, and gets no further than to prove itself.
class TriedStore final : public collective::Store {
 public:
  explicit TriedStore(std::string key) : key_(std::move(key)) {}

  Status set(const std::string& key, std::span<const std::byte> value) override {
    return store_.set(key, value);
  }
  Result<std::vector<std::byte>> get(const std::string& key, const Wait& wait) override {
    auto value = store_.get(key, wait);
    if (value && key == key_ && !tried_.exchange(true)) try_it(*value);
    return value;
  }

 private:
  void try_it(std::span<const std::byte> bytes) {
    const auto answer = collective::decode_answer(bytes);
    REQUIRE(answer);
    const wire::Welcome& welcome = answer->welcome;
    const std::string address(welcome.addresses.front());
    auto handshake =
        papers(*Runtime::get().value(),
               {address, welcome.session,
                meet::Secret(std::span<const uint8_t, meet::Secret::kSize>(welcome.secret)),
                welcome.instance, welcome.hello});
    stuck_ = dial(address);
    shake(stuck_, handshake, 3);
    REQUIRE(handshake.done());
  }

  const std::string key_;
  std::atomic<bool> tried_{false};
  Fd stuck_;
  MemoryStore store_;
};

// What joining came to on each rank; `before(rank)` is called by the rank's thread first.
template <class Before>
std::vector<Status> attempt(collective::Store& store, int size, Before&& before) {
  std::vector<Status> came(static_cast<size_t>(size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank)
    threads.emplace_back([&, rank] {
      before(rank);
      auto group = Group::make(store, {rank, size, "127.0.0.1"}, within(kLong));
      if (!group) {
        came[static_cast<size_t>(rank)] = group.status();
        return;
      }
      std::vector<double> data{static_cast<double>(rank + 1)};
      const CollectiveCall call{CollectiveKind::kAllReduce, DataType::kFloat64, ReduceOp::kSum, 0,
                                1};
      Status status = (*group)->run(call, bytes(data), bytes(data), within(kLong));
      if (status.ok() && data[0] != size * (size + 1) / 2.0)
        status = {Code::kInternal, "another sum"};
      came[static_cast<size_t>(rank)] = status;
    });
  for (std::thread& thread : threads) thread.join();
  return came;
}

void check_all(const std::vector<Status>& came) {
  for (size_t rank = 0; rank < came.size(); ++rank) {
    CAPTURE(rank);
    CHECK(came[rank].details() == "");
    CHECK(came[rank].ok());
  }
}

TEST_CASE("join: ranks meet again in the store of the attempt before, whoever comes first") {
  WatchedStore store;
  check_all(attempt(store, 3, [](int) {}));
  for (const int last : {0, 1, 2}) {
    CAPTURE(last);
    store.forget();
    // The last one comes when another one has acted on what the last one had left.
    check_all(attempt(store, 3, [&](int rank) {
      if (rank != last) return;
      if (last == 0)
        store.await_read("tensorwire/invitation/0/1");
      else
        store.await_written("tensorwire/invitation/0/" + std::to_string(last));
    }));
  }
}

TEST_CASE("join: an invitation that is found by looking around is taken once") {
  LateStore store("tensorwire/invitation/0/1");
  check_all(attempt(store, 2, [](int) {}));
}

TEST_CASE("join: an invitation serves though a first try is still under way") {
  TriedStore store("tensorwire/invitation/0/1");
  check_all(attempt(store, 2, [](int) {}));
}

TEST_CASE("join: fewer ranks, and then more, meet in the same store") {
  MemoryStore store;
  for (const int size : {3, 2, 4}) {
    CAPTURE(size);
    check_all(attempt(store, size, [](int) {}));
  }
}

TEST_CASE("join: what an earlier attempt has left does not stand for a rank that has not come") {
  MemoryStore store;
  check_all(attempt(store, 2, [](int) {}));
  for (const int rank : {0, 1}) {
    CAPTURE(rank);
    const Status alone =
        Group::make(store, {rank, 2, "127.0.0.1"}, within(50 * kMillisecond)).status();
    CHECK(alone.code() == Code::kDeadlineExceeded);
    CHECK(alone.details() ==
          "rank " + std::to_string(1 - rank) + " has not come to the group of 2 in time");
  }
}

TEST_CASE("join: a rank that waits for others itself is not told as the one that has not come") {
  WatchedStore store;
  Status first;
  std::thread waiting([&] {
    first = Group::make(store, {0, 3, "127.0.0.1"}, within(100 * kMillisecond)).status();
  });
  store.await_written("tensorwire/rank/0");
  const Status third = Group::make(store, {2, 3, "127.0.0.1"}, within(100 * kMillisecond)).status();
  waiting.join();
  for (const Status& status : {first, third}) {
    CHECK(status.code() == Code::kDeadlineExceeded);
    CHECK(status.details().find("rank 1 has not come to the group of 3 in time; see whether") == 0);
  }
}

TEST_CASE("join: an interruption ends the wait for an earlier attempt's ranks") {
  MemoryStore store;
  check_all(attempt(store, 2, [](int) {}));
  const Wait interrupted{deadline_after(kLong), [](void*) { return 1; }, nullptr};
  for (const int rank : {0, 1}) {
    CAPTURE(rank);
    CHECK(Group::make(store, {rank, 2, "127.0.0.1"}, interrupted).status().code() ==
          Code::kCancelled);
  }
}

// What joining came to on each of the ranks, which were told so many ranks of the group.
std::vector<Status> joined(const std::vector<collective::Seat>& seats, collective::Store& store) {
  std::vector<Status> came(seats.size());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < seats.size(); ++i)
    threads.emplace_back([&, i] {
      auto group = Group::make(store, seats[i], within(kLong));
      if (!group) came[i] = group.status();
    });
  for (std::thread& thread : threads) thread.join();
  return came;
}

TEST_CASE("join: ranks that were told different sizes are told so, all of them") {
  MemoryStore store;
  const auto came = joined({{0, 2, "127.0.0.1"}, {1, 3, "127.0.0.1"}}, store);
  CHECK(came[1].code() == Code::kFailedPrecondition);
  CHECK(came[1].details() == "rank 0 has come to a group of 2, and rank 1 to one of 3");
  CHECK(!came[0].ok());
  CHECK(came[0].details().find(came[1].details()) != std::string::npos);
}

TEST_CASE("join: who waits for a rank whose process has another size is told at the end") {
  MemoryStore store;
  check_all(attempt(store, 2, [](int) {}));
  const Status status = Group::make(store, {2, 3, "127.0.0.1"}, within(50 * kMillisecond)).status();
  CHECK(status.code() == Code::kDeadlineExceeded);
  CHECK(status.details() ==
        "rank 0 has not come to the group of 3 in time; the one that came as rank 0 was of a group "
        "of 2");
}

TEST_CASE("join: who comes as a rank replaces the one that has come as it before") {
  WatchedStore store;
  const auto come_as = [&](int rank) {
    auto group = Group::make(store, {rank, 2, "127.0.0.1"}, within(kLong));
    return group ? Status() : group.status();
  };
  Status first, second;
  std::thread earlier([&] { first = come_as(1); });
  store.await_written("tensorwire/rank/1");
  std::thread later([&] { second = come_as(1); });
  earlier.join();
  CHECK(first.code() == Code::kAlreadyExists);
  CHECK(first.details() == "another process has come as rank 1, too");
  CHECK(come_as(0).details() == "");
  later.join();
  CHECK(second.details() == "");
}

TEST_CASE("join: a rank that gives up on its way into the group is missed at once") {
  WatchedStore store;
  check_all(attempt(store, 3, [](int) {}));
  store.forget();
  // It has reached rank 0 by then, and rank 1 does not come.
  const auto interrupted = [](void* context) -> int {
    return static_cast<WatchedStore*>(context)->was_read("tensorwire/invitation/1/2");
  };
  Status left;
  std::thread leaving([&] {
    const Wait wait{deadline_after(kLong), interrupted, &store};
    left = Group::make(store, {2, 3, "127.0.0.1"}, wait).status();
  });
  const Status status = Group::make(store, {0, 3, "127.0.0.1"}, within(kLong)).status();
  leaving.join();
  CHECK(left.code() == Code::kCancelled);
  CHECK(status.code() == Code::kUnavailable);
  CHECK(status.details().find("rank 2 (") == 0);
  CHECK(status.details().find(left.details()) != std::string::npos);
}

TEST_CASE("join: a group that needs more descriptors than there may be says so when it fails") {
  rlimit before{};
  REQUIRE(getrlimit(RLIMIT_NOFILE, &before) == 0);
  rlimit limit = before;
  limit.rlim_cur = 512;
  REQUIRE(setrlimit(RLIMIT_NOFILE, &limit) == 0);
  WatchedStore store;
  const auto failure_of = [&](int size) {
    return Group::make(store, {0, size, "127.0.0.1"}, within(kMillisecond)).status();
  };
  const Status large = failure_of(200), small = failure_of(3);
  REQUIRE(setrlimit(RLIMIT_NOFILE, &before) == 0);
  CHECK(large.code() == Code::kDeadlineExceeded);
  CHECK(large.details() ==
        "rank 1 has not come to the group of 200 in time; see whether its process runs, and has "
        "the same store (the links of a group of 200 take up to 995 descriptors; this process may "
        "have 512: see ulimit -n)");
  CHECK(small.details() ==
        "rank 1 has not come to the group of 3 in time; see whether its process runs, and has the "
        "same store");
}

}  // namespace
}  // namespace tw::test

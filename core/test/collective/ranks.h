// SPDX-License-Identifier: Apache-2.0
// Ranks that are threads of one process, and arrays of theirs.
#pragma once

#include <doctest/doctest.h>
#include <unistd.h>

#include <condition_variable>
#include <cstdlib>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "collective/group.h"
#include "test/sanitized.h"

namespace tw::test {

using collective::Algorithm;
using collective::choose_algorithm;
using collective::CollectiveCall;
using collective::CollectiveKind;
using collective::Fabric;
using collective::Group;

inline constexpr Nanos kLong = 60 * kSecond;

class MemoryStore final : public collective::Store {
 public:
  Status set(const std::string& key, std::span<const std::byte> value) override {
    const std::lock_guard lock(mutex_);
    values_[key].assign(value.begin(), value.end());
    changed_.notify_all();
    return {};
  }
  Result<std::vector<std::byte>> get(const std::string& key, const Wait& wait) override {
    std::unique_lock lock(mutex_);
    while (!values_.contains(key)) {
      if (now() >= wait.deadline) return Status{Code::kDeadlineExceeded, "nobody has set it"};
      changed_.wait_for(lock, std::chrono::milliseconds(1));
    }
    return values_[key];
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::vector<std::byte>> values_;
};

inline Wait within(Nanos time) { return {deadline_after(time), nullptr, nullptr}; }

// A variable of the environment, for as long as it lives.
class Variable {
 public:
  Variable(const char* name, const char* value) : name_(name) {
    if (value) setenv(name, value, 1);
  }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;
  ~Variable() { unsetenv(name_); }

 private:
  const char* const name_;
};

// A file of rules, for as long as it lives.
class Rules {
 public:
  explicit Rules(const std::string& text) {
    const int file = mkstemp(path_.data());
    REQUIRE(file >= 0);
    REQUIRE(write(file, text.data(), text.size()) == static_cast<ssize_t>(text.size()));
    close(file);
  }
  Rules(const Rules&) = delete;
  Rules& operator=(const Rules&) = delete;
  ~Rules() { unlink(path_.c_str()); }
  const std::string& path() const { return path_; }

 private:
  std::string path_ = "/tmp/tensorwire-table-XXXXXX";
};

// How the ranks of a group are placed: the name of what their data moves by, and why it does.
struct Placement {
  const char* fabric;
  const char* transport;  // null: the best
  int on_a_host;          // ranks; 0: all
  bool reads_memory = true;
  bool deterministic = false;
};
inline constexpr Placement kPlacements[] = {
    {"shared memory", nullptr, 0},
    {"shared memory", nullptr, 0, false},
    {"messages", "tcp", 0},
    {"shared memory and messages", nullptr, 2},
};

// Runs as so many ranks at once, each of which place(seat) gives its place, and returns when all
// have.
template <class Place, class Run>
void as_ranks_placed(int size, Place&& place, Run&& run) {
  MemoryStore store;
  std::vector<std::thread> threads;
  std::mutex mutex;
  std::vector<std::string> failures;
  for (int rank = 0; rank < size; ++rank)
    threads.emplace_back([&, rank] {
      collective::Seat seat{rank, size, "127.0.0.1", {}};
      place(seat);
      auto group = Group::make(store, seat, within(kLong));
      std::string failure = group ? std::string() : group.status().details();
      if (group) failure = run(**group);
      if (failure.empty()) return;
      const std::lock_guard lock(mutex);
      failures.push_back("rank " + std::to_string(rank) + ": " + failure);
    });
  for (std::thread& thread : threads) thread.join();
  for (const std::string& failure : failures) FAIL_CHECK(failure);
}
template <class Run>
void as_ranks_of(const Placement& placement, int size, Run&& run) {
  const Variable transport("TENSORWIRE_TRANSPORT", placement.transport);
  as_ranks_placed(
      size,
      [&](collective::Seat& seat) {
        if (placement.on_a_host != 0)
          seat.host_id = std::to_string(seat.rank / placement.on_a_host);
        seat.reads_memory = placement.reads_memory;
        seat.deterministic = placement.deterministic;
      },
      run);
}
template <class Run>
void as_ranks(int size, Run&& run) {
  for (const Placement& placement : kPlacements) {
    CAPTURE(placement.fabric);
    as_ranks_of(placement, size, run);
  }
}

template <class T>
constexpr DataType type_of() {
  if (std::is_same_v<T, double>) return DataType::kFloat64;
  if (std::is_same_v<T, float>) return DataType::kFloat32;
  if (std::is_same_v<T, uint8_t>) return DataType::kUint8;
  return DataType::kInt64;
}
template <class T>
const std::byte* bytes(const std::vector<T>& v) {
  return reinterpret_cast<const std::byte*>(v.data());
}
template <class T>
std::byte* bytes(std::vector<T>& v) {
  return reinterpret_cast<std::byte*>(v.data());
}

// What a rank has at a place: small numbers, whose sums are exact in any order.
template <class T>
std::vector<T> array_of(int rank, size_t count, int salt = 0) {
  std::vector<T> v(count);
  for (size_t i = 0; i < count; ++i)
    v[i] =
        static_cast<T>((i * 7 + static_cast<size_t>(rank) * 13 + static_cast<size_t>(salt)) % 101);
  return v;
}
template <class T>
std::vector<T> sum_of(int size, size_t count, int salt = 0) {
  std::vector<T> sum(count);
  for (int rank = 0; rank < size; ++rank) {
    const auto v = array_of<T>(rank, count, salt);
    for (size_t i = 0; i < count; ++i) sum[i] += v[i];
  }
  return sum;
}

}  // namespace tw::test

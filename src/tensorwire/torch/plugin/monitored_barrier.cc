// SPDX-License-Identifier: Apache-2.0
#include "monitored_barrier.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <string>
#include <vector>

namespace tensorwire {

namespace {

using Clock = std::chrono::steady_clock;

// Tags of messages that a user sends are ints.
constexpr uint64_t kFirstTag = uint64_t{1} << 32;
// Rank 0 has waited for as long as the others by then, and its word is on its way.
constexpr std::chrono::seconds kWord{1};
constexpr std::chrono::milliseconds kLeast{1};  // a wait for what may be there already

// By rank: whether it has come.
using Present = std::vector<uint8_t>;

int failed(tw_status* status, int code, const std::string& why) {
  status->code = code;
  std::snprintf(status->details, sizeof status->details, "%s", why.c_str());
  return code;
}

class Meeting {
 public:
  Meeting(const MonitoredBarrier& barrier, tw_group* group, const tw_wait& wait, tw_status* status)
      : barrier_(barrier),
        group_(group),
        wait_(wait),
        status_(status),
        until_(Clock::now() + std::chrono::nanoseconds(wait.timeout_ns)),
        present_(static_cast<size_t>(barrier.size)) {}

  int at_rank_0() {
    present_[0] = 1;
    for (int come = 1; come < barrier_.size; ++come) {
      int rank = 0;
      uint8_t told = 0;
      const tw_wait wait = left();
      const int code =
          core().group_receive_any(group_, coming(), &told, sizeof told, &rank, &wait, status_);
      if (code == TW_CODE_DEADLINE_EXCEEDED) break;
      if (code != TW_OK) return code;
      present_[static_cast<size_t>(rank)] = 1;
      if (const int answered = send(rank, answers(), &told, sizeof told); answered != TW_OK)
        return answered;
    }
    int code = TW_OK;
    for (int rank = 1; rank < barrier_.size && code == TW_OK; ++rank)
      if (present_[static_cast<size_t>(rank)])
        code = send(rank, answers(), present_.data(), present_.size());
    return code == TW_OK ? outcome() : code;
  }

  int elsewhere() {
    uint8_t told = 1;
    if (const int code = send(0, coming(), &told, sizeof told); code != TW_OK) return code;
    int code = receive(&told, sizeof told, left());
    if (code == TW_CODE_DEADLINE_EXCEEDED) {
      std::fill(present_.begin() + 1, present_.end(), uint8_t{1});
      return outcome();  // rank 0 has not come, and only it knows of the others
    }
    if (code != TW_OK) return code;
    until_ = Clock::now() + std::chrono::nanoseconds(wait_.timeout_ns) + kWord;
    code = receive(present_.data(), present_.size(), left());
    if (code == TW_CODE_DEADLINE_EXCEEDED)
      return failed(status_, code,
                    "rank 0 has come to the monitored barrier, and has not told who else has");
    return code == TW_OK ? outcome() : code;
  }

 private:
  uint64_t coming() const { return kFirstTag + 2 * barrier_.number; }
  uint64_t answers() const { return coming() + 1; }

  tw_wait left() const {
    const auto time = std::max<Clock::duration>(until_ - Clock::now(), kLeast);
    return {std::chrono::nanoseconds(time).count(), wait_.interrupted, wait_.context};
  }

  int send(int rank, uint64_t tag, const void* data, size_t size) {
    const tw_wait wait = left();
    return core().group_send(group_, rank, tag, data, size, &wait, status_);
  }

  int receive(void* into, size_t size, const tw_wait& wait) {
    return core().group_receive(group_, 0, answers(), into, size, &wait, status_);
  }

  int outcome() {
    std::vector<size_t> missing;
    for (size_t rank = 0; rank < present_.size(); ++rank)
      if (!present_[rank]) missing.push_back(rank);
    if (missing.empty()) return TW_OK;
    const bool more = !barrier_.names_all && missing.size() > 1;
    if (more) missing.resize(1);
    std::string names;
    for (const size_t rank : missing) names += (names.empty() ? "" : ", ") + std::to_string(rank);
    const auto limit = std::chrono::duration_cast<std::chrono::milliseconds>(
        std::chrono::nanoseconds(wait_.timeout_ns));
    return failed(status_, TW_CODE_DEADLINE_EXCEEDED,
                  (missing.size() > 1 ? "ranks " + names + " have" : "rank " + names + " has") +
                      " not come to the monitored barrier within " + std::to_string(limit.count()) +
                      " ms" +
                      (more ? ", nor have others: wait_all_ranks=True names them all" : ""));
  }

  const MonitoredBarrier& barrier_;
  tw_group* const group_;
  const tw_wait& wait_;
  tw_status* const status_;
  Clock::time_point until_;
  Present present_;
};

}  // namespace

int run(const MonitoredBarrier& barrier, tw_group* group, const tw_wait& wait, tw_status* status) {
  Meeting meeting(barrier, group, wait, status);
  return barrier.rank == 0 ? meeting.at_rank_0() : meeting.elsewhere();
}

}  // namespace tensorwire

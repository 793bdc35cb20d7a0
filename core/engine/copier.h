// SPDX-License-Identifier: Apache-2.0
// Copying tensors to where another process will read them.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <thread>

#include "base/mutex.h"

namespace tw {

// One core cannot fill the memory's bandwidth: 64 MiB take 9.5 ms by memcpy, 6.4 ms by stores that
// go around the caches, 2.9 ms by two cores. So whoever copies much offers pieces of it to an
// assistant, and never waits for more of its work than the piece it has in hand.
class Copier {
 public:
  // What a copy goes to.
  enum class Destination : uint8_t {
    kUsed,
    // Memory that may not have been touched. Two threads never fill the same huge page of it, for
    // which one would wait until the other has cleared it.
    kFresh,
    // The same, of a memory file: its huge pages are made first.
    kFreshShared
  };

  struct Copy {
    std::byte* to;
    const std::byte* from;
    size_t size;
    Destination destination = Destination::kUsed;
  };

  Copier() = default;
  ~Copier() { stop(); }
  Copier(const Copier&) = delete;
  Copier& operator=(const Copier&) = delete;

  // Less is copied alone: to wake the assistant costs 5 to 50 us, a tenth of what copying
  // this much takes.
  static constexpr size_t kShared = 4 << 20;

  // As memcpy. From any thread.
  void copy(std::byte* to, const std::byte* from, size_t size,
            Destination destination = Destination::kUsed);
  // The same of several, which are one to the assistant.
  void copy(std::span<const Copy> copies);
  // Joins the assistant; nobody may be copying. Copies work afterwards too, without it.
  void stop();

 private:
  // Of `state_`, whose changes hand the job over:
  //   nothing -> offered (who copies) -> taken -> nothing (the assistant)
  //                                   -> nothing (who copies: nobody had taken it)
  enum State : uint32_t { kNothing, kOffered, kTaken, kStop };

  bool assisted() TW_REQUIRES(turn_);
  void assist();
  void copy_pieces();
  void settle();

  Mutex turn_;  // held for a copy that is shared, and by stop(); others copy alone meanwhile
  bool decided_ TW_GUARDED_BY(turn_) = false;
  std::thread assistant_ TW_GUARDED_BY(turn_);
  std::atomic<uint32_t> state_{kNothing};  // a futex

  // The job: written ahead of kOffered.
  std::span<const Copy> copies_;
  size_t size_ = 0;  // of all of them
  size_t piece_ = 0;
  // Bytes between where the first piece would begin and the first `to`.
  size_t before_ = 0;
  std::atomic<size_t> next_{0};  // the first piece nobody has begun, in bytes of pieces before it
};

}  // namespace tw

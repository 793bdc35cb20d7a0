// Copying a tensor to where another process will read it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <thread>

namespace tw {

// One core cannot fill the memory's bandwidth: 64 MiB take 9.5 ms by memcpy, 6.4 ms by stores that
// go around the caches, 2.9 ms by two cores. So whoever copies much offers pieces of it to an
// assistant, and never waits for more of its work than the piece it has in hand.
class Copier {
 public:
  Copier() = default;
  ~Copier() { stop(); }
  Copier(const Copier&) = delete;
  Copier& operator=(const Copier&) = delete;

  // As memcpy, for `to` aligned to 64 bytes. From any thread.
  void copy(std::byte* to, const std::byte* from, size_t size);
  // Joins the assistant; nobody may be copying. Copies work afterwards too, without it.
  void stop();

 private:
  // Of `state_`, whose changes hand the job over:
  //   nothing -> offered (who copies) -> taken -> nothing (the assistant)
  //                                   -> nothing (who copies: nobody had taken it)
  enum State : uint32_t { kNothing, kOffered, kTaken, kStop };

  bool assisted();
  void assist();
  void copy_pieces();
  void settle();

  std::mutex turn_;  // held for a copy that is shared, and by stop(); others copy alone meanwhile
  bool decided_ = false;
  std::thread assistant_;
  std::atomic<uint32_t> state_{kNothing};  // a futex

  // The job: written ahead of kOffered.
  std::byte* to_ = nullptr;
  const std::byte* from_ = nullptr;
  size_t size_ = 0;
  std::atomic<size_t> next_{0};  // the first byte of the first piece nobody has begun
};

}  // namespace tw

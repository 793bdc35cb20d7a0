// SPDX-License-Identifier: Apache-2.0
// Two byte rings in memory shared by two processes, one for each direction, and the protocol by
// which an end that sleeps is woken.
//
// The peer may write anything anywhere in the shared memory at any time. So each end goes by
// cursors of its own, reads the other's once per decision, and believes it only where it continues
// what was seen before; nothing shared is ever used as an index or a size.
//
// Threads of one end: write() and after_write() under the sender's lock, read(), after_read(),
// readable() and prepare_sleep() by whoever drives the link; the two groups may run at the same
// time. Every memory order below is checked, and shown to be needed, by core/test/model.
#pragma once

#include <sys/uio.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>

#include "base/status.h"

namespace tw {

// Where the protocol needs an order stronger than relaxed. Pairs: StoreTail hands bytes to the
// reader's LoadTail; StoreHead hands room back to the writer's LoadHead. Each fence stands between
// a store that the other end looks for and a look at what the other end stores: one of the two ends
// sees the other.
enum class RingSite : uint8_t {
  kStoreTail,
  kLoadTail,
  kStoreHead,
  kLoadHead,
  kFenceAfterWrite,   // tail stored | sleep word read
  kFenceBeforeSleep,  // sleep word stored | tail and head read
  kFenceWhenFull,     // wants_space stored | head read
  kFenceAfterRead,    // head stored | wants_space and sleep word read
};

// The machine's own atomics and bytes; the model checker puts its own in their place.
struct HardwareAtomics {
  template <class T>
  using Atomic = std::atomic<T>;
  using Byte = std::byte;

  static constexpr std::memory_order order(RingSite site) {
    return site == RingSite::kStoreTail || site == RingSite::kStoreHead ? std::memory_order_release
                                                                        : std::memory_order_acquire;
  }
  static void fence(RingSite) {
#if defined(__SANITIZE_THREAD__)
    // ThreadSanitizer knows no fences; a locked operation is one on the machines that it runs on.
    static thread_local std::atomic<int> dummy;
    dummy.exchange(0, std::memory_order_seq_cst);
#else
    std::atomic_thread_fence(std::memory_order_seq_cst);
#endif
  }
  static void copy_in(Byte* ring, const void* from, size_t n) { std::memcpy(ring, from, n); }
  static void copy_out(void* to, const Byte* ring, size_t n) { std::memcpy(to, ring, n); }
};

// Who of the other end sleeps and must be rung; also what a sleep word holds.
enum class Sleeper : uint32_t {
  kNone = 0,
  kBackground = 1,  // in epoll: write to its eventfd
  kDriver = 2,      // in a futex wait on its sleep word
};

// Lines of two ends are kept two cache lines apart: the prefetcher fetches pairs.
inline constexpr size_t kRingLine = 128;

template <class A>
struct RingCursors {
  alignas(kRingLine) typename A::template Atomic<uint64_t> tail{0};  // bytes ever written
  typename A::template Atomic<uint32_t> wants_space{0};              // the writer's, like tail
  alignas(kRingLine) typename A::template Atomic<uint64_t> head{0};  // bytes ever read
};

template <class A>
struct RingSleepWord {
  alignas(kRingLine) typename A::template Atomic<uint32_t> word{0};
};

// What the shared memory begins with. Zeroes are a valid beginning.
template <class A>
struct RingHeader {
  RingCursors<A> rings[2];    // [i] carries bytes from side i
  RingSleepWord<A> sleep[2];  // [i] is stored by side i, and reset by whoever rings it
};
static_assert(sizeof(RingHeader<HardwareAtomics>) == 6 * kRingLine);
static_assert(offsetof(RingCursors<HardwareAtomics>, tail) == 0);
static_assert(offsetof(RingCursors<HardwareAtomics>, wants_space) == 8);
static_assert(offsetof(RingCursors<HardwareAtomics>, head) == kRingLine);
static_assert(offsetof(RingHeader<HardwareAtomics>, sleep) == 4 * kRingLine);
static_assert(std::atomic<uint64_t>::is_always_lock_free);
static_assert(std::atomic<uint32_t>::is_always_lock_free);

namespace detail {

inline size_t total(std::span<const iovec> list) {
  size_t sum = 0;
  for (const iovec& part : list) sum += part.iov_len;
  return sum;
}

// Walks through the bytes of a list of buffers.
class IovecWalk {
 public:
  explicit IovecWalk(std::span<const iovec> list) : list_(list) {}
  template <class Use>
  void next(size_t n, Use&& use) {
    while (n != 0) {
      const iovec& part = list_.front();
      const size_t step = std::min(n, part.iov_len - skip_);
      if (step != 0) use(static_cast<std::byte*>(part.iov_base) + skip_, step);
      n -= step;
      skip_ += step;
      if (skip_ == part.iov_len) {
        list_ = list_.subspan(1);
        skip_ = 0;
      }
    }
  }

 private:
  std::span<const iovec> list_;
  size_t skip_ = 0;
};

[[gnu::cold]] inline Status ring_corrupted(const char* cursor) {
  return {Code::kInternal, std::string("the peer wrote an impossible ") + cursor +
                               " cursor into the shared ring; the link cannot go on"};
}

}  // namespace detail

struct RingProbe;  // the model checker's, which compares states

template <class A>
class RingWriter {
 public:
  RingWriter(RingCursors<A>& shared, typename A::Byte* data, size_t capacity)
      : shared_(shared), data_(data), capacity_(capacity) {}

  Result<size_t> write(std::span<const iovec> list) {
    detail::IovecWalk walk(list);
    const size_t wanted = detail::total(list);
    size_t done = 0;
    for (;;) {
      if (room() < wanted - done && !look_for_room()) return detail::ring_corrupted("read");
      if (const size_t n = std::min(room(), wanted - done)) {
        walk.next(n, [this](const std::byte* from, size_t length) { put(from, length); });
        shared_.tail.store(tail_, A::order(RingSite::kStoreTail));
        done += n;
      }
      if (done == wanted) {
        if (blocked_here_) unblock();
        return done;
      }
      const uint64_t seen = head_;
      blocked_here_ = true;
      blocked_.store(seen + 1, std::memory_order_relaxed);
      shared_.wants_space.store(1, std::memory_order_relaxed);
      A::fence(RingSite::kFenceWhenFull);
      if (!look_for_room()) return detail::ring_corrupted("read");
      if (head_ == seen) return done;
    }
  }

  void unblock() {
    blocked_here_ = false;
    blocked_.store(0, std::memory_order_relaxed);
    shared_.wants_space.store(0, std::memory_order_relaxed);
  }

  // From any thread of this end: whether room has come since a write was cut short.
  bool room_has_come() const {
    const uint64_t blocked = blocked_.load(std::memory_order_relaxed);
    return blocked != 0 && shared_.head.load(std::memory_order_relaxed) != blocked - 1;
  }

  bool untaken() const { return shared_.head.load(std::memory_order_relaxed) != tail_; }

 private:
  friend struct RingProbe;

  size_t room() const { return capacity_ - static_cast<size_t>(tail_ - head_); }

  bool look_for_room() {
    const uint64_t head = shared_.head.load(A::order(RingSite::kLoadHead));
    if (head - head_ > tail_ - head_) return false;
    head_ = head;
    return true;
  }

  void put(const std::byte* from, size_t length) {
    const size_t at = static_cast<size_t>(tail_) & (capacity_ - 1);
    const size_t first = std::min(length, capacity_ - at);
    A::copy_in(data_ + at, from, first);
    if (first != length) A::copy_in(data_, from + first, length - first);
    tail_ += length;
  }

  RingCursors<A>& shared_;
  typename A::Byte* const data_;
  const size_t capacity_;
  uint64_t tail_ = 0;
  uint64_t head_ = 0;  // as last seen
  bool blocked_here_ = false;
  // 1 + the head at which a write was cut short, else 0. Private to this end but read by its
  // driver.
  typename A::template Atomic<uint64_t> blocked_{0};
};

template <class A>
class RingReader {
 public:
  RingReader(RingCursors<A>& shared, const typename A::Byte* data, size_t capacity)
      : shared_(shared), data_(data), capacity_(capacity) {}

  Result<size_t> read(std::span<const iovec> list) {
    const size_t wanted = detail::total(list);
    if (available() < wanted) {
      const uint64_t tail = shared_.tail.load(A::order(RingSite::kLoadTail));
      if (tail - head_ > capacity_ || tail - head_ < tail_ - head_)
        return detail::ring_corrupted("write");
      tail_ = tail;
    }
    const size_t n = std::min(available(), wanted);
    if (n != 0) {
      detail::IovecWalk walk(list);
      walk.next(n, [this](std::byte* to, size_t length) { take(to, length); });
      shared_.head.store(head_, A::order(RingSite::kStoreHead));
      freed_ = true;
    }
    return n;
  }

  bool readable() const {
    return tail_ != head_ || shared_.tail.load(std::memory_order_relaxed) != head_;
  }

  // Whether the writer is to be told of room. It is not worth waking while the ring is more than
  // half full, and a reader always empties it before it sleeps.
  bool should_tell_writer() {
    if (!freed_ || available() > capacity_ / 2) return false;
    freed_ = false;
    A::fence(RingSite::kFenceAfterRead);
    return shared_.wants_space.load(std::memory_order_relaxed) != 0;
  }

 private:
  friend struct RingProbe;

  size_t available() const { return static_cast<size_t>(tail_ - head_); }

  void take(std::byte* to, size_t length) {
    const size_t at = static_cast<size_t>(head_) & (capacity_ - 1);
    const size_t first = std::min(length, capacity_ - at);
    A::copy_out(to, data_ + at, first);
    if (first != length) A::copy_out(to + first, data_, length - first);
    head_ += length;
  }

  RingCursors<A>& shared_;
  const typename A::Byte* const data_;
  const size_t capacity_;
  uint64_t head_ = 0;
  uint64_t tail_ = 0;  // as last seen
  bool freed_ = false;
};

// One end of a link's two rings.
template <class A>
class RingPair {
 public:
  // `data`: two areas of `capacity` bytes, a power of two that both ends agreed on before. Side 0
  // is the end that made the memory. Fresh memory only: both ends start at zero.
  RingPair(RingHeader<A>& header, typename A::Byte* data, size_t capacity, int side)
      : mine_(header.sleep[side].word),
        peers_(header.sleep[1 - side].word),
        writer_(header.rings[side], data + static_cast<size_t>(side) * capacity, capacity),
        reader_(header.rings[1 - side], data + static_cast<size_t>(1 - side) * capacity, capacity) {
  }

  // Copies in as much as there is room for and says how many bytes that was. When that is not
  // all, this end will be woken once there is room. INTERNAL: the peer corrupted the ring.
  Result<size_t> write(std::span<const iovec> list) { return writer_.write(list); }
  // After one or more writes: whom to ring, once for each sleep.
  Sleeper after_write() {
    A::fence(RingSite::kFenceAfterWrite);
    return take_sleeper();
  }
  // Whether the peer has yet to read some of it, if it tells the truth.
  bool untaken() const { return writer_.untaken(); }
  // The rest of a write that was cut short is not coming: do not report room for it.
  void abandon() { writer_.unblock(); }

  // Copies out what there is, at most what fits, and says how many bytes that was. INTERNAL: the
  // peer corrupted the ring.
  Result<size_t> read(std::span<const iovec> list) { return reader_.read(list); }
  // After one or more reads, and always before a sleep: whom to ring because there is room again.
  Sleeper after_read() { return reader_.should_tell_writer() ? take_sleeper() : Sleeper::kNone; }
  // One load, for spinning.
  bool readable() const { return reader_.readable(); }

  // Announces that `who` of this end is about to sleep. False when there is something to do
  // already: read, and repeat a write that was cut short. Otherwise sleep: kDriver while
  // sleep_word() is 2, kBackground until the eventfd is written. End each sleep, and a change of
  // mind, with awake().
  bool prepare_sleep(Sleeper who) {
    mine_.store(static_cast<uint32_t>(who), std::memory_order_relaxed);
    A::fence(RingSite::kFenceBeforeSleep);
    if (!reader_.readable() && !writer_.room_has_come()) return true;
    awake();
    return false;
  }
  void awake() { mine_.store(0, std::memory_order_relaxed); }

  // The futex words: ours to wait on, the peer's to wake.
  typename A::template Atomic<uint32_t>& sleep_word() { return mine_; }
  typename A::template Atomic<uint32_t>& peer_sleep_word() { return peers_; }

 private:
  friend struct RingProbe;

  Sleeper take_sleeper() {
    if (peers_.load(std::memory_order_relaxed) == 0) return Sleeper::kNone;
    const uint32_t word = peers_.exchange(0, std::memory_order_relaxed);
    if (word == 0) return Sleeper::kNone;
    return word == static_cast<uint32_t>(Sleeper::kDriver) ? Sleeper::kDriver
                                                           : Sleeper::kBackground;
  }

  typename A::template Atomic<uint32_t>& mine_;
  typename A::template Atomic<uint32_t>& peers_;
  alignas(64) RingWriter<A> writer_;
  alignas(64) RingReader<A> reader_;
};

using ShmRings = RingPair<HardwareAtomics>;

// How the rings lie in their memory file: the header, then from this offset the two data areas.
inline constexpr size_t kRingDataOffset = 4096;
static_assert(sizeof(RingHeader<HardwareAtomics>) <= kRingDataOffset);

inline constexpr size_t kRingSmallest = 4096;
// What a peer writes into rings and its reader does not take is in nobody's budget.
inline constexpr size_t kRingLargest = 64 << 20;

// The capacity of each ring for a wish of so many bytes.
constexpr size_t ring_capacity(size_t wish) {
  return std::bit_ceil(std::clamp(wish, kRingSmallest, kRingLargest));
}
constexpr bool valid_ring_capacity(size_t capacity) {
  return capacity >= kRingSmallest && capacity <= kRingLargest && std::has_single_bit(capacity);
}
constexpr size_t ring_memory_size(size_t capacity) { return kRingDataOffset + 2 * capacity; }

// One end's view of memory of ring_memory_size(capacity) bytes, mapped shared and writable, and
// outliving the view.
inline ShmRings open_rings(std::byte* memory, size_t capacity, int side) {
  return ShmRings(*reinterpret_cast<RingHeader<HardwareAtomics>*>(memory), memory + kRingDataOffset,
                  capacity, side);
}

}  // namespace tw

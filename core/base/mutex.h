// SPDX-License-Identifier: Apache-2.0
// Locks that clang checks (-Wthread-safety): what is TW_GUARDED_BY a mutex is touched only where
// that is held, and a function says by TW_REQUIRES what its caller holds. To other compilers these
// words mean nothing.
//
// Clang knows neither what a constructor or destructor does alone nor what two names of one mutex
// have in common. A lambda is a function of its own and has to say what it requires.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>

#if defined(__clang__)
#define TW_THREAD_SAFETY(...) __attribute__((__VA_ARGS__))
#else
#define TW_THREAD_SAFETY(...)
#endif

// Of a type that can be held.
#define TW_CAPABILITY(name) TW_THREAD_SAFETY(capability(name))
#define TW_SCOPED_CAPABILITY TW_THREAD_SAFETY(scoped_lockable)
// Of a member: its lock; of a pointer, the lock of what it points to.
#define TW_GUARDED_BY(...) TW_THREAD_SAFETY(guarded_by(__VA_ARGS__))
#define TW_PT_GUARDED_BY(...) TW_THREAD_SAFETY(pt_guarded_by(__VA_ARGS__))
// Of a function: the caller holds these; they are held, or free, afterwards.
#define TW_REQUIRES(...) TW_THREAD_SAFETY(requires_capability(__VA_ARGS__))
#define TW_ACQUIRE(...) TW_THREAD_SAFETY(acquire_capability(__VA_ARGS__))
#define TW_TRY_ACQUIRE(...) TW_THREAD_SAFETY(try_acquire_capability(__VA_ARGS__))
#define TW_RELEASE(...) TW_THREAD_SAFETY(release_capability(__VA_ARGS__))
// It is held from here on, as something that clang cannot see has made sure.
#define TW_ASSERT_HELD(...) TW_THREAD_SAFETY(assert_capability(__VA_ARGS__))
// Of a function that gives a reference to a mutex: this one.
#define TW_RETURNS_MUTEX(...) TW_THREAD_SAFETY(lock_returned(__VA_ARGS__))
// Of a function that clang cannot follow; a comment beside it says why.
#define TW_UNCHECKED TW_THREAD_SAFETY(no_thread_safety_analysis)

namespace tw {

class TW_CAPABILITY("mutex") Mutex {
 public:
  Mutex() = default;
  Mutex(const Mutex&) = delete;
  Mutex& operator=(const Mutex&) = delete;

  void lock() TW_ACQUIRE() { mutex_.lock(); }
  bool try_lock() TW_TRY_ACQUIRE(true) { return mutex_.try_lock(); }
  void unlock() TW_RELEASE() { mutex_.unlock(); }
  // In a lambda that is only called while it is held, which clang cannot see.
  void held() const TW_ASSERT_HELD() {}

 private:
  friend class Condition;
  std::mutex mutex_;
};

// Holds it for as long as this lives.
class TW_SCOPED_CAPABILITY MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) TW_ACQUIRE(mutex) : mutex_(mutex) { mutex_.lock(); }
  // The caller has locked it.
  MutexLock(Mutex& mutex, std::adopt_lock_t) TW_REQUIRES(mutex) : mutex_(mutex) {}
  ~MutexLock() TW_RELEASE() { mutex_.unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex& mutex_;
};

// A condition variable. It may wake for nothing: whoever waits looks again.
class Condition {
 public:
  // Gives the mutex back while it waits. False: the time has come.
  template <class Clock, class Duration>
  bool wait_until(Mutex& mutex, std::chrono::time_point<Clock, Duration> time) TW_REQUIRES(mutex) {
    std::unique_lock lock(mutex.mutex_, std::adopt_lock);
    const bool woken = condition_.wait_until(lock, time) == std::cv_status::no_timeout;
    lock.release();
    return woken;
  }
  void wait(Mutex& mutex) TW_REQUIRES(mutex) {
    std::unique_lock lock(mutex.mutex_, std::adopt_lock);
    condition_.wait(lock);
    lock.release();
  }
  void notify_all() { condition_.notify_all(); }

 private:
  std::condition_variable condition_;
};

}  // namespace tw

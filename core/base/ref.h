// SPDX-License-Identifier: Apache-2.0
// Shared ownership by an intrusive count. Ref<T> is one pointer wide.
#pragma once

#include <atomic>
#include <cstdint>
#include <utility>

namespace tw {

class RefCounted {
 public:
  RefCounted() = default;
  RefCounted(const RefCounted&) = delete;
  RefCounted& operator=(const RefCounted&) = delete;

  void retain() const noexcept { count_.fetch_add(1, std::memory_order_relaxed); }
  void release() const noexcept {
    // Nobody but the holder of the only reference can make another one, so that it takes no locked
    // operation to let go of that one; of what is listed, a table can.
    if (count_.load(std::memory_order_acquire) == 1 ||
        (count_.fetch_sub(1, std::memory_order_acq_rel) & ~kListed) == 1)
      const_cast<RefCounted*>(this)->dispose();
  }

 protected:
  virtual ~RefCounted() = default;
  // What happens when the last reference goes; recycling pools override it.
  virtual void dispose() noexcept { delete this; }

 private:
  template <class Base>
  friend class Listed;
  static constexpr uint32_t kListed = uint32_t{1} << 31;
  mutable std::atomic<uint32_t> count_{1};  // with kListed, of one that is
};

// For objects that tables list without owning them.
template <class Base = RefCounted>
class Listed : public Base {
 public:
  template <class... A>
  explicit Listed(A&&... arguments) : Base(std::forward<A>(arguments)...) {
    this->count_.store(RefCounted::kListed | 1, std::memory_order_relaxed);
  }
  // False when the last reference has gone. The caller sees to it that the object itself is still
  // there.
  bool try_retain() const noexcept {
    uint32_t count = this->count_.load(std::memory_order_relaxed);
    while (count != RefCounted::kListed) {
      if (this->count_.compare_exchange_weak(count, count + 1, std::memory_order_relaxed))
        return true;
    }
    return false;
  }
};

template <class T>
class Ref {
 public:
  Ref() = default;
  Ref(std::nullptr_t) {}  // implicit
  // Takes over the reference that the caller (or a fresh object) holds.
  static Ref adopt(T* object) {
    Ref r;
    r.object_ = object;
    return r;
  }
  static Ref share(T* object) {
    if (object) object->retain();
    return adopt(object);
  }
  Ref(const Ref& other) : object_(other.object_) {
    if (object_) object_->retain();
  }
  Ref(Ref&& other) noexcept : object_(std::exchange(other.object_, nullptr)) {}
  template <class U>
  Ref(Ref<U> other) : object_(other.leak()) {}  // implicit up-cast
  Ref& operator=(Ref other) noexcept {
    std::swap(object_, other.object_);
    return *this;
  }
  ~Ref() {
    if (object_) object_->release();
  }

  T* get() const { return object_; }
  T* operator->() const { return object_; }
  T& operator*() const { return *object_; }
  explicit operator bool() const { return object_ != nullptr; }
  T* leak() { return std::exchange(object_, nullptr); }

 private:
  T* object_ = nullptr;
};

template <class T, class... A>
Ref<T> make_ref(A&&... arguments) {
  return Ref<T>::adopt(new T(std::forward<A>(arguments)...));
}

// Keeps some bytes alive; says nothing about where they are.
using Hold = Ref<RefCounted>;

}  // namespace tw

// SPDX-License-Identifier: Apache-2.0
// A list whose first elements lie in itself, so that the usual few need no allocation.
#pragma once

#include <cstddef>
#include <memory>
#include <new>
#include <stdexcept>
#include <type_traits>
#include <utility>

namespace tw {

template <class T, size_t kRoom>
class Few {
 public:
  Few() {}  // not = default: the union has none
  Few(Few&& other) noexcept { take(other); }
  Few& operator=(Few&& other) noexcept {
    if (this == &other) return *this;
    clear();
    let_go();
    take(other);
    return *this;
  }
  ~Few() {
    clear();
    let_go();
  }

  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  T* begin() { return data_; }
  T* end() { return data_ + size_; }
  const T* begin() const { return data_; }
  const T* end() const { return data_ + size_; }
  T* data() { return data_; }
  const T* data() const { return data_; }
  T& operator[](size_t index) { return data_[index]; }
  const T& operator[](size_t index) const { return data_[index]; }
  // std::out_of_range.
  const T& at(size_t index) const {
    if (index >= size_) throw std::out_of_range("there are fewer elements");
    return data_[index];
  }
  T& at(size_t index) { return const_cast<T&>(std::as_const(*this).at(index)); }
  T& back() { return data_[size_ - 1]; }
  const T& back() const { return data_[size_ - 1]; }

  static_assert(std::is_nothrow_move_constructible_v<T>);
  // Room for so many, after which adding them takes no memory. std::bad_alloc: all is as before.
  void reserve(size_t room) {
    if (room <= room_) return;
    T* const wider = std::allocator<T>().allocate(room);
    std::uninitialized_move_n(data_, size_, wider);
    std::destroy_n(data_, size_);
    let_go();
    data_ = wider;
    room_ = room;
  }
  // From nothing that lies in it.
  template <class... A>
  T& emplace_back(A&&... arguments) {
    if (size_ == room_) reserve(2 * room_);
    T* const made = new (data_ + size_) T(std::forward<A>(arguments)...);
    ++size_;
    return *made;
  }
  void push_back(T element) { emplace_back(std::move(element)); }
  void clear() { std::destroy_n(data_, std::exchange(size_, 0)); }

 private:
  bool inside() const { return data_ == few_; }
  // It is empty.
  void let_go() {
    if (!inside()) std::allocator<T>().deallocate(data_, room_);
    data_ = few_;
    room_ = kRoom;
  }
  // It is empty, and has no memory but its own.
  void take(Few& other) noexcept {
    if (other.inside()) {
      std::uninitialized_move_n(other.data_, other.size_, data_);
      size_ = other.size_;
      other.clear();
      return;
    }
    data_ = std::exchange(other.data_, other.few_);
    room_ = std::exchange(other.room_, kRoom);
    size_ = std::exchange(other.size_, 0);
  }

  union {  // those that are used are made
    T few_[kRoom];
  };
  T* data_ = few_;
  size_t size_ = 0;
  size_t room_ = kRoom;
};

}  // namespace tw

// SPDX-License-Identifier: Apache-2.0
// What a link has under way, by its streams.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <utility>

#include "base/ref.h"

namespace tw {

// Each T has a stream() and a place for the table, `T* next_in_table_`: it is in one at most. The
// table takes memory only to grow, and goes on without: more of them share a place then.
template <class T>
class StreamTable {
 public:
  StreamTable() = default;
  StreamTable(const StreamTable&) = delete;
  StreamTable& operator=(const StreamTable&) = delete;
  ~StreamTable() {
    each([](T& one) { one.release(); });
  }

  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  // Nothing of its stream is in the table.
  void add(Ref<T> one) noexcept {
    if (size_ >= places()) grow();
    T*& first = begin()[place_of(one->stream())];
    one->next_in_table_ = first;
    first = one.leak();
    ++size_;
  }
  // Null: nothing of that stream is in the table.
  Ref<T> take(uint64_t stream) {
    for (T** at = &begin()[place_of(stream)]; *at; at = &(*at)->next_in_table_) {
      if ((*at)->stream() != stream) continue;
      --size_;
      return Ref<T>::adopt(std::exchange(*at, (*at)->next_in_table_));
    }
    return nullptr;
  }
  T* find(uint64_t stream) const {
    T* one = begin()[place_of(stream)];
    while (one && one->stream() != stream) one = one->next_in_table_;
    return one;
  }
  void swap(StreamTable& other) {
    std::swap(few_, other.few_);
    std::swap(many_, other.many_);
    std::swap(many_places_, other.many_places_);
    std::swap(size_, other.size_);
  }
  // visit(one), which may put that one elsewhere.
  template <class Visit>
  void each(Visit&& visit) const {
    for (size_t place = 0; place < places(); ++place)
      for (T *one = begin()[place], *next; one; one = next) {
        next = one->next_in_table_;
        visit(*one);
      }
  }

 private:
  static constexpr size_t kFew = 16;

  size_t places() const { return many_ ? many_places_ : kFew; }  // a power of two
  T** begin() { return many_ ? many_.get() : few_; }
  T* const* begin() const { return many_ ? many_.get() : few_; }
  // Streams of one link are numbered one after the other. A peer that numbers them otherwise has
  // its own messages take longer, by as much as it has calls under way.
  size_t place_of(uint64_t stream) const { return stream & (places() - 1); }
  void grow() noexcept {
    const size_t wanted = 2 * places();
    std::unique_ptr<T*[]> wider(new (std::nothrow) T* [wanted] {});
    if (!wider) return;
    each([&](T& one) {
      T*& first = wider[one.stream() & (wanted - 1)];
      one.next_in_table_ = std::exchange(first, &one);
    });
    many_ = std::move(wider);
    many_places_ = wanted;
  }

  T* few_[kFew] = {};
  std::unique_ptr<T*[]> many_;  // instead
  size_t many_places_ = 0;
  size_t size_ = 0;
};

}  // namespace tw

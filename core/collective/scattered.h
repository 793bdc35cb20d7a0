// SPDX-License-Identifier: Apache-2.0
// Bytes that lie in several places and travel as one: the shares of a host's ranks in the array of
// all ranks.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>
#include <span>
#include <vector>

namespace tw::collective {

class Scattered {
 public:
  Scattered() = default;
  Scattered(std::byte* data, size_t size) { add(data, size); }

  // Behind what there is. What lies behind it in memory, too, is in one place with it.
  void add(std::byte* data, size_t size) {
    size_ += size;
    if (size == 0) return;
    if (!places_.empty() && places_.back().data() + places_.back().size() == data)
      places_.back() = {places_.back().data(), places_.back().size() + size};
    else
      places_.emplace_back(data, size);
  }
  size_t size() const { return size_; }

  // use(place, size) for each place of these bytes, in their order.
  template <class Use>
  void each(size_t from, size_t length, Use&& use) const {
    for (const std::span<std::byte> place : places_) {
      if (length == 0) return;
      if (from >= place.size()) {
        from -= place.size();
        continue;
      }
      const size_t size = std::min(length, place.size() - from);
      use(place.data() + from, size);
      from = 0;
      length -= size;
    }
  }
  // Where these bytes lie, if that is one place; else null.
  std::byte* whole(size_t from, size_t length) const {
    std::byte* first = nullptr;
    size_t places = 0;
    each(from, length, [&](std::byte* place, size_t) {
      if (places++ == 0) first = place;
    });
    return places == 1 ? first : nullptr;
  }
  void put(size_t from, std::span<const std::byte> data) const {
    each(from, data.size(), [&](std::byte* place, size_t size) {
      std::memcpy(place, data.data(), size);
      data = data.subspan(size);
    });
  }

 private:
  std::vector<std::span<std::byte>> places_;
  size_t size_ = 0;
};

// Memory for bytes that do not lie in one place and have to, for as long as it lives.
class Packed {
 public:
  // The bytes, where they lie if that is one place.
  const std::byte* of(const Scattered& data, size_t from, size_t length) {
    if (std::byte* const whole = data.whole(from, length); whole || length == 0) return whole;
    std::byte* to = rooms_.emplace_back(std::make_unique_for_overwrite<std::byte[]>(length)).get();
    const std::byte* const packed = to;
    data.each(from, length, [&](const std::byte* place, size_t size) {
      std::memcpy(to, place, size);
      to += size;
    });
    return packed;
  }
  void clear() { rooms_.clear(); }

 private:
  std::vector<std::unique_ptr<std::byte[]>> rooms_;
};

}  // namespace tw::collective

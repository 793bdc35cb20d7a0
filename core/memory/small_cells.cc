// SPDX-License-Identifier: Apache-2.0
#include "memory/small_cells.h"

#include <array>

namespace tw {
namespace {

constexpr std::array<size_t, SmallCells::kClasses> kSizes = {
    64,  128,  192,  256,  320,  384,  448,  512,  640,  768,
    896, 1024, 1280, 1536, 1792, 2048, 2560, 3072, 3584, SmallCells::kLargest};

constexpr auto kClassOf64s = [] {
  std::array<uint8_t, SmallCells::kLargest / 64 + 1> table{};
  uint8_t index = 0;
  for (size_t i = 0; i < table.size(); ++i) {
    if (i * 64 > kSizes[index]) ++index;
    table[i] = index;
  }
  return table;
}();

}  // namespace

SmallCells::SmallCells(size_t cell_size, size_t run, uint32_t slab, size_t offset)
    : cell_(cell_size), slab_(slab), offset_(offset), owners_(run / cell_size, nullptr) {
  free_.reserve(owners_.size());
  for (size_t i = owners_.size(); i-- > 0;) free_.push_back(static_cast<uint16_t>(i));
}

size_t SmallCells::take() {
  const size_t index = free_.back();
  free_.pop_back();
  return offset_ + index * cell_;
}

void SmallCells::give(size_t place) {
  const size_t index = (place - offset_) / cell_;
  owners_[index] = nullptr;
  free_.push_back(static_cast<uint16_t>(index));
}

Block** SmallCells::owner(size_t place) {
  const size_t index = (place - offset_) / cell_;
  return index < owners_.size() ? &owners_[index] : nullptr;
}

size_t SmallCells::class_of(size_t size) { return kClassOf64s[(size + 63) / 64]; }

size_t SmallCells::class_size(size_t index) { return kSizes[index]; }

}  // namespace tw

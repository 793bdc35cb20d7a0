// SPDX-License-Identifier: Apache-2.0
// Small blocks: equal cells in a run of pages that holds nothing else.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace tw {

class Block;

class SmallCells {
 public:
  // `run`: bytes of the pages, which lie `offset` bytes into slab number `slab`.
  SmallCells(size_t cell_size, size_t run, uint32_t slab, size_t offset);

  size_t cell() const { return cell_; }
  uint32_t slab() const { return slab_; }
  size_t offset() const { return offset_; }
  bool full() const { return free_.empty(); }
  bool empty() const { return free_.size() == owners_.size(); }

  // The place in the slab of a free cell; there must be one.
  size_t take();
  void give(size_t place);
  // Where the owner of the cell around `place` is noted; null in the waste behind the last cell.
  Block** owner(size_t place);

  // Cell sizes are multiples of 64, the largest is kLargest.
  static constexpr size_t kLargest = 4032;
  static constexpr size_t kClasses = 20;
  static size_t class_of(size_t size);
  static size_t class_size(size_t index);

  // Index in the book's list of runs with free cells, or kUnlisted.
  static constexpr size_t kUnlisted = ~size_t{0};
  size_t listed = kUnlisted;

 private:
  const size_t cell_;
  const uint32_t slab_;
  const size_t offset_;
  std::vector<Block*> owners_;
  std::vector<uint16_t> free_;
};

}  // namespace tw

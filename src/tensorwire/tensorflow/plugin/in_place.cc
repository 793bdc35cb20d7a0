// SPDX-License-Identifier: Apache-2.0
#include "in_place.h"

#include <atomic>
#include <mutex>
#include <unordered_set>

#include "tensorflow/core/common_runtime/dma_helper.h"

namespace tensorwire {

namespace tf = ::tensorflow;

namespace {

thread_local bool t_outside = false;

// Sequentially consistent: of a writer and a loan that begin together, one sees the other.
std::atomic<size_t> g_writers{0};
std::atomic<size_t> g_loans{0};

struct ReferenceBlocks {
  std::atomic<size_t> size{0};
  std::mutex mutex;  // guards what follows, and the writing of size
  std::unordered_set<const void*> blocks;
};

ReferenceBlocks& reference_blocks() {
  static ReferenceBlocks* const blocks = new ReferenceBlocks;
  return *blocks;
}

}  // namespace

OutsideArena::OutsideArena() : before_(t_outside) { t_outside = true; }
OutsideArena::~OutsideArena() { t_outside = before_; }
bool OutsideArena::now() { return t_outside; }

void reference_block_begins(const void* block) {
  ReferenceBlocks& all = reference_blocks();
  std::lock_guard<std::mutex> lock(all.mutex);
  all.blocks.insert(block);
  all.size.store(all.blocks.size(), std::memory_order_relaxed);
}

void reference_block_ends(const void* block) {
  ReferenceBlocks& all = reference_blocks();
  if (all.size.load(std::memory_order_relaxed) == 0) return;
  std::lock_guard<std::mutex> lock(all.mutex);
  all.blocks.erase(block);
  all.size.store(all.blocks.size(), std::memory_order_relaxed);
}

bool in_reference_block(const tf::Tensor& tensor) {
  ReferenceBlocks& all = reference_blocks();
  // Without elements it has no buffer.
  if (all.size.load(std::memory_order_relaxed) == 0 || tensor.TotalBytes() == 0) return false;
  // What is sent may be a part of what was allocated.
  tf::Tensor sent = tensor;
  const void* const block = tf::DMAHelper::buffer(&sent)->root_buffer()->data();
  std::lock_guard<std::mutex> lock(all.mutex);
  return all.blocks.count(block) != 0;
}

InPlaceWriter::InPlaceWriter() { g_writers.fetch_add(1); }
InPlaceWriter::~InPlaceWriter() { g_writers.fetch_sub(1); }
bool InPlaceWriter::any() { return g_writers.load() != 0; }

bool Loan::begin() {
  g_loans.fetch_add(1);
  began_ = g_writers.load() == 0;
  if (!began_) g_loans.fetch_sub(1);
  return began_;
}

Loan::~Loan() {
  if (began_) g_loans.fetch_sub(1);
}

bool Loan::any() { return g_loans.load() != 0; }

}  // namespace tensorwire

// SPDX-License-Identifier: Apache-2.0
#include "traced.h"

#include <array>
#include <atomic>
#include <deque>
#include <functional>
#include <mutex>
#include <string_view>
#include <utility>
#include <vector>

#include "core.h"
#include "statistics.h"
#include "tensorflow/core/common_runtime/dma_helper.h"
#include "tsl/profiler/lib/scoped_memory_debug_annotation.h"

namespace tensorwire {

namespace tf = ::tensorflow;

namespace {

constexpr size_t kSiteSlots = 1 << 14;
constexpr size_t kMostSites = kSiteSlots / 2;  // so that a search ends soon
constexpr size_t kBlockSets = 1 << 12;
constexpr size_t kWays = 4;
constexpr size_t kMostKept = 1024;

// Older releases of TensorFlow annotate with pointers, which may be null.
[[maybe_unused]] std::string_view text(const char* text) {
  return text ? text : std::string_view();
}
template <class Text>
std::string_view text(const Text& text) {
  return {text.data(), text.size()};
}

uint64_t mix(uint64_t value, uint64_t more) {
  value = (value ^ more) * 0x9e3779b97f4a7c15;
  return value ^ (value >> 32);
}

// Only grows. Readers take no lock: a slot is written once.
class Sites {
 public:
  bool has(Site site) const {
    for (size_t slot = site % kSiteSlots;; slot = (slot + 1) % kSiteSlots) {
      const Site found = slots_[slot].load(std::memory_order_relaxed);
      if (found == site) return true;
      if (found == 0) return false;
    }
  }

  void add(Site site) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (size_ == kMostSites || has(site)) return;
    size_t slot = site % kSiteSlots;
    while (slots_[slot].load(std::memory_order_relaxed) != 0) slot = (slot + 1) % kSiteSlots;
    slots_[slot].store(site, std::memory_order_relaxed);
    ++size_;
    count(statistics().sites_traced);
  }

 private:
  std::array<std::atomic<Site>, kSiteSlots> slots_{};
  std::mutex mutex_;  // guards what follows, and the writing of slots
  size_t size_ = 0;
};

// The sites of live blocks, by address; a cache line for each set of addresses. A live block is
// written and erased by those who own it, so that only its place is contended.
class Blocks {
 public:
  void put(uintptr_t block, Site site) {
    Set& set = set_of(block);
    for (size_t way = 0; way != kWays; ++way) {
      uintptr_t none = 0;
      if (set.blocks[way].compare_exchange_strong(none, kBusy)) return write(set, way, block, site);
    }
    const size_t way = site % kWays;
    uintptr_t victim = set.blocks[way].load();
    if (victim != kBusy && set.blocks[way].compare_exchange_strong(victim, kBusy))
      write(set, way, block, site);
  }

  // The block's site, which is forgotten; 0: it is not remembered.
  Site take(uintptr_t block) {
    Set& set = set_of(block);
    for (size_t way = 0; way != kWays; ++way) {
      if (set.blocks[way].load(std::memory_order_relaxed) != block) continue;
      uintptr_t expected = block;
      if (!set.blocks[way].compare_exchange_strong(expected, kBusy)) return 0;
      const Site site = set.sites[way].load(std::memory_order_relaxed);
      set.blocks[way].store(0, std::memory_order_release);
      return site;
    }
    return 0;
  }

 private:
  static constexpr uintptr_t kBusy = 1;
  struct alignas(64) Set {
    std::array<std::atomic<uintptr_t>, kWays> blocks{};
    std::array<std::atomic<Site>, kWays> sites{};
  };

  Set& set_of(uintptr_t block) { return sets_[(mix(0, block) >> 20) % kBlockSets]; }
  static void write(Set& set, size_t way, uintptr_t block, Site site) {
    set.sites[way].store(site, std::memory_order_relaxed);
    set.blocks[way].store(block, std::memory_order_release);
  }

  std::array<Set, kBlockSets> sets_{};
};

// References to what was sent from ordinary memory. A variable is updated where it is as long as
// nobody else refers to it, and would never leave; so the next update allocates it anew. What
// nobody else refers to any more is let go of.
class Kept {
 public:
  void add(tf::Tensor tensor) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (tensors_.size() < kMostKept) tensors_.push_back(std::move(tensor));
    size_.store(tensors_.size(), std::memory_order_relaxed);
  }

  // Looks at a few; called often.
  void let_go() {
    if (size_.load(std::memory_order_relaxed) == 0) return;
    std::array<tf::Tensor, 2> done;  // freed without the lock
    std::lock_guard<std::mutex> lock(mutex_);
    for (tf::Tensor& tensor : done) {
      if (tensors_.empty()) break;
      tf::Tensor oldest = std::move(tensors_.front());
      tensors_.pop_front();
      if (oldest.RefCountIsOne())
        tensor = std::move(oldest);
      else
        tensors_.push_back(std::move(oldest));
    }
    size_.store(tensors_.size(), std::memory_order_relaxed);
  }

 private:
  std::mutex mutex_;  // guards what follows; size_ is read without it, too
  std::deque<tf::Tensor> tensors_;
  std::atomic<size_t> size_{0};
};

struct Tracing {
  Sites sites;
  Blocks blocks;
  Kept kept;
};

Tracing& tracing() {
  static Tracing* const tracing = new Tracing;
  return *tracing;
}

uintptr_t address(const void* block) { return reinterpret_cast<uintptr_t>(block); }

}  // namespace

Site allocating_site(size_t size) {
  const auto& now = tsl::profiler::ScopedMemoryDebugAnnotation::CurrentAnnotation();
  const std::string_view operation = text(now.pending_op_name);
  Site site = size;
  if (!operation.empty()) {
    const std::hash<std::string_view> hash;
    site = mix(hash(operation), hash(text(now.pending_region_type)));
    site = mix(site, static_cast<uint32_t>(now.pending_data_type));
    site = mix(site, 64 - __builtin_clzll(size));
  }
  return site | 1;
}

bool site_is_traced(Site site) { return tracing().sites.has(site); }

void remember_block(const void* block, Site site) { tracing().blocks.put(address(block), site); }

void forget_block(const void* block) { tracing().blocks.take(address(block)); }

void trace_sent(const tf::Tensor& tensor) {
  if (tensor.TotalBytes() < kSmall) return;
  Tracing& all = tracing();
  all.kept.let_go();
  tf::Tensor sent = tensor;
  // What is sent may be a part of what was allocated.
  const void* const block = tf::DMAHelper::buffer(&sent)->root_buffer()->data();
  const Site site = all.blocks.take(address(block));
  if (site == 0) return;
  all.sites.add(site);
  all.kept.add(std::move(sent));
}

}  // namespace tensorwire

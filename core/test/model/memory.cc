// SPDX-License-Identifier: Apache-2.0
#include "test/model/memory.h"

#include <algorithm>

namespace tw::model {
namespace {

bool acquires(std::memory_order order) {
  return order == std::memory_order_acquire || order == std::memory_order_acq_rel;
}

bool releases(std::memory_order order) {
  return order == std::memory_order_release || order == std::memory_order_acq_rel;
}

}  // namespace

void View::join_oldest(const View& other) {
  for (size_t i = 0; i < kAtomics; ++i) oldest[i] = std::max(oldest[i], other.oldest[i]);
}

void View::join(const View& other) {
  join_oldest(other);
  for (size_t i = 0; i < kThreads; ++i) clock[i] = std::max(clock[i], other.clock[i]);
}

Memory::Memory(const Program& program) : threads_(program.threads.size()) {
  for (size_t i = 0; i < threads_.size(); ++i) threads_[i].now.clock[i] = 1;
  for (const uint64_t initial : program.atomics) atomics_.push_back({Store{initial, false, {}}});
  for (const uint8_t initial : program.plains) {
    plains_.emplace_back();
    plains_.back().value = initial;
  }
}

uint64_t Memory::load(size_t thread, const Op& op, size_t index) {
  Thread& self = threads_[thread];
  const Store& store = atomics_[op.target][index];
  self.now.oldest[op.target] = std::max(self.now.oldest[op.target], static_cast<uint8_t>(index));
  (acquires(op.order) ? self.now : self.acquired).join(store.view);
  return store.value;
}

void Memory::store(size_t thread, const Op& op, size_t index) {
  put(thread, op.target, index, Store{op.value, false, {}}, releases(op.order));
}

uint64_t Memory::update(size_t thread, const Op& op, size_t index) {
  const Store read = atomics_[op.target][index];
  const uint64_t old = load(thread, op, index);
  const uint64_t value = op.kind == OpKind::kFetchAdd ? old + op.value : op.value;
  // It continues the release sequence of the store that it has read.
  put(thread, op.target, index + 1, Store{value, true, read.view}, releases(op.order));
  return old;
}

void Memory::put(size_t thread, uint8_t location, size_t index, const Store& store, bool release) {
  Thread& self = threads_[thread];
  auto& order = atomics_[location];
  if (index < order.size()) {
    each_view([location, index](View& view) {
      if (view.oldest[location] >= index) ++view.oldest[location];
    });
  }
  const auto place = order.insert(order.begin() + static_cast<long>(index), store);
  self.now.oldest[location] = static_cast<uint8_t>(index);
  place->view.join(release ? self.now : self.released);
  place->view.oldest[location] = static_cast<uint8_t>(index);
  ++self.now.clock[thread];
}

void Memory::fence(size_t thread) {
  Thread& self = threads_[thread];
  self.now.join(self.acquired);
  self.now.join_oldest(fences_);
  fences_.join_oldest(self.now);
  self.released = self.now;
  ++self.now.clock[thread];
}

void Memory::enter_kernel(size_t thread) {
  fence(thread);
  threads_[thread].now.join_oldest(kernel_);
  kernel_.join_oldest(threads_[thread].now);
}

void Memory::ring(size_t thread, size_t bell) {
  bells_[bell].join(threads_[thread].now);
  ++threads_[thread].now.clock[thread];
}

bool Memory::plain_read(size_t thread, uint8_t at, uint64_t& value) {
  PlainByte& byte = plains_[at];
  const View& now = threads_[thread].now;
  if (byte.write_clock > now.clock[byte.writer]) return false;
  byte.read_clock[thread] = now.clock[thread];
  value = byte.value;
  return true;
}

bool Memory::plain_write(size_t thread, uint8_t at, uint8_t value) {
  PlainByte& byte = plains_[at];
  const View& now = threads_[thread].now;
  if (byte.write_clock > now.clock[byte.writer]) return false;
  for (size_t i = 0; i < kThreads; ++i)
    if (byte.read_clock[i] > now.clock[i]) return false;
  // Readers so far have happened before; whoever is ordered after this write is after them too.
  byte = {value, static_cast<uint8_t>(thread), now.clock[thread], {}};
  return true;
}

void Memory::thread_ended(size_t thread) {
  threads_[thread] = {};
  threads_[thread].ended = true;
}

template <class Visit>
void Memory::each_view(Visit&& visit) {
  for (Thread& thread : threads_) {
    visit(thread.now);
    visit(thread.acquired);
    visit(thread.released);
  }
  for (auto& order : atomics_)
    for (Store& store : order) visit(store.view);
  for (View& bell : bells_) visit(bell);
  visit(kernel_);
  visit(fences_);
}

void Memory::forget() {
  forget_stores();
  for (size_t thread = 0; thread < threads_.size(); ++thread) forget_clocks(thread);
  for (Thread& thread : threads_) {
    // An acquire fence adds only what the thread does not know yet.
    for (size_t i = 0; i < kAtomics; ++i)
      if (thread.acquired.oldest[i] <= thread.now.oldest[i]) thread.acquired.oldest[i] = 0;
    for (size_t i = 0; i < kThreads; ++i)
      if (thread.acquired.clock[i] <= thread.now.clock[i]) thread.acquired.clock[i] = 0;
  }
}

// Stores that no thread can read any more.
void Memory::forget_stores() {
  for (size_t location = 0; location < atomics_.size(); ++location) {
    auto& order = atomics_[location];
    size_t first = order.size() - 1;
    for (const Thread& thread : threads_)
      if (!thread.ended) first = std::min<size_t>(first, thread.now.oldest[location]);
    if (first == 0) continue;
    order.erase(order.begin(), order.begin() + static_cast<long>(first));
    order.front().update = false;
    each_view([location, first](View& view) {
      uint8_t& oldest = view.oldest[location];
      oldest = static_cast<uint8_t>(oldest > first ? oldest - first : 0);
    });
  }
}

uint8_t Memory::known_to_all(size_t of) const {
  uint8_t least = 255;
  for (size_t i = 0; i < threads_.size(); ++i)
    if (i != of && !threads_[i].ended) least = std::min(least, threads_[i].now.clock[of]);
  return least;
}

// A clock is only ever compared with the times at which `of` touched plain bytes: renumbers these.
void Memory::forget_clocks(size_t of) {
  const uint8_t known = known_to_all(of);
  std::vector<uint8_t> times = {threads_[of].now.clock[of]};
  for (PlainByte& byte : plains_) {
    uint8_t& read = byte.read_clock[of];
    if (read <= known) read = 0;
    if (read != 0) times.push_back(read);
    if (byte.writer != of) continue;
    if (byte.write_clock <= known) byte.write_clock = 0;
    if (byte.write_clock != 0) times.push_back(byte.write_clock);
  }
  std::sort(times.begin(), times.end());
  times.erase(std::unique(times.begin(), times.end()), times.end());
  const auto rank = [&times](uint8_t& clock) {
    clock =
        static_cast<uint8_t>(std::upper_bound(times.begin(), times.end(), clock) - times.begin());
  };
  each_view([of, rank](View& view) { rank(view.clock[of]); });
  for (PlainByte& byte : plains_) {
    rank(byte.read_clock[of]);
    if (byte.writer == of) rank(byte.write_clock);
  }
  const uint8_t least = known_to_all(of);
  const auto drop = [of, least](View& view) {
    if (view.clock[of] <= least) view.clock[of] = 0;
  };
  for (auto& order : atomics_)
    for (Store& store : order) drop(store.view);
  for (Thread& thread : threads_) drop(thread.released);
  for (View& bell : bells_) drop(bell);
}

void Memory::describe(std::vector<uint8_t>& out) const {
  const auto add_view = [&out](const View& view) {
    out.insert(out.end(), view.oldest.begin(), view.oldest.end());
    out.insert(out.end(), view.clock.begin(), view.clock.end());
  };
  for (const Thread& thread : threads_) {
    add_view(thread.now);
    add_view(thread.acquired);
    add_view(thread.released);
  }
  for (const auto& order : atomics_) {
    out.push_back(static_cast<uint8_t>(order.size()));
    for (const Store& store : order) {
      const auto* const value = reinterpret_cast<const uint8_t*>(&store.value);
      out.insert(out.end(), value, value + sizeof store.value);
      out.push_back(store.update);
      add_view(store.view);
    }
  }
  for (const PlainByte& byte : plains_) {
    out.insert(out.end(), {byte.value, byte.writer, byte.write_clock});
    out.insert(out.end(), byte.read_clock.begin(), byte.read_clock.end());
  }
  for (const View& bell : bells_) add_view(bell);
  add_view(kernel_);
  add_view(fences_);
}

}  // namespace tw::model

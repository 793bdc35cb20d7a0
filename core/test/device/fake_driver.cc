// SPDX-License-Identifier: Apache-2.0
#include "test/device/fake_driver.h"

#include <doctest/doctest.h>
#include <sys/mman.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <random>

#include "base/text.h"
#include "collective/device_reduction.h"
#include "collective/reduction.h"

namespace tw::test {

using device::Allocation;
using device::IpcHandle;
using device::Kernel;
using device::Stream;
using device::StreamEvent;

namespace {

constexpr size_t kPage = 4096;
size_t reserved(size_t bytes) { return (std::max<size_t>(bytes, 1) + kPage - 1) / kPage * kPage; }

}  // namespace

FakeDriver::FakeDriver(FakeHost& host, int devices, unsigned delay_us, unsigned seed)
    : host_(host), devices_(devices), delay_us_(delay_us), seed_(seed) {}

FakeDriver::~FakeDriver() {
  std::vector<std::thread> threads;
  {
    const std::lock_guard lock(mutex_);
    for (auto& [key, queue] : streams_) {
      queue->ends = true;
      threads.push_back(std::move(queue->thread));
    }
    changed_.notify_all();
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& [base, memory] : memory_)
    munmap(reinterpret_cast<void*>(base), reserved(memory.block->size()));
  for (const auto& [bytes, all] : unused_)
    for (std::byte* const address : all) munmap(address, bytes);
}

std::byte* FakeDriver::map(Memory memory, size_t bytes) {
  const size_t size = reserved(bytes);
  std::byte* address = nullptr;
  if (auto& free = unused_[size]; !free.empty()) {
    address = free.back();
    free.pop_back();
  } else {
    address = static_cast<std::byte*>(
        mmap(nullptr, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    REQUIRE(address != MAP_FAILED);
  }
  {
    const std::lock_guard shared(host_.mutex_);
    memory.id = ++host_.last_;
  }
  memory_[reinterpret_cast<uintptr_t>(address)] = std::move(memory);
  return address;
}

std::byte* FakeDriver::allocate(int device, size_t bytes, bool exportable) {
  const std::lock_guard lock(mutex_);
  auto block = std::make_shared<FakeHost::Block>(bytes, std::byte{0xa5});
  return map({std::move(block), device, exportable, false}, bytes);
}

void FakeDriver::free(std::byte* address) {
  const std::lock_guard lock(mutex_);
  const auto found = memory_.find(reinterpret_cast<uintptr_t>(address));
  REQUIRE(found != memory_.end());
  unused_[reserved(found->second.block->size())].push_back(address);
  memory_.erase(found);
}

void FakeDriver::write(std::byte* to, const void* from, size_t bytes) {
  const std::lock_guard lock(mutex_);
  std::byte* const there = reached(to, bytes);
  REQUIRE(there != nullptr);
  const std::lock_guard bus(host_.bus_);
  if (bytes != 0) std::memcpy(there, from, bytes);
}

void FakeDriver::read(void* to, const std::byte* from, size_t bytes) {
  const std::lock_guard lock(mutex_);
  const std::byte* const there = reached(from, bytes);
  REQUIRE(there != nullptr);
  const std::lock_guard bus(host_.bus_);
  if (bytes != 0) std::memcpy(to, there, bytes);
}

void FakeDriver::write_later(Stream stream, std::byte* to, std::vector<std::byte> bytes) {
  const std::lock_guard lock(mutex_);
  push(stream, [this, to, bytes = std::move(bytes)] {
    if (std::byte* const there = reached(to, bytes.size()))
      std::memcpy(there, bytes.data(), bytes.size());
    else
      broken("a program wrote where it has no memory");
  });
}

void FakeDriver::hold(Stream stream, bool held) {
  const std::lock_guard lock(mutex_);
  queue(stream).held = held;
  changed_.notify_all();
}

void FakeDriver::fail(const std::string& function, Status how, int others) {
  const std::lock_guard lock(mutex_);
  injected_.push_back({function, std::move(how), others});
}

int FakeDriver::calls(const std::string& function) {
  const std::lock_guard lock(mutex_);
  return calls_[function];
}

size_t FakeDriver::leftovers() {
  const std::lock_guard lock(mutex_);
  return streams_.size() - streams_.count(0) + events_.size() + memory_.size() + pinned_.size();
}

Status FakeDriver::health() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return pending_ == 0; });
  return broken_;
}

Status FakeDriver::called(const char* function) {
  ++calls_[function];
  for (auto at = injected_.begin(); at != injected_.end(); ++at)
    if (at->function == function && at->others-- == 0) {
      const Status how = at->how;
      injected_.erase(at);
      return how;
    }
  return broken_;
}

std::byte* FakeDriver::reached(const std::byte* address, size_t bytes) {
  const auto number = reinterpret_cast<uintptr_t>(address);
  const auto within = [&](auto& all, auto&& block_of) -> std::byte* {
    auto after = all.upper_bound(number);
    if (after == all.begin()) return nullptr;
    auto& [base, value] = *std::prev(after);
    auto& block = block_of(value);
    const size_t offset = number - base;
    return offset <= block.size() && bytes <= block.size() - offset ? block.data() + offset
                                                                    : nullptr;
  };
  if (std::byte* const there =
          within(memory_, [](Memory& memory) -> FakeHost::Block& { return *memory.block; }))
    return there;
  return within(pinned_, [](std::vector<std::byte>& block) -> auto& { return block; });
}

void FakeDriver::broken(const std::string& what) {
  if (broken_.ok()) broken_ = {Code::kInternal, "an illegal address: " + what};
}

FakeDriver::Queue& FakeDriver::queue(Stream stream) {
  const auto key = static_cast<uintptr_t>(stream);
  std::unique_ptr<Queue>& found = streams_[key];
  if (!found) {
    found = std::make_unique<Queue>();
    found->thread =
        std::thread([this, &made = *found, key] { run(made, seed_ + static_cast<unsigned>(key)); });
  }
  return *found;
}

void FakeDriver::push(Stream stream, std::function<void()> work) {
  queue(stream).work.push_back(std::move(work));
  ++pending_;
  changed_.notify_all();
}

void FakeDriver::run(Queue& queue, unsigned seed) {
  std::minstd_rand random(seed);
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return queue.ends || (!queue.held && !queue.work.empty()); });
    if (queue.ends) return;
    lock.unlock();
    if (delay_us_ != 0)
      std::this_thread::sleep_for(std::chrono::microseconds(random() % delay_us_));
    lock.lock();
    if (queue.held || queue.ends) continue;
    auto work = std::move(queue.work.front());
    queue.work.pop_front();
    queue.running = true;
    if (Status how = called("stream"); !how.ok()) {
      broken_ = std::move(how);
    } else {
      const std::lock_guard bus(host_.bus_);
      work();
    }
    queue.running = false;
    --pending_;
    changed_.notify_all();
  }
}

Result<Allocation> FakeDriver::allocation_of(const void* pointer) {
  const std::lock_guard lock(mutex_);
  if (Status how = called("allocation_of"); !how.ok()) return how;
  return allocation(pointer);
}

Result<uint64_t> FakeDriver::allocation_id(const void* pointer) {
  const std::lock_guard lock(mutex_);
  if (Status how = called("allocation_id"); !how.ok()) return how;
  return allocation(pointer).id;
}

Allocation FakeDriver::allocation(const void* pointer) const {
  const auto number = reinterpret_cast<uintptr_t>(pointer);
  const auto after = memory_.upper_bound(number);
  if (after == memory_.begin()) return Allocation{};
  const auto& [base, memory] = *std::prev(after);
  if (number - base >= memory.block->size()) return Allocation{};
  return Allocation{device::Space::kDevice, memory.device,     reinterpret_cast<std::byte*>(base),
                    memory.block->size(),   memory.exportable, memory.id};
}

Result<Stream> FakeDriver::create_stream(int) {
  const std::lock_guard lock(mutex_);
  if (Status how = called("create_stream"); !how.ok()) return how;
  const Stream made{++last_};
  queue(made);
  return made;
}

// What is queued still runs, as with the real one; the thread ends with the driver.
void FakeDriver::destroy_stream(int, Stream stream) {
  std::unique_lock lock(mutex_);
  const auto found = streams_.find(static_cast<uintptr_t>(stream));
  REQUIRE(found != streams_.end());
  Queue& queue = *found->second;
  changed_.wait(lock, [&] { return queue.work.empty(); });
  queue.ends = true;
  changed_.notify_all();
  std::thread thread = std::move(queue.thread);
  lock.unlock();
  thread.join();
  lock.lock();
  streams_.erase(static_cast<uintptr_t>(stream));
}

Result<bool> FakeDriver::idle(int, Stream stream) {
  const std::lock_guard lock(mutex_);
  if (Status how = called("idle"); !how.ok()) return how;
  const Queue& asked = queue(stream);
  return asked.work.empty() && !asked.running;
}

Result<StreamEvent> FakeDriver::create_event(int) {
  const std::lock_guard lock(mutex_);
  if (Status how = called("create_event"); !how.ok()) return how;
  events_[++last_] = std::make_shared<bool>(true);
  return StreamEvent{last_};
}

void FakeDriver::destroy_event(int, StreamEvent event) {
  const std::lock_guard lock(mutex_);
  REQUIRE(events_.erase(static_cast<uintptr_t>(event)) == 1);
}

Status FakeDriver::record(int, StreamEvent event, Stream stream) {
  const std::lock_guard lock(mutex_);
  if (Status how = called("record"); !how.ok()) return how;
  const auto place = std::make_shared<bool>(false);
  events_.at(static_cast<uintptr_t>(event)) = place;
  push(stream, [place] { *place = true; });
  return {};
}

Result<bool> FakeDriver::happened(int, StreamEvent event) {
  const std::lock_guard lock(mutex_);
  if (Status how = called("happened"); !how.ok()) return how;
  return *events_.at(static_cast<uintptr_t>(event));
}

Status FakeDriver::copy(int, std::byte* to, const std::byte* from, size_t bytes, Stream stream) {
  const std::lock_guard lock(mutex_);
  if (Status how = called("copy"); !how.ok()) return how;
  push(stream, [=, this] {
    std::byte* const there = reached(to, bytes);
    const std::byte* const here = reached(from, bytes);
    if (!there || !here) return broken("of a copy");
    std::memmove(there, here, bytes);
  });
  return {};
}

Result<std::byte*> FakeDriver::allocate_pinned(int, size_t bytes) {
  const std::lock_guard lock(mutex_);
  if (Status how = called("allocate_pinned"); !how.ok()) return how;
  std::vector<std::byte> block(bytes, std::byte{0x5a});
  std::byte* const memory = block.data();
  pinned_.emplace(reinterpret_cast<uintptr_t>(memory), std::move(block));
  return memory;
}

void FakeDriver::free_pinned(int, std::byte* memory) {
  const std::lock_guard lock(mutex_);
  REQUIRE(pinned_.erase(reinterpret_cast<uintptr_t>(memory)) == 1);
}

Result<IpcHandle> FakeDriver::export_memory(int, const std::byte* base) {
  const std::lock_guard lock(mutex_);
  if (Status how = called("export_memory"); !how.ok()) return how;
  const auto found = memory_.find(reinterpret_cast<uintptr_t>(base));
  if (found == memory_.end() || !found->second.exportable)
    return Status{Code::kInternal, "this memory cannot be exported"};
  const std::lock_guard shared(host_.mutex_);
  const uint64_t number = found->second.id;
  host_.exported_[number] = found->second.block;
  IpcHandle handle{};
  std::memcpy(handle.data(), &number, sizeof number);
  return handle;
}

Result<std::byte*> FakeDriver::import_memory(int device, const IpcHandle& handle) {
  const std::lock_guard lock(mutex_);
  if (Status how = called("import_memory"); !how.ok()) return how;
  uint64_t number;
  std::memcpy(&number, handle.data(), sizeof number);
  std::shared_ptr<FakeHost::Block> block;
  {
    const std::lock_guard shared(host_.mutex_);
    block = host_.exported_[number].lock();
  }
  if (!block) return Status{Code::kInternal, "there is no such memory"};
  const size_t bytes = block->size();
  return map({std::move(block), device, false, true}, bytes);
}

void FakeDriver::close_memory(int, std::byte* base) {
  {
    const std::lock_guard lock(mutex_);
    REQUIRE(memory_.at(reinterpret_cast<uintptr_t>(base)).imported);
  }
  free(base);
}

Result<Kernel> FakeDriver::load(int, const device::KernelSource& source) {
  const std::lock_guard lock(mutex_);
  if (Status how = called("load"); !how.ok()) return how;
  uintptr_t type = kDataTypes, op = kReduceOps, scaled = 2;
  for (const std::string& macro : source.macros) {
    const size_t value = macro.find('=') + 1;
    uintptr_t& into = macro.starts_with("TW_TYPE=") ? type
                      : macro.starts_with("TW_OP=") ? op
                                                    : scaled;
    std::from_chars(macro.data() + value, macro.data() + macro.size(), into);
  }
  REQUIRE(type < kDataTypes);
  REQUIRE(op < kReduceOps);
  REQUIRE(scaled < 2);
  return Kernel{1 + (type * kReduceOps + op) * 2 + scaled};
}

Status FakeDriver::launch(int, Kernel kernel, unsigned, unsigned, const void* arguments,
                          size_t arguments_size, Stream stream) {
  const std::lock_guard lock(mutex_);
  if (Status how = called("launch"); !how.ok()) return how;
  collective::ReductionArguments given;
  REQUIRE(arguments_size == sizeof given);
  std::memcpy(&given, arguments, sizeof given);
  const bool scaled = (static_cast<uintptr_t>(kernel) - 1) % 2 != 0;
  const uintptr_t number = (static_cast<uintptr_t>(kernel) - 1) / 2;
  const auto type = static_cast<DataType>(number / kReduceOps);
  const auto op = static_cast<ReduceOp>(number % kReduceOps);
  push(stream, [=, this] {
    const size_t bytes = given.count * size_of(type);
    std::vector<const std::byte*> in;
    for (unsigned i = 0; i < given.inputs; ++i) in.push_back(reached(given.in[i], bytes));
    std::byte* const out = reached(given.out, bytes);
    if (!out || std::ranges::find(in, nullptr) != in.end()) return broken("of a kernel");
    std::vector<std::vector<std::byte>> made(scaled ? in.size() : 0, std::vector<std::byte>(bytes));
    for (size_t i = 0; i < made.size(); ++i) {
      tw::scale(type, given.factors[i], in[i], made[i].data(), given.count);
      in[i] = made[i].data();
    }
    tw::reduce(type, op, in, out, given.count, given.ranks);
  });
  return {};
}

}  // namespace tw::test

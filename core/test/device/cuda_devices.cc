// SPDX-License-Identifier: Apache-2.0
// CUDA's driver and a real device. Without one these cases end at once.
#include <dlfcn.h>
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "collective/device_reduction.h"
#include "collective/reduction.h"
#include "device/cuda_driver.h"
#include "device/cuda_functions.h"
#include "test/not_tried.h"
#include "test/process.h"

namespace tw::test {
namespace {

using collective::DeviceReduction;
using device::Allocation;
using device::Driver;
using device::OwnedEvent;
using device::OwnedStream;
using device::PinnedMemory;
using device::Space;
using device::Stream;
using device::cuda::Error;
using Bytes = std::vector<std::byte>;

// What programs call, and the core does not.
class Program {
 public:
  // Null: there is no device here.
  static Program* here() {
    static Program* const made = device::cuda_driver() ? new Program : nullptr;
    if (!made) not_tried("there is no CUDA device");
    return made;
  }

  Driver& driver;

  std::byte* allocate(size_t bytes) {
    uint64_t pointer = 0;
    REQUIRE(on([&] { return alloc_(&pointer, bytes); }) == Error::kSuccess);
    return std::bit_cast<std::byte*>(pointer);
  }
  std::byte* allocate_managed(size_t bytes) {
    uint64_t pointer = 0;
    REQUIRE(on([&] { return alloc_managed_(&pointer, bytes, 1); }) == Error::kSuccess);
    return std::bit_cast<std::byte*>(pointer);
  }
  std::byte* allocate_of_pool(size_t bytes) {
    uint64_t pointer = 0;
    REQUIRE(on([&] { return alloc_async_(&pointer, bytes, nullptr); }) == Error::kSuccess);
    return std::bit_cast<std::byte*>(pointer);
  }
  void free(std::byte* pointer) {
    CHECK(on([&] { return free_(number(pointer)); }) == Error::kSuccess);
  }
  void write(std::byte* to, const Bytes& values) {
    REQUIRE(on([&] { return copy_(number(to), number(values.data()), values.size()); }) ==
            Error::kSuccess);
  }
  Bytes read(const std::byte* from, size_t size) {
    Bytes values(size);
    REQUIRE(on([&] { return copy_(number(values.data()), number(from), size); }) ==
            Error::kSuccess);
    return values;
  }

  // Memory that is reserved, made and mapped, as PyTorch's expandable segments are.
  struct Location {
    int type = 1, device = 0;
  };
  struct Properties {
    int type = 1, handles = 0;
    Location location;
    void* windows = nullptr;
    std::array<unsigned char, 8> flags{};
  };
  struct Access {
    Location location;
    int flags = 3;
  };
  std::byte* map(size_t bytes) {
    uint64_t made = 0, pointer = 0;
    const Properties properties;
    const Access access;
    REQUIRE(on([&] { return create_(&made, bytes, &properties, 0); }) == Error::kSuccess);
    REQUIRE(on([&] { return reserve_(&pointer, bytes, 0, 0, 0); }) == Error::kSuccess);
    REQUIRE(on([&] { return map_(pointer, bytes, 0, made, 0); }) == Error::kSuccess);
    REQUIRE(on([&] { return allow_(pointer, bytes, &access, 1); }) == Error::kSuccess);
    return std::bit_cast<std::byte*>(pointer);
  }

 private:
  Program() : driver(**device::cuda_driver()) {
    void* const library = dlopen("libcuda.so.1", RTLD_NOW);
    const auto find = [&](auto& function, const char* name) {
      function =
          reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
      if (!function) FAIL("libcuda.so.1 lacks " << name);
    };
    const auto functions = device::cuda::Functions::load("libcuda.so.1");
    REQUIRE(functions);
    cuda_ = *functions;
    int handle = 0;
    REQUIRE(cuda_.device_get(&handle, 0) == Error::kSuccess);
    REQUIRE(cuda_.primary_context_retain(&context_, handle) == Error::kSuccess);
    find(alloc_, "cuMemAlloc_v2");
    find(alloc_managed_, "cuMemAllocManaged");
    find(alloc_async_, "cuMemAllocAsync");
    find(free_, "cuMemFree_v2");
    find(copy_, "cuMemcpy");
    find(create_, "cuMemCreate");
    find(reserve_, "cuMemAddressReserve");
    find(map_, "cuMemMap");
    find(allow_, "cuMemSetAccess");
  }
  static uint64_t number(const std::byte* pointer) { return reinterpret_cast<uintptr_t>(pointer); }
  template <class Call>
  Error on(Call&& call) {
    REQUIRE(cuda_.context_push(context_) == Error::kSuccess);
    const Error error = call();
    device::cuda::Context left = nullptr;
    cuda_.context_pop(&left);
    return error;
  }

  device::cuda::Functions cuda_;
  device::cuda::Context context_ = nullptr;
  Error (*alloc_)(uint64_t*, size_t) = nullptr;
  Error (*alloc_managed_)(uint64_t*, size_t, unsigned) = nullptr;
  Error (*alloc_async_)(uint64_t*, size_t, void*) = nullptr;
  Error (*free_)(uint64_t) = nullptr;
  Error (*copy_)(uint64_t, uint64_t, size_t) = nullptr;
  Error (*create_)(uint64_t*, size_t, const Properties*, unsigned long long) = nullptr;
  Error (*reserve_)(uint64_t*, size_t, size_t, uint64_t, unsigned long long) = nullptr;
  Error (*map_)(uint64_t, size_t, size_t, uint64_t, unsigned long long) = nullptr;
  Error (*allow_)(uint64_t, size_t, const Access*, size_t) = nullptr;
};

Bytes pattern(size_t size, unsigned seed) {
  std::mt19937 random(seed);
  Bytes made(size);
  for (std::byte& each : made) each = static_cast<std::byte>(random());
  return made;
}

// A stream, and an event to wait for it.
class Queue {
 public:
  explicit Queue(Driver& driver) : driver_(driver) {
    const auto stream = driver.create_stream(0);
    REQUIRE_MESSAGE(stream.ok(), stream.status().details());
    stream_ = OwnedStream(driver, 0, *stream);
    const auto event = driver.create_event(0);
    REQUIRE_MESSAGE(event.ok(), event.status().details());
    event_ = OwnedEvent(driver, 0, *event);
  }
  Stream stream() const { return stream_.get(); }
  device::StreamEvent event() const { return event_.get(); }
  Status end() {
    if (Status status = driver_.record(0, event_.get(), stream_.get()); !status.ok()) return status;
    for (;;) {
      const auto happened = driver_.happened(0, event_.get());
      if (!happened) return happened.status();
      if (*happened) return {};
      std::this_thread::yield();
    }
  }

 private:
  Driver& driver_;
  OwnedStream stream_;
  OwnedEvent event_;
};

constexpr size_t kBytes = 4 << 20;
// The small one shares a page with another.
constexpr size_t kExported[] = {kBytes, 1000, 20 << 20};

TEST_CASE("CUDA: the driver tells where each kind of memory lies") {
  Program* const program = Program::here();
  if (!program) return;
  Driver& driver = program->driver;
  const auto ask = [&](const void* pointer) {
    const auto found = driver.allocation_of(pointer);
    REQUIRE_MESSAGE(found.ok(), found.status().details());
    const auto id = driver.allocation_id(pointer);
    REQUIRE_MESSAGE(id.ok(), id.status().details());
    if (found->space == Space::kDevice) CHECK(*id == found->id);
    return *found;
  };

  SUBCASE("a device's") {
    std::byte* const memory = program->allocate(kBytes);
    for (const size_t at : {size_t{0}, size_t{1}, kBytes / 2, kBytes - 1}) {
      const Allocation found = ask(memory + at);
      CHECK(found.space == Space::kDevice);
      CHECK(found.device == 0);
      CHECK(found.base == memory);
      CHECK(found.size >= kBytes);
      CHECK(found.exportable);
    }
    program->free(memory);
    CHECK(ask(memory).space == Space::kHost);
  }
  SUBCASE("a small one of a device, which has its own beginning") {
    std::byte* const first = program->allocate(1000);
    std::byte* const second = program->allocate(1000);
    CHECK(ask(first + 999).base == first);
    CHECK(ask(second + 999).base == second);
    CHECK(ask(second).exportable);
    program->free(first);
    program->free(second);
  }
  SUBCASE("of a pool, and mapped: not exportable") {
    std::byte* const pooled = program->allocate_of_pool(kBytes);
    std::byte* const mapped = program->map(kBytes);
    for (const std::byte* each : {pooled, mapped}) {
      const Allocation found = ask(each + 5);
      CHECK(found.space == Space::kDevice);
      CHECK(found.device == 0);
      CHECK_FALSE(found.exportable);
    }
  }
  SUBCASE("the host's") {
    std::byte* const managed = program->allocate_managed(kBytes);
    const auto pinned = driver.allocate_pinned(0, kBytes);
    REQUIRE(pinned);
    const PinnedMemory owned(driver, 0, *pinned);
    const Bytes ordinary(kBytes);
    const int local = 0;
    for (const void* each :
         {static_cast<const void*>(managed + 5), static_cast<const void*>(*pinned + 5),
          static_cast<const void*>(ordinary.data() + 5), static_cast<const void*>(&local),
          static_cast<const void*>(nullptr)})
      CHECK(ask(each).space == Space::kHost);
    program->free(managed);
  }
}

TEST_CASE("CUDA: copies go in the order of a stream, and events tell when") {
  Program* const program = Program::here();
  if (!program) return;
  Driver& driver = program->driver;
  const Queue queue(driver);
  CHECK(*driver.happened(0, queue.event()));
  const auto pinned = driver.allocate_pinned(0, 2 * kBytes);
  REQUIRE(pinned);
  const PinnedMemory owned(driver, 0, *pinned);
  std::byte* const first = program->allocate(kBytes);
  std::byte* const second = program->allocate(kBytes);
  const Bytes values = pattern(kBytes, 1);
  std::memcpy(*pinned, values.data(), kBytes);
  Queue same(driver);
  CHECK(driver.copy(0, first, *pinned, kBytes, same.stream()).ok());
  CHECK(driver.copy(0, second, first, kBytes, same.stream()).ok());
  CHECK(driver.copy(0, *pinned + kBytes, second, kBytes, same.stream()).ok());
  CHECK(same.end().ok());
  CHECK(std::memcmp(*pinned + kBytes, values.data(), kBytes) == 0);
  CHECK(program->read(second, kBytes) == values);
  // Those of few bytes go another way.
  for (const size_t bytes : {1, 2, 3, 8, 20'480, 32'766, 32'768}) {
    CAPTURE(bytes);
    const Bytes few = pattern(bytes, 7);
    std::memcpy(*pinned, few.data(), bytes);
    CHECK(driver.upload(0, first, *pinned, bytes, same.stream()).ok());
    CHECK(same.end().ok());
    CHECK(program->read(first, bytes) == few);
    CHECK(program->read(first + bytes, 1) == Bytes{values[bytes]});
    CHECK(driver.copy(0, first, second, kBytes, same.stream()).ok());
  }
  // The default stream, by its number.
  CHECK(driver.copy(0, first, *pinned, 3, Stream{}).ok());
  CHECK(driver.record(0, queue.event(), Stream{}).ok());
  program->free(first);
  program->free(second);
}

TEST_CASE("CUDA: no memory, and no such device") {
  Program* const program = Program::here();
  if (!program) return;
  const auto none = program->driver.allocate_pinned(0, size_t{1} << 48);
  REQUIRE(!none);
  CHECK(none.status().code() == Code::kResourceExhausted);
  const int devices = program->driver.devices();
  const auto wrong = program->driver.create_stream(devices);
  REQUIRE(!wrong);
  CHECK(wrong.status().code() == Code::kInvalidArgument);
  // Neither has broken anything.
  CHECK(Queue(program->driver).end().ok());
}

struct Reduction {
  DataType type;
  ReduceOp op;
  bool scaled = false;
};
std::vector<Reduction> all_reductions() {
  std::vector<Reduction> all;
  for (size_t type = 0; type < kDataTypes; ++type)
    for (size_t op = 0; op < kReduceOps; ++op) {
      const Reduction each{static_cast<DataType>(type), static_cast<ReduceOp>(op)};
      if (each.op == ReduceOp::kAdasum || !reducible(each.type, each.op)) continue;
      all.push_back(each);
      const bool sums = each.op == ReduceOp::kSum || each.op == ReduceOp::kAverage;
      if (sums && is_float(each.type)) all.push_back({each.type, each.op, true});
    }
  return all;
}

// Says what is wrong.
std::string reduced(Program& program, DeviceReduction& reduction, const Reduction& by) {
  constexpr size_t kCount = (1 << 16) + 3;
  Driver& driver = program.driver;
  const size_t bytes = kCount * size_of(by.type);
  Queue queue(driver);
  std::string wrong;
  for (const size_t inputs : {2, 3, 16}) {
    std::vector<Bytes> in;
    std::vector<std::byte*> there;
    std::vector<const std::byte*> here, read;
    // Three are not aligned, so that elements go one by one.
    const size_t off = inputs == 3 ? size_of(by.type) : 0;
    for (unsigned k = 0; k < inputs; ++k) {
      in.push_back(pattern(bytes, k));
      if (by.type == DataType::kBool)
        for (std::byte& each : in.back()) each &= std::byte{1};
      there.push_back(program.allocate(bytes + off));
      program.write(there.back() + off, in.back());
    }
    std::vector<double> factors;
    for (Bytes& each : in) {
      here.push_back(each.data());
      if (!by.scaled) continue;
      factors.push_back(1.0 / static_cast<double>(factors.size() + 2));
      scale(by.type, factors.back(), each.data(), each.data(), kCount);
    }
    for (std::byte* each : there) read.push_back(each + off);
    Bytes wanted(bytes);
    const auto ranks = static_cast<unsigned>(inputs);
    reduce(by.type, by.op, here, wanted.data(), kCount, ranks);
    // To one of its own arrays, too.
    std::byte* const other = program.allocate(bytes + off);
    for (std::byte* const array : {other, there.back()}) {
      std::byte* const out = array + off;
      Status status =
          reduction.start(0, by.type, by.op, read, factors, out, kCount, ranks, queue.stream());
      if (status.ok()) status = queue.end();
      if (!status.ok()) return status.details();
      if (program.read(out, bytes) != wanted) wrong = "other bits";
    }
    program.free(other);
    for (std::byte* each : there) program.free(each);
  }
  return wrong;
}

TEST_CASE("CUDA: kernels give the bits of the host's, for all types and reductions") {
  Program* const program = Program::here();
  if (!program) return;
  DeviceReduction reduction(program->driver);
  const auto first = reduction.kernel(0, DataType::kFloat32, ReduceOp::kSum, false);
  if (!first && first.status().code() == Code::kFailedPrecondition)
    return not_tried(first.status().details());
  REQUIRE_MESSAGE(first.ok(), first.status().details());
  for (const Reduction& each : all_reductions()) {
    CAPTURE(name_of(each.type));
    CAPTURE(name_of(each.op));
    CAPTURE(each.scaled);
    CHECK(reduced(*program, reduction, each) == "");
  }
}

TEST_CASE("CUDA: what another process exports is the same memory") {
  Program* const program = Program::here();
  if (!program) return;
  Driver& driver = program->driver;
  Helper other("exports CUDA memory");
  for (unsigned round = 0; round < 3; ++round) {
    const size_t size = kExported[round];
    CAPTURE(size);
    const auto handle = other.hear<device::IpcHandle>();
    const auto opened = driver.import_memory(0, handle);
    REQUIRE_MESSAGE(opened.ok(), opened.status().details());
    // Once more, while it is open: two groups of a process may do so.
    const auto again = driver.import_memory(0, handle);
    REQUIRE_MESSAGE(again.ok(), again.status().details());
    driver.close_memory(0, *again);
    const auto found = driver.allocation_of(*opened + 5);
    REQUIRE(found);
    CHECK(found->space == Space::kDevice);
    CHECK(found->base == *opened);
    CHECK(found->size >= size);
    CHECK(program->read(*opened, size) == pattern(size, round));
    program->write(*opened, pattern(size, 100 + round));
    driver.close_memory(0, *opened);
    other.tell(round);
    CHECK(other.hear<bool>());
  }
}
TEST_CASE("helper: exports CUDA memory" * doctest::skip()) {
  Program* const program = Program::here();
  REQUIRE(program);
  for (unsigned round = 0; round < 3; ++round) {
    const size_t size = kExported[round];
    std::byte* const neighbour = program->allocate(size);
    std::byte* const memory = program->allocate(size);
    program->write(memory, pattern(size, round));
    const auto handle = program->driver.export_memory(0, memory);
    REQUIRE_MESSAGE(handle.ok(), handle.status().details());
    write_thing(kToTest, *handle);
    REQUIRE(read_thing<unsigned>(kFromTest) == round);
    write_thing(kToTest, program->read(memory, size) == pattern(size, 100 + round));
    program->free(memory);
    program->free(neighbour);
  }
  read_thing<unsigned>(kFromTest);  // until it is killed
}

TEST_CASE("CUDA: what kernels do wrong is told, and by everything after it") {
  if (!Program::here()) return;
  Helper other("reads where nothing is");
  CHECK(other.hear<Code>() == Code::kInternal);
  const auto said = other.hear<std::array<char, 200>>();
  CHECK(std::string(said.data()).find("CUDA_ERROR_") != std::string::npos);
  CHECK(other.hear<Code>() == Code::kInternal);
}
TEST_CASE("helper: reads where nothing is" * doctest::skip()) {
  Program* const program = Program::here();
  REQUIRE(program);
  DeviceReduction reduction(program->driver);
  Queue queue(program->driver);
  std::byte* const out = program->allocate(kBytes);
  const std::byte* const in[] = {out, std::bit_cast<const std::byte*>(uintptr_t{0x10000})};
  Status status =
      reduction.start(0, DataType::kFloat32, ReduceOp::kSum, in, {}, out, 1000, 2, queue.stream());
  if (status.ok()) status = queue.end();
  write_thing(kToTest, status.code());
  std::array<char, 200> said{};
  std::copy_n(status.details().begin(), std::min(status.details().size(), said.size() - 1),
              said.begin());
  write_thing(kToTest, said);
  write_thing(kToTest, program->driver.create_event(0).status().code());
  read_thing<unsigned>(kFromTest);  // until it is killed
}

}  // namespace
}  // namespace tw::test

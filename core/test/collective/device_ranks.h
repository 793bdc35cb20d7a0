// SPDX-License-Identifier: Apache-2.0
// Ranks with a device each, whose driver is as a process has it; see test/device/fake_driver.h for
// what makes a wait that is missing a wrong result.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "collective/device_operations.h"
#include "test/collective/ranks.h"
#include "test/device/fake_driver.h"

namespace tw::test {

using collective::CollectiveCall;
using collective::CollectiveKind;
using collective::DevicePlace;
using collective::Group;

using Bytes = std::vector<std::byte>;

inline constexpr CollectiveKind kReducingKinds[] = {
    CollectiveKind::kAllReduce, CollectiveKind::kReduce, CollectiveKind::kReduceScatter};

inline Bytes bytes_of(int rank, size_t size) {
  constexpr size_t kPeriod = 4099;  // no part of an array is like another part of a piece
  Bytes made(size);
  for (size_t i = 0; i < std::min(size, kPeriod); ++i)
    made[i] = static_cast<std::byte>((i * 7 + i / 251 + static_cast<size_t>(rank) * 13) % 61);
  for (size_t at = kPeriod; at < size; at += kPeriod)
    std::memcpy(made.data() + at, made.data(), std::min(kPeriod, size - at));
  return made;
}

// A rank's device, and the stream of its program.
class DeviceRank {
 public:
  DeviceRank(FakeHost& host, int rank, int device = 0)
      : driver(host, 2, 50, static_cast<unsigned>(rank)), device_(device) {
    auto made = driver.create_stream(device);
    REQUIRE(made);
    stream = *made;
  }

  DevicePlace place() { return {&driver, device_, stream}; }
  // An array that gets its values later than what is done next.
  std::byte* array(const Bytes& values, bool exportable = true) {
    std::byte* const made = driver.allocate(device_, values.size(), exportable);
    driver.write_later(stream, made, values);
    return made;
  }
  Bytes read(const std::byte* array, size_t size) {
    Bytes values(size);
    driver.read(values.data(), array, size);
    return values;
  }

  FakeDriver driver;
  device::Stream stream{};

 private:
  const int device_;
};

// All ranks'; they outlive the group, as a driver does.
class DeviceRanks {
 public:
  explicit DeviceRanks(int ranks, int device = 0) {
    for (int rank = 0; rank < ranks; ++rank)
      ranks_.push_back(std::make_unique<DeviceRank>(host_, rank, device));
  }
  DeviceRank& of(const Group& group) { return *ranks_[static_cast<size_t>(group.rank())]; }
  const std::vector<std::unique_ptr<DeviceRank>>& all() const { return ranks_; }

 private:
  FakeHost host_;
  std::vector<std::unique_ptr<DeviceRank>> ranks_;
};

// How many elements `in` and `out` of a rank have, for a count.
struct Extent {
  uint64_t in = 0, out = 0;
};
inline Extent extent(const CollectiveCall& call, int rank, int size) {
  const uint64_t all = call.count * static_cast<uint64_t>(size);
  const bool root = rank == call.root;
  switch (call.kind) {
    case CollectiveKind::kAllReduce:
      return {call.count, call.count};
    case CollectiveKind::kReduce:
      return {call.count, root ? call.count : 0};
    case CollectiveKind::kBroadcast:
      return {0, call.count};
    case CollectiveKind::kAllGather:
      return {call.count, all};
    case CollectiveKind::kGather:
      return {call.count, root ? all : 0};
    case CollectiveKind::kScatter:
      return {root ? all : 0, call.count};
    case CollectiveKind::kReduceScatter:
      return {all, call.count};
    default:
      return {};
  }
}

// Runs it on the host's memory and on the device's, and compares.
inline std::string compared(Group& group, DeviceRank& rank, const CollectiveCall& call,
                            bool in_place, double factor = 1) {
  const Extent elements = extent(call, group.rank(), group.size());
  const size_t width = size_of(call.type);
  Bytes in = bytes_of(group.rank(), elements.in * width);
  Bytes out = bytes_of(100 + group.rank(), elements.out * width);
  if (call.type == DataType::kBool)
    for (Bytes* each : {&in, &out})
      for (std::byte& value : *each) value &= std::byte{1};
  std::byte* const device_in = in.empty() ? nullptr : rank.array(in);
  std::byte* const device_out = out.empty()               ? nullptr
                                : in_place && !in.empty() ? device_in
                                                          : rank.array(out);
  Status status = group.run(call, in.empty() ? nullptr : in.data(),
                            out.empty() ? nullptr : out.data(), within(kLong), factor);
  if (!status.ok()) return "on the host: " + status.details();
  const DevicePlace place = rank.place();
  status = group.run(call, device_in, device_out, within(kLong), factor, &place);
  if (!status.ok()) return call.text() + ": " + status.details();
  const bool same = out.empty() || rank.read(device_out, out.size()) == out;
  const bool kept = in.empty() || device_out == device_in || rank.read(device_in, in.size()) == in;
  // Nothing uses them any more: the program frees them at once.
  if (device_in) rank.driver.free(device_in);
  if (device_out && device_out != device_in) rank.driver.free(device_out);
  return (same ? "" : call.text() + " is wrong") + std::string(kept ? "" : ": in was written");
}

inline uint64_t count_of(Group& group, collective::Way way) {
  uint64_t operations = 0;
  group.tally().each([&](CollectiveKind, collective::Way each, uint64_t count, uint64_t) {
    if (each == way) operations += count;
  });
  return operations;
}

}  // namespace tw::test

// SPDX-License-Identifier: Apache-2.0
// Regions that are mapped: what is announced of them, and what cannot be right.
#include "access/mapped.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include <array>

namespace tw {
namespace {

using wire::OperationKind;

struct Mappings {
  Mappings()
      : owner(memories.make(8192).value()),
        door(make_ref<Door>()),
        door_file(door->build().value()) {}

  Status add(uint64_t id, uint64_t address, uint64_t length, Rights rights, bool writable = true) {
    Fd file = writable ? Fd(dup(owner->file())) : reopen_read_only(owner->file()).value();
    auto peer = MappedMemory::map(std::move(file), Fd(dup(door_file.get())), owner->file_size(),
                                  make_ref<MappingTally>());
    REQUIRE(peer.ok());
    wire::Region region;
    region.id = id;
    region.address = address;
    region.length = length;
    region.rights = rights;
    region.key = wire::kHandedOver;
    return regions.add(region, std::move(*peer));
  }
  AccessRequest request(OperationKind kind, uint64_t offset, uint64_t length, uint64_t region = 1) {
    AccessRequest wanted;
    wanted.kind = kind;
    wanted.region = region;
    wanted.offset = offset;
    wanted.local = local.data();
    wanted.length = length;
    return wanted;
  }

  SharedMemories memories{1 << 20};
  Ref<SharedMemory> owner;
  Ref<Door> door;
  Fd door_file;
  Copier copier;
  MappedRegions regions{copier};
  alignas(8) std::array<std::byte, 8192> local{};
};

constexpr Rights kAll = kMayRead | kMayWrite | kMayUpdate;

TEST_CASE("hostile: a region that does not fit its memory ends the link") {
  Mappings maps;
  CHECK(maps.add(1, 0, 8192, kAll).ok());
  CHECK(maps.add(2, 8184, 8, kAll).ok());
  CHECK(maps.add(3, 1, 8191, kMayRead, false).ok());
  for (const Status& wrong :
       {maps.add(4, 0, 8193, kAll), maps.add(4, 8185, 8, kMayWrite), maps.add(4, 8193, 1, kAll),
        maps.add(4, UINT64_MAX, 1, kMayWrite), maps.add(4, 4, 8, kMayUpdate),
        maps.add(4, 0, 8, kMayRead), maps.add(4, 0, 8, kAll, false)}) {
    CHECK(wrong.code() == Code::kInternal);
    CHECK(wrong.details().find("protocol error") != std::string::npos);
  }
  CHECK_FALSE(maps.regions.holds(4));
}

TEST_CASE("mapped: operations are done at once, inside of their region only") {
  Mappings maps;
  REQUIRE(maps.add(1, 4096, 64, kAll).ok());
  maps.local.fill(std::byte{7});
  CHECK(maps.regions.run(maps.request(OperationKind::kWrite, 60, 4), std::nullopt).value());
  CHECK(maps.owner->data()[4096 + 63] == std::byte{7});
  CHECK(maps.owner->data()[4096 + 64] == std::byte{0});
  const auto code = [&](const AccessRequest& request) {
    const auto done = maps.regions.run(request, std::nullopt);
    return done ? Code::kOk : done.status().code();
  };
  CHECK(code(maps.request(OperationKind::kWrite, 60, 5)) == Code::kOutOfRange);
  CHECK(code(maps.request(OperationKind::kRead, UINT64_MAX, 1)) == Code::kOutOfRange);
  CHECK(code(maps.request(OperationKind::kFetchAdd, 4, 8)) == Code::kInvalidArgument);
  CHECK(code(maps.request(OperationKind::kFetchAdd, 0, 4)) == Code::kInvalidArgument);
  auto strided = maps.request(OperationKind::kRead, 0, 8);
  strided.count = 3;
  strided.stride = 28;
  CHECK(code(strided) == Code::kOk);
  strided.stride = 29;
  CHECK(code(strided) == Code::kOutOfRange);
  strided.stride = UINT64_MAX;
  CHECK(code(strided) == Code::kOutOfRange);
  // What is not mapped, or has to be told the owner, goes another way.
  CHECK_FALSE(maps.regions.run(maps.request(OperationKind::kRead, 0, 8, 2), std::nullopt).value());
  CHECK_FALSE(
      maps.regions.run(maps.request(OperationKind::kWriteImmediate, 0, 8), std::nullopt).value());
}

TEST_CASE("mapped: a door that is shut ends it as not found, or as unavailable") {
  for (const auto& [why, code] : {std::pair{Door::kConcealed, Code::kNotFound},
                                  std::pair{Door::kLinkOver, Code::kUnavailable}}) {
    Mappings maps;
    REQUIRE(maps.add(1, 0, 8192, kAll).ok());
    maps.door->shut(why);
    const Signal signal{1, 0, 1, false};
    CHECK(
        maps.regions.run(maps.request(OperationKind::kRead, 0, 8), std::nullopt).status().code() ==
        code);
    CHECK(maps.regions.run(maps.request(OperationKind::kWrite, 8, 8), signal).status().code() ==
          code);
    const auto batch =
        AccessBatch::make(std::array{maps.request(OperationKind::kWrite, 0, 64)}, signal).value();
    CHECK(maps.regions.run(*batch, signal).status().code() == code);
    CHECK(maps.door->empty());
    CHECK(*reinterpret_cast<uint64_t*>(maps.owner->data()) == 0);
  }
}

TEST_CASE("mapped: a signal that cannot be right leaves the payload undone") {
  Mappings maps;
  REQUIRE(maps.add(1, 0, 8192, kAll).ok());
  REQUIRE(maps.add(2, 0, 8, kMayWrite).ok());
  maps.local.fill(std::byte{7});
  const auto code = [&](const Signal& signal) {
    return maps.regions.run(maps.request(OperationKind::kWrite, 64, 64), signal).status().code();
  };
  CHECK(code({2, 8, 1, false}) == Code::kOutOfRange);
  CHECK(code({2, 0, 1, true}) == Code::kPermissionDenied);
  CHECK(code({1, 4, 1, false}) == Code::kInvalidArgument);
  CHECK(maps.owner->data()[64] == std::byte{0});
  CHECK(maps.regions.run(maps.request(OperationKind::kWrite, 64, 64), Signal{2, 0, 5, false})
            .value());
  CHECK(maps.owner->data()[64] == std::byte{7});
  CHECK(*reinterpret_cast<uint64_t*>(maps.owner->data()) == 5);
}

}  // namespace
}  // namespace tw

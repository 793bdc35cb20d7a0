// SPDX-License-Identifier: Apache-2.0
// Memory that a peer could map, and does not: it is accessed all the same, and the link says why.
#include <doctest/doctest.h>

#include "test/access/one_sided.h"
#include "test/base/descriptors.h"
#include "transport/shm/shm.h"

namespace tw::test {
namespace {

uint64_t incidents() { return runtime().audit().count(Incident::kBudgetMapping); }

// All that can be done there is done, whoever does it.
void try_all(AccessPort& side, uint64_t region, size_t size) {
  const auto sent = bytes_of(size);
  CHECK(write(side, region, 0, sent).ok());
  std::vector<std::byte> got(size);
  CHECK(read(side, region, 0, got).ok());
  CHECK(got == sent);
  const uint64_t before = update(side, Kind::kFetchAdd, region, 0, 5);
  CHECK(update(side, Kind::kCompareSwap, region, 0, 1, before + 5) == before + 5);
  AccessRequest request = access(Kind::kWrite, region, 8, got.data(), 8);
  const Signal signal{region, 16, 77, false};
  const auto batch = side.prepare(std::array{request}, signal);
  REQUIRE_MESSAGE(batch.ok(), batch.status().details());
  const auto started = side.start(*batch, std::nullopt, {}, {}, true);
  REQUIRE(started.ok());
  CHECK(ended(side, **started).ok());
  CHECK(update(side, Kind::kFetchAdd, region, 16, 0) == 77);
}

TEST_CASE("one-sided: what is more than a link maps is accessed by frames, and it says why") {
  constexpr size_t kBytes = 4096;
  OneSidedHouse<ShmWay> house;
  Ends<ShmWay> ends(house);
  const uint64_t before = incidents();
  const auto memory = runtime().shared_memories().make(kBytes).value();
  const auto expose = [&] {
    const uint64_t region = ends.there().expose(memory->data(), kBytes, kAllRights, memory).value();
    arrived(ends.here(), region);
    return region;
  };
  std::vector<uint64_t> regions;
  while (regions.size() < ShmTransport::kMaxMapped) regions.push_back(expose());
  CHECK(ends.here().mapped(regions.back()));
  CHECK(ends.here().why_not_mapped(regions.back()).ok());
  CHECK(ends.client->stats().accesses.unmapped == 0);
  CHECK(ends.client->stats().unmapped_why.ok());
  CHECK(incidents() == before);

  const uint64_t beyond = expose();
  CHECK_FALSE(ends.here().mapped(beyond));
  const Status why = ends.here().why_not_mapped(beyond);
  CHECK(why.code() == Code::kResourceExhausted);
  CHECK(why.details().find("4096 pieces") != std::string::npos);
  CHECK(ends.client->stats().unmapped_why.details() == why.details());
  try_all(ends.here(), beyond, kBytes);

  // The same of the arena, and what is told once for a link is counted each time.
  const auto block = runtime().arena().allocate(kBytes).value();
  const uint64_t lent = ends.there().expose(block->data(), kBytes, kMayRead, block).value();
  arrived(ends.here(), lent);
  CHECK(ends.here().why_not_mapped(lent).details().find("4096 pieces") != std::string::npos);
  std::vector<std::byte> got(kBytes);
  CHECK(read(ends.here(), lent, 0, got).ok());
  CHECK(incidents() == before + 1);
  CHECK(ends.client->stats().accesses.unmapped == 2);
  CHECK(ends.client->stats().accesses.known_mapped == ShmTransport::kMaxMapped);
  CHECK(ends.server->stats().accesses.unhanded == 0);

  // There is room again once others are gone.
  CHECK(ends.there().conceal(regions.front()).ok());
  CHECK(eventually([&] { return !ends.here().remote(regions.front()); }));
  CHECK(ends.here().mapped(expose()));
  CHECK(ends.there().conceal(beyond).ok());
  CHECK(eventually([&] { return !ends.here().remote(beyond); }));
  CHECK(ends.here().why_not_mapped(beyond).code() == Code::kNotFound);
}

TEST_CASE(
    "one-sided: what its owner cannot hand over is accessed by frames, and both ends say so") {
  constexpr size_t kBytes = 4096;
  OneSidedHouse<ShmWay> house;
  Ends<ShmWay> ends(house);
  const uint64_t before = incidents();
  const auto memory = runtime().shared_memories().make(kBytes).value();
  const auto expose = [&] {
    return ends.there().expose(memory->data(), kBytes, kAllRights, memory).value();
  };
  const auto region = [&] {
    const NoMoreDescriptors limit;
    return expose();
  }();
  arrived(ends.here(), region);
  CHECK_FALSE(ends.here().mapped(region));
  const Status why = ends.here().why_not_mapped(region);
  CHECK(why.code() == Code::kResourceExhausted);
  CHECK(why.details().find("its log says why") != std::string::npos);
  CHECK(ends.server->stats().unmapped_why.details().find("open files") != std::string::npos);
  CHECK(ends.server->stats().accesses.unhanded == 1);
  CHECK(ends.client->stats().accesses.unmapped == 1);
  CHECK(incidents() == before + 2);  // both ends are in this process
  try_all(ends.here(), region, kBytes);
  const uint64_t next = expose();
  arrived(ends.here(), next);
  CHECK(ends.here().mapped(next));
}

template <class Way>
Status why_not(std::byte* data, size_t size, Ref<SharedMemory> hold) {
  OneSidedHouse<Way> house;
  Ends<Way> ends(house);
  const uint64_t before = incidents();
  const uint64_t region = ends.there().expose(data, size, kMayWrite, std::move(hold)).value();
  arrived(ends.here(), region);
  CHECK(ends.here().why_not_mapped(region + 1).code() == Code::kNotFound);
  CHECK_FALSE(ends.here().mapped(region));
  CHECK(ends.client->stats().accesses.unmapped == 0);
  CHECK(ends.server->stats().accesses.unhanded == 0);
  CHECK(incidents() == before);
  return ends.here().why_not_mapped(region);
}

TEST_CASE("one-sided: what was never to be mapped is no incident, and says why it is not") {
  std::array<std::byte, 64> own{};
  const Status other = why_not<ShmWay>(own.data(), own.size(), {});
  CHECK(other.code() == Code::kFailedPrecondition);
  CHECK(other.details().find("made to be accessed") != std::string::npos);
  const auto memory = runtime().shared_memories().make(64).value();
  const Status far = why_not<TcpWay>(memory->data(), 64, memory);
  CHECK(far.code() == Code::kUnimplemented);
  CHECK(far.details().find("tcp") != std::string::npos);
}

}  // namespace
}  // namespace tw::test

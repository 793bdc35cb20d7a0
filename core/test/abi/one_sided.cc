// SPDX-License-Identifier: Apache-2.0
// One-sided operations through the C ABI: exposed memory, operations, their ends, and handles.
#include <set>

#include "test/abi/world.h"
#include "test/not_tried.h"
#include "test/shortage.h"

namespace tw::test::abi {
namespace {

using Access = std::unique_ptr<tw_access, Release<tw_access_release>>;

constexpr uint32_t kAllRights = TW_MAY_READ | TW_MAY_WRITE | TW_MAY_UPDATE;

tw_access_request request(int kind, uint64_t region, uint64_t offset, void* local,
                          uint64_t length) {
  tw_access_request out{};
  out.kind = kind;
  out.region = region;
  out.offset = offset;
  out.local = local;
  out.length = length;
  return out;
}

int run(tw_peer* peer, const tw_access_request& wanted, tw_status* status = nullptr) {
  tw_access* access = nullptr;
  const int started = tw_peer_access(peer, &wanted, nullptr, nullptr, 0, &access, status);
  if (started != TW_OK) return started;
  const Access owner(access);
  return tw_access_wait(access, &kPatience, status);
}

// Before a look at memory that is exposed at this end: takes the lock of the link that serves it,
// which ThreadSanitizer knows, unlike the two mappings of a ring.
void meet(tw_peer* peer) {
  uint64_t size;
  uint32_t rights;
  (void)tw_peer_region(peer, 0, &size, &rights);
}

void await_region(tw_peer* peer, uint64_t region) {
  uint64_t size;
  uint32_t rights;
  REQUIRE(eventually([&] { return tw_peer_region(peer, region, &size, &rights) == 1; }));
}

TEST_CASE_TEMPLATE("abi: one-sided operations move bytes and numbers", Way, TENSORWIRE_ABI_WAYS) {
  alignas(8) char memory[256]{};
  Told told;
  Ends ends(Way::kName);  // the last to come: what is exposed outlives it
  const tw_owner owner = told.owner();
  uint64_t region = 0;
  REQUIRE(tw_peer_expose(ends.there.get(), memory, sizeof memory, kAllRights, &owner, &region,
                         nullptr) == TW_OK);
  await_region(ends.here.get(), region);
  uint64_t size = 0;
  uint32_t rights = 0;
  CHECK(tw_peer_region(ends.here.get(), region, &size, &rights) == 1);
  CHECK(size == sizeof memory);
  CHECK(rights == kAllRights);
  CHECK(tw_peer_region(ends.here.get(), region + 1, &size, &rights) == 0);

  std::string text = text_of(100);
  CHECK(run(ends.here.get(), request(TW_WRITE, region, 8, text.data(), 100)) == TW_OK);
  meet(ends.there.get());
  CHECK(std::string(memory + 8, 100) == text);
  std::string back(100, '\0');
  CHECK(run(ends.here.get(), request(TW_READ, region, 8, back.data(), 100)) == TW_OK);
  CHECK(back == text);
  uint64_t before = 1;
  auto add = request(TW_FETCH_ADD, region, 0, &before, 8);
  add.operand = 41;
  CHECK(run(ends.here.get(), add) == TW_OK);
  CHECK(before == 0);
  auto swap = request(TW_COMPARE_SWAP, region, 0, &before, 8);
  swap.expected = 41;
  swap.operand = 7;
  CHECK(run(ends.here.get(), swap) == TW_OK);
  CHECK(before == 41);
  meet(ends.there.get());
  CHECK(memory[0] == 7);

  auto noticed = request(TW_WRITE_IMMEDIATE, region, 0, nullptr, 0);
  noticed.immediate = 99;
  uint32_t value = 0;
  CHECK(tw_peer_immediate(ends.there.get(), &kAtOnce, &value, nullptr) ==
        TW_CODE_DEADLINE_EXCEEDED);
  CHECK(run(ends.here.get(), noticed) == TW_OK);
  CHECK(tw_peer_immediate(ends.there.get(), &kPatience, &value, nullptr) == TW_OK);
  CHECK(value == 99);

  CHECK(told.times == 0);
  CHECK(tw_peer_conceal(ends.there.get(), region, nullptr, nullptr) == TW_OK);
  CHECK(told.times == 1);
  CHECK(tw_peer_conceal(ends.there.get(), region, nullptr, nullptr) == TW_CODE_NOT_FOUND);
}

TEST_CASE_TEMPLATE("abi: what cannot be right has a code and a sentence", Way,
                   TENSORWIRE_ABI_WAYS) {
  alignas(8) char memory[64]{};
  uint64_t region = 0;
  Told told;
  Ends ends(Way::kName);
  const tw_owner owner = told.owner();
  const auto expose = [&](void* data, size_t size, uint32_t rights) {
    return tw_peer_expose(ends.there.get(), data, size, rights, &owner, &region, nullptr);
  };
  CHECK(expose(memory, 0, 1) == TW_CODE_INVALID_ARGUMENT);
  CHECK(expose(nullptr, 1, 1) == TW_CODE_INVALID_ARGUMENT);
  CHECK(expose(memory, 64, 8) == TW_CODE_INVALID_ARGUMENT);
  CHECK(expose(memory + 1, 8, TW_MAY_UPDATE) == TW_CODE_INVALID_ARGUMENT);
  CHECK(told.times == 4);
  REQUIRE(expose(memory, 64, TW_MAY_READ) == TW_OK);
  await_region(ends.here.get(), region);
  alignas(8) char local[65]{};
  tw_status status{};
  const auto code = [&](int kind, uint64_t where, uint64_t offset, uint64_t length) {
    status = {};
    const int result = run(ends.here.get(), request(kind, where, offset, local, length), &status);
    CHECK(std::strlen(status.details) > 10);
    CHECK(status.code == result);
    return result;
  };
  CHECK(code(TW_READ, region, 0, 65) == 11);
  CHECK(code(TW_WRITE, region, 0, 1) == 7);
  CHECK(code(TW_FETCH_ADD, region, 0, 8) == 7);
  CHECK(code(TW_READ, region + 1, 0, 1) == TW_CODE_NOT_FOUND);
  CHECK(code(5, region, 0, 1) == TW_CODE_INVALID_ARGUMENT);
  CHECK(code(-1, region, 0, 1) == TW_CODE_INVALID_ARGUMENT);
}

TEST_CASE_TEMPLATE("abi: ends are told by owner and token, and handles go in any order", Way,
                   TENSORWIRE_ABI_WAYS) {
  Told local_told, region_told;
  alignas(8) char memory[1024]{};
  const Events queue(tw_events_create());
  {
    Ends ends(Way::kName);
    const tw_owner owner = region_told.owner();
    uint64_t region = 0;
    REQUIRE(tw_peer_expose(ends.here.get(), memory, sizeof memory, kAllRights, &owner, &region,
                           nullptr) == TW_OK);
    await_region(ends.there.get(), region);
    std::vector<std::string> locals(20, std::string(1024, 'x'));
    for (uint64_t i = 0; i < locals.size(); ++i) {
      const tw_owner told = local_told.owner();
      const auto wanted = request(TW_WRITE, region, 0, locals[i].data(), 1024);
      tw_access* access = nullptr;
      REQUIRE(tw_peer_access(ends.there.get(), &wanted, &told, queue.get(), 100 + i, &access,
                             nullptr) == TW_OK);
      tw_access_release(access);  // it goes on all the same
    }
    // In any order: whichever thread looks after the link tells of the ends that it has found.
    uint64_t tokens[32];
    std::set<uint64_t> all;
    while (all.size() != 20) {
      int closed = 0;
      const size_t count = tw_events_wait(queue.get(), &kPatience, tokens, 32, &closed);
      REQUIRE(count != 0);
      for (size_t i = 0; i < count; ++i) CHECK(all.insert(tokens[i]).second);
    }
    CHECK(*all.begin() == 100);
    CHECK(*all.rbegin() == 119);
    CHECK(local_told.times == 20);
    meet(ends.here.get());
    CHECK(memory[1023] == 'x');
    CHECK(region_told.times == 0);
    tw_peer_close(ends.link.get());
    CHECK(region_told.times == 1);
    uint32_t value;
    CHECK(tw_peer_immediate(ends.here.get(), &kPatience, &value, nullptr) == TW_CODE_CANCELLED);
    CHECK(tw_peer_immediate(ends.there.get(), &kPatience, &value, nullptr) != TW_OK);
    const tw_owner told = local_told.owner();
    tw_access* access = nullptr;
    const auto wanted = request(TW_READ, region, 0, locals[0].data(), 1);
    CHECK(tw_peer_access(ends.here.get(), &wanted, &told, nullptr, 0, &access, nullptr) ==
          TW_CODE_CANCELLED);
    CHECK(local_told.times == 21);
  }
}

TEST_CASE_TEMPLATE("abi: one-sided operations without memory are a status", Way,
                   TENSORWIRE_ABI_WAYS) {
  if (!kFailsOnDemand)
    return not_tried("ThreadSanitizer insists on its own allocator: none fails on demand");
  alignas(8) char memory[64]{}, local[64]{};
  Told region_told, local_told;
  const Events queue(tw_events_create());
  const tw_owner region_owner = region_told.owner(), local_owner = local_told.owner();
  int exposed = 0, ended = 0;
  const auto allowed = [](int code) {
    return code == TW_OK || code == TW_CODE_RESOURCE_EXHAUSTED || code == TW_CODE_UNAVAILABLE;
  };
  bool failed = true;
  for (int n = 1; failed; ++n) {
    REQUIRE(n < 100);
    CAPTURE(n);
    Ends ends(Way::kName);
    uint64_t region = 0;
    {
      Failing failing(n);
      CHECK(allowed(tw_peer_expose(ends.there.get(), memory, sizeof memory, kAllRights,
                                   &region_owner, &region, nullptr)));
      failed = failing.end();
    }
    tw_peer_close(ends.link.get());
    ++exposed;
    CHECK(eventually([&] { return region_told.times == exposed; }));
  }
  CHECK(exposed > 1);
  failed = true;
  for (int n = 1; failed; ++n) {
    REQUIRE(n < 100);
    CAPTURE(n);
    Ends ends(Way::kName);
    uint64_t region = 0;
    REQUIRE(tw_peer_expose(ends.there.get(), memory, sizeof memory, kAllRights, nullptr, &region,
                           nullptr) == TW_OK);
    await_region(ends.here.get(), region);
    const auto wanted = request(TW_READ, region, 0, local, sizeof local);
    tw_access* access = nullptr;
    {
      Failing failing(n);
      const int started =
          tw_peer_access(ends.here.get(), &wanted, &local_owner, queue.get(), 7, &access, nullptr);
      CHECK(allowed(started));
      if (started == TW_OK) CHECK(allowed(tw_access_wait(access, &kPatience, nullptr)));
      failed = failing.end();
    }
    const Access held(access);
    // A wait that found no memory has left the operation as it was.
    if (access) CHECK(allowed(tw_access_wait(access, &kPatience, nullptr)));
    tw_peer_close(ends.link.get());
    ++ended;
    CHECK(eventually([&] { return local_told.times == ended; }));
  }
  CHECK(ended > 1);
}

}  // namespace
}  // namespace tw::test::abi

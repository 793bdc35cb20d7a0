// SPDX-License-Identifier: Apache-2.0
// One-sided operations while memory runs out.
#include "test/shortage.h"

#include "access/target.h"
#include "base/shortage.h"
#include "message/frame_queue.h"
#include "test/access/one_sided.h"

namespace tw::test {
namespace {

constexpr size_t kSmall = 64;

TEST_CASE("one-sided: regions are let go of once there is memory for that") {
  if (!kFailsOnDemand)
    return not_tried("ThreadSanitizer insists on its own allocator: none fails on demand");
  FrameQueue out;
  Target target(out);
  for (uint64_t id = 1; id <= 3; ++id) {
    wire::Region region;
    region.id = id;
    target.expose(make_ref<Grant>(region, nullptr, Hold{}));
  }
  std::vector<Ref<Grant>> gone;
  const int failures = fail_each([&] { (void)has_memory_for([&] { gone = target.drop(); }); });
  CHECK(failures > 0);
  REQUIRE(gone.size() == 3);
  for (const Ref<Grant>& grant : gone) CHECK(grant);
}

TEST_CASE_TEMPLATE("one-sided: a region is concealed or its link lost, whichever allocation fails",
                   Way, TcpWay, ShmWay, MappedWay) {
  if (!kFailsOnDemand)
    return not_tried("ThreadSanitizer insists on its own allocator: none fails on demand");
  std::atomic<int> live{0};
  OneSidedHouse<Way> house;
  for (int n = 1;; ++n) {
    Ends<Way> ends(house);
    const uint64_t region = expose(ends, kSmall, kAllRights, live).first;
    Result<Ref<Grant>> gone = Ref<Grant>{};
    Failing failing(n);
    const bool done = has_memory_for([&] { gone = ends.there().conceal(region); });
    const bool failed = failing.end();
    std::byte word[8];
    if (done) {
      CHECK(gone.ok());
      CHECK_FALSE(read(ends.here(), region, 0, word).ok());
    } else {
      CHECK(eventually([&] { return ends.there().link().lost(); }));
    }
    gone = Ref<Grant>{};
    CHECK(eventually([&] { return live == 0; }));
    if (!failed) break;
  }
}

TEST_CASE("one-sided: what was added in mapped memory is not reported as not begun") {
  if (!kFailsOnDemand)
    return not_tried("ThreadSanitizer insists on its own allocator: none fails on demand");
  std::atomic<int> live{0};
  OneSidedHouse<MappedWay> house;
  Ends<MappedWay> ends(house);
  const auto [region, memory] = expose(ends, kSmall, kAllRights, live);
  uint64_t added = 0, before = 0;
  AccessRequest request =
      access(Kind::kFetchAdd, region, 0, reinterpret_cast<std::byte*>(&before), sizeof before);
  request.operand = 1;
  const int failures = fail_each([&] {
    bool began = false;
    added += has_memory_for([&] { began = ends.here().start(request, {}, {}, true).ok(); });
    CHECK(began == (added == 1));
  });
  CHECK(failures > 0);
  CHECK(added == 1);
  CHECK(*memory->words() == added);
}

}  // namespace
}  // namespace tw::test

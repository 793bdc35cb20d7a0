// SPDX-License-Identifier: Apache-2.0
// The calls of a link that wait for their turn.
#include "call/call_queue.h"

#include <doctest/doctest.h>

#include <vector>

#include "test/not_tried.h"
#include "test/shortage.h"
#include "wire/call_header.h"

namespace tw::test {
namespace {

Ref<Parcel> parcel(uint64_t stream, uint8_t flags, size_t segments = 0) {
  wire::CallHeader header;
  header.flags = flags;
  if ((flags & wire::call_flag::kStart) != 0) header.method = "/t/Wait";
  if ((flags & wire::call_flag::kCancel) != 0) header.code = Code::kCancelled;
  std::vector<std::byte> bytes(wire::call_header_size(header));
  wire::encode_call_header(bytes.data(), header);
  return Parcel::whole(
      stream, bytes, std::vector<wire::SegmentInfo>(segments, {1, wire::SegmentKind::kInline, {}}),
      std::vector<std::byte>(segments));
}

TEST_CASE("call queue: a call keeps messages of the user, and nothing that costs no credit") {
  CallQueue queue;
  REQUIRE(queue.add(parcel(1, wire::call_flag::kStart), kForever, 1 << 20, false));
  const auto add = [&](uint8_t flags, size_t segments) {
    Ref<Parcel> one = parcel(1, flags, segments);
    return queue.add_to(one);
  };
  CHECK(add(wire::call_flag::kPayload, 2).ok());
  for (int i = 0; i < 3; ++i) CHECK(add(wire::call_flag::kEnd, 0).ok());
  CHECK(add(wire::call_flag::kEnd, 1).status().code() == Code::kInternal);
  CallQueue::Entry entry;
  REQUIRE(queue.pop(entry));
  CHECK(entry.ended);
  CHECK(entry.messages.pop()->segments() == 0);
  CHECK(entry.messages.pop()->segments() == 2);
  CHECK(entry.messages.empty());
}

TEST_CASE("call queue: calls that are started and cancelled leave nothing behind") {
  if (!kFailsOnDemand)
    return not_tried("ThreadSanitizer insists on its own allocator: none fails on demand");
  CallQueue queue;
  REQUIRE(queue.add(parcel(1, wire::call_flag::kStart), kForever, 1 << 20, true));
  const auto round = [&](uint64_t stream) {
    REQUIRE(queue.add(parcel(stream, wire::call_flag::kStart), kForever, 1 << 20, true));
    Ref<Parcel> cancel = parcel(stream, wire::call_flag::kCancel);
    REQUIRE(queue.add_to(cancel).value());
  };
  for (uint64_t stream = 3; stream < 1000; stream += 2) round(stream);
  const size_t before = live_bytes();
  for (uint64_t stream = 1001; stream < 60'000; stream += 2) round(stream);
  CHECK(live_bytes() <= before + (32 << 10));
  CallQueue::Entry entry;
  REQUIRE(queue.pop(entry));
  CHECK(entry.messages.front().stream() == 1);
  CHECK_FALSE(queue.pop(entry));
}

}  // namespace
}  // namespace tw::test

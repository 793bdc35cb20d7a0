// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include "test/wire/support.h"
#include "transport/shm/wire.h"

namespace tw::wire {
namespace {

using test::Bytes;
using test::hex;

Bytes encoded(const ShmFrame& frame) {
  Bytes bytes(kShmFrameSize);
  encode(std::span<std::byte, kShmFrameSize>(bytes), frame);
  return bytes;
}

Result<ShmFrame> decoded(const Bytes& bytes) {
  return decode_shm_frame(std::span<const std::byte, kShmFrameSize>(bytes));
}

ShmFrame frame_of(ShmFrameType type, uint64_t size) {
  ShmFrame frame;
  frame.type = type;
  frame.size = size;
  return frame;
}

TEST_CASE("a shared-memory frame has the bytes of docs/wire-format.md") {
  ShmFrame frame = frame_of(ShmFrameType::kSlab, 0x0201);
  frame.slab = 3;
  frame.generation = 4;
  CHECK(encoded(frame) ==
        hex("545753484d303031 02000000 03000000 04000000 00000000 0102000000000000"));
}

TEST_CASE("a shared-memory frame comes with the descriptors of its type") {
  const auto with = [](ShmFrameType type, uint64_t size) {
    const auto frame = decoded(encoded(frame_of(type, size)));
    REQUIRE(frame.ok());
    CHECK(*frame == frame_of(type, size));
    return descriptors_of(*frame);
  };
  CHECK(with(ShmFrameType::kRings, 4096) == 1);
  CHECK(with(ShmFrameType::kSlab, 4096) == 1);
  CHECK(with(ShmFrameType::kSlabGone, 0) == 0);
  CHECK(with(ShmFrameType::kBell, 0) == 0);
  CHECK(with(ShmFrameType::kProcess, 0) == 0);
  CHECK(with(ShmFrameType::kProcess, 1) == 1);
  CHECK(with(ShmFrameType::kRegion, 8192) == 2);
  CHECK(with(ShmFrameType::kBlock, 1) == 1);
}

TEST_CASE("a shared-memory frame that is none is refused") {
  const auto refused = [](const Bytes& bytes, const char* why) {
    const auto frame = decoded(bytes);
    REQUIRE_FALSE(frame.ok());
    CHECK(frame.status().code() == Code::kInternal);
    CHECK(frame.status().details().find(why) != std::string::npos);
  };
  refused(encoded(frame_of(ShmFrameType::kRings, 0)), "size 0");
  refused(encoded(frame_of(ShmFrameType::kSlab, 0)), "size 0");
  refused(encoded(frame_of(ShmFrameType::kProcess, 2)), "size 2");
  refused(encoded(frame_of(static_cast<ShmFrameType>(0), 1)), "type 0");
  refused(encoded(frame_of(static_cast<ShmFrameType>(8), 1)), "type 8");
  refused(encoded(frame_of(ShmFrameType::kRegion, 0)), "size 0");
  refused(encoded(frame_of(ShmFrameType::kBlock, 0)), "size 0");
  ShmFrame zero = frame_of(ShmFrameType::kBell, 0);
  zero.zero = 1;
  refused(encoded(zero), "zero field");
  auto magic = encoded(frame_of(ShmFrameType::kBell, 0));
  magic[0] ^= std::byte{1};
  refused(magic, "magic");
}

}  // namespace
}  // namespace tw::wire

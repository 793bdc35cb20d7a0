// SPDX-License-Identifier: Apache-2.0
#include "process/posting.h"

#include <doctest/doctest.h>

#include <vector>

namespace tw::test {
namespace {

// Of no message in other tests.
constexpr size_t kSize = PostedBuffer::kSmallest + 12345;

Runtime& runtime() {
  auto got = Runtime::get();
  REQUIRE(got.ok());
  return **got;
}

class Owner final : public RefCounted {
 public:
  explicit Owner(int& told) : told_(told) {}

 private:
  ~Owner() override { ++told_; }
  int& told_;
};

// Memory to post, and how often its owner was told that it is not needed any more.
struct Desk {
  explicit Desk(size_t size) : bytes(size) {}
  Ref<PostedBuffer> buffer() {
    return make_ref<PostedBuffer>(bytes.data(), bytes.size(), make_ref<Owner>(told));
  }
  std::vector<std::byte> bytes;
  int told = 0;
};

TEST_CASE("posting: memory waits for a message of its size, and none that is too small") {
  Desk smallest(PostedBuffer::kSmallest), small(PostedBuffer::kSmallest - 1), desk(kSize);
  for (Desk* each : {&smallest, &small, &desk}) post(runtime(), each->buffer());
  CHECK(small.told == 1);
  for (Desk* each : {&smallest, &desk}) {
    CHECK(each->told == 0);
    Ref<PostedBuffer> taken = runtime().pool().take_posted(each->bytes.size());
    REQUIRE(taken);
    CHECK(taken->data() == each->bytes.data());
    taken = nullptr;
    CHECK(each->told == 1);
  }
}

TEST_CASE("posting: a message is in posted memory if that is all of it") {
  Desk desk(kSize);
  const Ref<PostedBuffer> buffer = desk.buffer();
  InMessage message;
  CHECK(posted_for(message) == nullptr);
  message.segments.push_back({desk.bytes.data(), kSize, buffer});
  CHECK(posted_for(message) == buffer.get());
  message.segments.push_back({desk.bytes.data(), 1, buffer});
  CHECK(posted_for(message) == nullptr);
  message.segments.emplace_back();
  int told = 0;
  message.segments[0].hold = make_ref<Owner>(told);  // memory of another kind
  CHECK(posted_for(message) == nullptr);
  message.segments[0].hold = nullptr;
  CHECK(posted_for(message) == nullptr);
}

}  // namespace
}  // namespace tw::test

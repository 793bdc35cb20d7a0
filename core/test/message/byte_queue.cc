// SPDX-License-Identifier: Apache-2.0
#include "message/byte_queue.h"

#include <deque>

#include "test/wire/support.h"

namespace tw {
namespace {

using test::Bytes;
using test::Random;

bool equal(const ByteQueue& queue, const std::deque<std::byte>& model) {
  return queue.size() == model.size() && queue.empty() == model.empty() &&
         std::equal(model.begin(), model.end(), queue.data());
}

TEST_CASE("byte queue: what goes in comes out, in order") {
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    INFO("seed " << seed);
    Random random(seed);
    ByteQueue queue;
    std::deque<std::byte> model;
    const size_t most = size_t{1} << random.up_to(13);
    for (int i = 0; i < 200; ++i) {
      const Bytes bytes = random.bytes(random.up_to(most));
      if (random.chance(50)) {
        queue.append(bytes);
      } else if (!bytes.empty()) {
        std::memcpy(queue.extend(bytes.size()), bytes.data(), bytes.size());
      }
      model.insert(model.end(), bytes.begin(), bytes.end());
      REQUIRE(equal(queue, model));
      const size_t gone =
          random.chance(10) ? queue.size() : random.up_to(std::min(most, queue.size()));
      queue.consume(gone);
      model.erase(model.begin(), model.begin() + static_cast<std::ptrdiff_t>(gone));
      REQUIRE(equal(queue, model));
    }
  }
}

TEST_CASE("byte queue: a standing backlog is not copied for each small frame") {
  ByteQueue queue;
  queue.append(Bytes(1 << 20));
  size_t moves = 0;
  for (int i = 0; i < 10'000; ++i) {
    const std::byte* const before = queue.data();
    queue.consume(32);
    queue.append(Bytes(32));
    moves += queue.data() != before + 32;
  }
  CHECK(moves <= 2);
}

}  // namespace
}  // namespace tw

// SPDX-License-Identifier: Apache-2.0
// The peer's process is killed while its memory is read.
#include <atomic>
#include <cstring>
#include <thread>

#include "test/process.h"
#include "test/transport/verbs/world.h"

namespace tw::test {
namespace {

constexpr size_t kSize = 32 << 20;

template <class Frame, size_t kBytes>
void send_frame(int fd, const Frame& frame) {
  std::array<std::byte, kBytes> bytes;
  wire::encode(bytes, frame);
  write_thing(fd, bytes);
}

wire::VerbsOffer hear_offer(int fd) {
  const auto bytes = read_thing<std::array<std::byte, wire::kVerbsOfferSize>>(fd);
  auto offer = wire::decode_verbs_offer(bytes);
  REQUIRE(offer.ok());
  return *offer;
}

TEST_CASE("helper: verbs lender" * doctest::skip()) {
  Fd door(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  REQUIRE(bind(door.get(), reinterpret_cast<sockaddr*>(&address), size) == 0);
  REQUIRE(listen(door.get(), 1) == 0);
  REQUIRE(getsockname(door.get(), reinterpret_cast<sockaddr*>(&address), &size) == 0);
  write_thing(kToTest, address);
  Fd side(accept4(door.get(), nullptr, nullptr, SOCK_CLOEXEC));
  REQUIRE(side);
  auto joining = verbs_world().answer(hear_offer(side.get()));
  send_frame<wire::VerbsOffer, wire::kVerbsOfferSize>(side.get(), joining->frame());
  (void)read_thing<char>(side.get());  // ready
  auto transport = joining->become(std::move(side));
  auto block = verbs_world().arena->allocate(kSize);
  REQUIRE(block.ok());
  fill_words((*block)->data(), kSize);
  REQUIRE(transport->share((*block)->slab()).ok());
  REQUIRE(send_pattern(*transport, 0, 1) == 1);
  write_thing(kToTest, (*block)->region());
  char byte;
  (void)read(kFromTest, &byte, 1);  // until it is killed
}

TEST_CASE("verbs: a peer that is killed in the middle of a fetch is noticed by its connection") {
  TENSORWIRE_NEEDS_VERBS;
  Helper helper("verbs lender");
  const auto address = helper.hear<sockaddr_in>();
  Fd side(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  REQUIRE(connect(side.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
  auto joining = verbs_world().offer();
  send_frame<wire::VerbsOffer, wire::kVerbsOfferSize>(side.get(), joining->frame());
  REQUIRE(joining->accept(hear_offer(side.get())).ok());
  write_thing(side.get(), 'r');
  auto transport = joining->become(std::move(side));
  const auto region = helper.hear<RegionRef>();
  while (receive_pattern(*transport, 0, 1) == 0)
    REQUIRE(transport->sleep(false, patience()) == Wake::kReady);
  auto target = verbs_world().arena->allocate(kSize);
  REQUIRE(target.ok());
  std::memset((*target)->data(), 0, kSize);
  // By another thread: Soft-RoCE moves the bytes in the thread that posts.
  volatile const std::byte* const first = (*target)->data();
  std::atomic<bool> seen{false};
  std::thread killer([&] {
    seen = eventually([&] { return *first != std::byte{}; });
    helper.kill();
  });
  uint64_t begun = 0;
  for (; begun < 8; ++begun) {
    auto taken = transport->fetch(begun, region, (*target)->data());
    if (!taken.ok() || !*taken) break;  // as many as there is room for, or it is dead already
  }
  killer.join();
  REQUIRE(seen);
  REQUIRE(begun > 0);
  Status end;
  uint64_t whole = 0;
  while (end.ok()) {
    std::array<Completion, 8> ended;
    const size_t count = transport->completed(ended);
    for (size_t i = 0; i < count; ++i) whole += ended[i].status.ok();
    char byte;
    const iovec room = run_of(&byte, 1);
    const auto got = transport->receive({&room, 1});
    if (!got.ok()) {
      end = got.status();
    } else if (*got == 0 && count == 0) {
      REQUIRE(transport->sleep(false, patience()) == Wake::kReady);
    }
  }
  CHECK(whole < begun);
  CHECK(end.code() == Code::kUnavailable);
  INFO(end.details());
  // Nothing of this process is written any more once the memory is taken back.
  transport->revoke();
  std::memset((*target)->data(), 0x55, kSize);
  transport.reset();
  const std::vector<std::byte> expected(kSize, std::byte{0x55});
  CHECK(std::memcmp((*target)->data(), expected.data(), kSize) == 0);
}

}  // namespace
}  // namespace tw::test

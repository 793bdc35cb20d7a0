// SPDX-License-Identifier: Apache-2.0
// Writers that end between the bytes of a write and its signal, at any place: nobody may see the
// signal then.
#include <sys/mman.h>

#include <algorithm>
#include <array>

#include "test/access/machines.h"
#include "test/access/one_sided.h"
#include "test/call/helper.h"

namespace tw::test {
namespace {

uint64_t word_at(const std::byte* at) {
  uint64_t value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

// ---- the machines: a link that is cut after each byte ----

// A payload of two regions, which the word of the first one tells of, or that of a third one.
struct Payload {
  static constexpr size_t kBytes = 300, kWord = 304;

  explicit Payload(bool apart) {
    for (const std::byte*& at : memory) {
      ids.push_back(sides.b.expose(kWord + 8, kMayRead | kMayWrite));
      at = sides.b.exposed;
    }
    flag = apart ? 2 : 0;
    REQUIRE(sides.settle().ok());
  }

  void write(uint8_t value) {
    local.assign(kBytes, std::byte{value});
    const std::array requests{access(Kind::kWrite, ids[0], 0, local.data(), kBytes),
                              access(Kind::kWrite, ids[1], 1, local.data(), kBytes - 1)};
    const auto batch = AccessBatch::make(requests, Signal{ids[flag], kWord, value, false}).value();
    REQUIRE(sides.a.initiator.submit(batch, std::nullopt, {}, {}).ok());
    sides.a.initiator.fill();
  }
  // One byte in each direction. False: there is none.
  bool move() {
    size_t moved = 0;
    for (Side* side : {&sides.a, &sides.b}) {
      moved += side->send(1);
      if (side->arrived.empty()) continue;
      ++moved;
      REQUIRE(side->receive(1).ok());
    }
    return moved != 0;
  }
  uint64_t signal() const { return word_at(memory[flag] + kWord); }
  bool torn() const {
    const auto behind = [&](std::byte b) { return static_cast<uint8_t>(b) < signal(); };
    return std::any_of(memory[0], memory[0] + kBytes, behind) ||
           std::any_of(memory[1] + 1, memory[1] + kBytes, behind);
  }

  Sides sides;
  std::vector<uint64_t> ids;
  std::array<const std::byte*, 3> memory{};
  size_t flag;
  Bytes local;
};

TEST_CASE("torn: no byte of a link shows a signal before its payload") {
  for (const bool apart : {false, true}) {
    CAPTURE(apart);
    Payload payload(apart);
    size_t unsignalled = 0, torn = 0;
    for (uint8_t round = 1; round <= 3; ++round) {
      payload.write(round);
      for (bool more = true; more;) {
        more = payload.move();
        torn += payload.torn();
        unsignalled += payload.signal() < round;
      }
      CHECK(payload.signal() == round);
    }
    CHECK(torn == 0);
    CHECK(unsignalled > 3 * 2 * Payload::kBytes);
  }
}

TEST_CASE("torn: a link that is cut at any byte leaves no signal without its payload") {
  for (const bool apart : {false, true}) {
    CAPTURE(apart);
    size_t without = 0, with = 0;
    for (size_t bytes = 0;; bytes += 7) {
      CAPTURE(bytes);
      Payload payload(apart);
      payload.write(1);
      bool more = true;
      for (size_t moved = 0; moved < bytes && more; ++moved) more = payload.move();
      // What is received no further is stored no further.
      payload.sides.a.initiator.drop({Code::kUnavailable, "cut"});
      const auto kept = payload.sides.b.target.drop();  // and with them the memory
      CHECK(kept.size() == 3);
      CHECK_FALSE(payload.torn());
      CHECK(payload.signal() <= 1);
      (payload.signal() == 0 ? without : with) += 1;
      if (!more) break;
    }
    CHECK(without > 50);
    CHECK(with > 0);
  }
}

// ---- links between processes: a writer that dies at a page of its payload ----

struct Torn {
  uint64_t region, flags;
  uint64_t size;  // whole pages
  uint64_t hole;  // the page that cannot be read; `size`: none
};

// Writes once, with a signal. Who touches the hole is killed; where the kernel reads there, the
// link breaks.
TEST_CASE("helper: torn writer" * doctest::skip()) {
  const auto link = follow(read_thing<Invite>(kFromTest));
  const auto task = read_thing<Torn>(kFromTest);
  AccessPort& side = link->access();
  arrived(side, task.region);
  arrived(side, task.flags);
  void* const memory =
      mmap(nullptr, task.size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  REQUIRE(memory != MAP_FAILED);
  auto* const local = static_cast<std::byte*>(memory);
  std::fill_n(local, task.size, std::byte{1});
  if (task.hole != task.size) REQUIRE(mprotect(local + task.hole, page_size(), PROT_NONE) == 0);
  struct sigaction dies{};
  dies.sa_handler = [](int) { ::kill(getpid(), SIGKILL); };
  REQUIRE(sigaction(SIGSEGV, &dies, nullptr) == 0);
  const auto batch =
      side.prepare(std::array{access(Kind::kWrite, task.region, 0, local, task.size)},
                   Signal{task.flags, 8, 1, false})
          .value();
  const auto started = side.start(batch, std::nullopt, {}, {}, true);
  if (started) (void)ended(side, **started);
  char byte;
  (void)::read(kFromTest, &byte, 1);
}

TEST_CASE_TEMPLATE("torn: a writer that dies at any chunk of its payload raises no signal", Way,
                   ShmWay, TcpWay, MappedWay) {
  std::atomic<int>& live = tally();
  OneSidedHouse<Way> house;
  const auto write = [&](uint64_t size_in_chunks, uint64_t hole_in_chunks, uint64_t hole_in_pages) {
    REQUIRE(eventually([&] { return ports_of(house.server()).empty(); }));
    Helper writer("torn writer");
    writer.tell(invite(house.invitation(Way::kName)));
    REQUIRE(eventually([&] { return ports_of(house.server()).size() == 1; }));
    const Ref<ServerPort> port = ports_of(house.server()).at(0);
    const size_t chunk = port->link().profile().chunk_bytes;
    REQUIRE(chunk % page_size() == 0);
    // The last page is one of its own: the end of a payload that is no multiple of a chunk.
    const uint64_t size = size_in_chunks * chunk + page_size();
    const uint64_t hole = hole_in_chunks * chunk + hole_in_pages * page_size();
    const auto memory = make_ref<Storage>(size, live, kFrom<Way>);
    const auto flags = make_ref<Storage>(64, live, kFrom<Way>);
    AccessPort& side = port->access();
    const Torn task{side.expose(memory->data(), size, kMayWrite, memory).value(),
                    side.expose(flags->data(), 64, kMayWrite, flags).value(), size, hole};
    const auto word = side.word(task.flags, 8).value();
    writer.tell(task);  // after which the link may go at any time
    if (hole == size) {
      CHECK(side.wait_word(word, 1, patience()) == Waited::kDone);
      writer.kill();
    }
    CHECK(eventually([&] { return ports_of(house.server()).empty(); }));
    CHECK(word.load() == (hole == size ? 1 : 0));
    const auto bytes = memory->bytes();
    const auto whole =
        static_cast<uint64_t>(std::find(bytes.begin(), bytes.end(), std::byte{}) - bytes.begin());
    CHECK(whole <= hole);
    return whole;
  };
  constexpr uint64_t kChunks = 3;
  uint64_t most = 0;
  for (uint64_t chunk = 0; chunk <= kChunks; ++chunk) {
    CAPTURE(chunk);
    most = std::max(most, write(kChunks, chunk, 0));
  }
  CHECK(most != 0);  // of some, a part was there
  CAPTURE(most);
  CHECK(write(kChunks, kChunks, 1) > most);
}

}  // namespace
}  // namespace tw::test

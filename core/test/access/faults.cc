// SPDX-License-Identifier: Apache-2.0
// One-sided operations whose region, link or peer goes while they are under way.
#include <algorithm>
#include <utility>

#include "test/access/one_sided.h"
#include "test/call/helper.h"

namespace tw::test {
namespace {

constexpr size_t kExposed = 32 << 20;
constexpr int kCanary = 0x55;

bool untouched(std::span<const std::byte> bytes) {
  return bytes.front() == std::byte{kCanary} &&
         std::memcmp(bytes.data(), bytes.data() + 1, bytes.size() - 1) == 0;
}

TEST_CASE_TEMPLATE("one-sided: a region concealed under fire is not touched any more", Way,
                   TENSORWIRE_ACCESS_WAYS) {
  if (!possible<Way>()) return;
  std::atomic<int>& live = tally();
  {
    OneSidedHouse<Way> house;
    Ends<Way> ends(house);
    if (!by_runtime(*ends.client)) return;
    std::atomic<uint64_t> target{0};
    std::atomic<bool> over{false};
    std::atomic<uint64_t> done{0}, refused{0}, wrong{0};
    // Each has a part of its own: mapped memory keeps nobody from racing with himself.
    const auto fire = [&](Kind kind, uint64_t offset) {
      std::vector<std::byte> local(100'000);
      while (!over) {
        const Status status = run(ends.here(), access(kind, target, offset, local.data(),
                                                      wire::updates(kind) ? 8 : local.size()));
        done += status.ok();
        refused += status.code() == Code::kNotFound;
        wrong += !status.ok() && status.code() != Code::kNotFound;
      }
    };
    std::vector<std::thread> threads;
    uint64_t offset = 0;
    for (const Kind kind : {Kind::kWrite, Kind::kRead, Kind::kFetchAdd})
      threads.emplace_back(fire, kind, std::exchange(offset, offset + 100'000));
    for (int round = 0; round < 30; ++round) {
      const auto [region, memory] = expose(ends, 300'000, kAllRights, live);
      const uint64_t before = done;
      target = region;
      CHECK(eventually([&] { return done >= before + 5; }));
      {
        auto gone = ends.there().conceal(region);
        REQUIRE(gone.ok());
        CHECK(ends.there().wait_left(**gone, patience()) == Waited::kDone);
      }
      // Freed by now: a sanitizer sees whoever still looks there.
      CHECK(live == 0);
      (void)memory;
    }
    over = true;
    for (auto& thread : threads) thread.join();
    CHECK(wrong == 0);
    CHECK(refused > 0);
    CHECK(ends.client->link().alive());
    CHECK(unary(*ends.client, "/t/Echo", {out(bytes_of(10))}).code == Code::kOk);
  }
}

// ---- another process ----

// Exposes memory on request and serves it.
TEST_CASE("helper: one-sided server" * doctest::skip()) {
  const auto hello = read_thing<std::array<std::byte, wire::kHelloSize>>(kFromTest);
  std::atomic<int>& live = tally();
  House house([&](Ref<ServerCall> call) {
    const From from = call->method() == "/t/ExposeShared"  ? From::kShared
                      : call->method() == "/t/ExposeArena" ? From::kArena
                                                           : From::kHeap;
    auto memory = make_ref<Storage>(kExposed, live, from);
    const Rights rights = from == From::kArena ? kMayRead : kAllRights;
    if (from == From::kArena) std::memset(memory->data(), kCanary, kExposed);
    const uint64_t region =
        call->port().access().expose(memory->data(), kExposed, rights, memory).value();
    answer(*call, {out(std::as_bytes(std::span(&region, 1)))});
    return Ref<ServerCall>{};
  });
  auto ticket = house.server().listener().admit(wire::decode_hello(hello).value(), 2, 60 * kSecond);
  REQUIRE(ticket.ok());
  for (const std::string& address : {house.shm(), house.tcp()}) {
    meet::Invitation in{address, ticket->session, ticket->secret, house.server().instance(),
                        runtime().hello()};
    write_thing(kToTest, invite(in));
  }
  char byte;
  (void)::read(kFromTest, &byte, 1);  // until the test ends, or this process is killed
}

// A server in another process, a link to it, and a region there.
template <class Way>
struct Abroad {
  explicit Abroad(const char* method = "/t/Expose") : helper("one-sided server") {
    std::array<std::byte, wire::kHelloSize> hello;
    wire::encode_hello(hello, runtime().hello());
    helper.tell(hello);
    const auto shm = helper.template hear<Invite>(), tcp = helper.template hear<Invite>();
    Invite chosen = std::string_view(Way::kName) == "shm" ? shm : tcp;
    if (std::string_view(Way::kName) == "verbs") {
      const std::string address = "verbs" + std::string(std::strchr(tcp.address, ':'));
      address.copy(chosen.address, sizeof chosen.address - 1);
      chosen.address[address.size()] = 0;
    }
    link = follow(chosen);
    const Reply reply = unary(*link, method, {});
    REQUIRE(reply.segments.size() == 1);
    std::memcpy(&region, reply.segments[0].data, sizeof region);
  }
  ~Abroad() { link->link().close({Code::kCancelled, "the test is over"}); }

  // Operations that a stopped peer leaves under way.
  std::vector<Ref<Access>> leave_under_way(std::atomic<int>& live) {
    std::vector<Ref<Access>> started;
    for (const Kind kind : {Kind::kRead, Kind::kWrite, Kind::kFetchAdd, Kind::kWriteImmediate}) {
      const size_t size = wire::updates(kind) ? 8 : kExposed;
      auto local = make_ref<Storage>(size, live);
      auto begun =
          link->access().start(access(kind, region, 0, local->data(), size), local, told.next());
      REQUIRE(begun.ok());
      started.push_back(std::move(*begun));
    }
    return started;
  }

  Helper helper;
  Ref<CallPort> link;
  uint64_t region = 0;
  ToldEnds told;
};

TEST_CASE_TEMPLATE("one-sided: a killed peer ends all operations as unavailable", Way,
                   TENSORWIRE_ONE_SIDED_WAYS) {
  if (!possible<Way>()) return;
  std::atomic<int>& live = tally();
  Abroad<Way> abroad;
  if (!by_runtime(*abroad.link)) return;
  std::byte byte{};
  REQUIRE(read(abroad.link->access(), abroad.region, kExposed - 1, {&byte, 1}).ok());
  auto mine = make_ref<Storage>(64, live);
  REQUIRE(abroad.link->access().expose(mine->data(), 64, kAllRights, mine).ok());
  mine = nullptr;
  abroad.helper.stop();
  const auto started = abroad.leave_under_way(live);
  CHECK(live == 5);
  std::thread waits(
      [&] { CHECK(ended(abroad.link->access(), *started[0]).code() == Code::kUnavailable); });
  abroad.helper.kill();
  waits.join();
  for (const auto& one : started) {
    CHECK(ended(abroad.link->access(), *one).code() == Code::kUnavailable);
    CHECK(one->status().details().size() > 10);
  }
  CHECK(eventually([&] { return live == 0; }));
  CHECK(eventually([&] { return abroad.told.count() == 4; }));
  CHECK(read(abroad.link->access(), abroad.region, 0, {&byte, 1}).code() == Code::kUnavailable);
  CHECK(abroad.link->access().expose(&byte, 1, kMayRead, {}).status().code() == Code::kUnavailable);
  CHECK(abroad.link->access().wait_immediate(patience()) == Waited::kDone);
}

TEST_CASE_TEMPLATE("one-sided: a link that is closed ends its operations at once", Way,
                   TENSORWIRE_ONE_SIDED_WAYS) {
  if (!possible<Way>()) return;
  std::atomic<int>& live = tally();
  Abroad<Way> abroad;
  if (!by_runtime(*abroad.link)) return;
  auto mine = make_ref<Storage>(64, live);
  const uint64_t region = abroad.link->access().expose(mine->data(), 64, kAllRights, mine).value();
  mine = nullptr;
  abroad.helper.stop();
  const auto started = abroad.leave_under_way(live);
  std::thread waits(
      [&] { CHECK(ended(abroad.link->access(), *started[1]).code() == Code::kCancelled); });
  abroad.link->link().close({Code::kCancelled, "enough"});
  waits.join();
  for (const auto& one : started) {
    CHECK(one->ended());
    CHECK(one->status().code() == Code::kCancelled);
  }
  CHECK(eventually([&] { return live == 0; }));
  CHECK(abroad.told.count() == 4);
  CHECK(abroad.link->access().conceal(region).status().code() == Code::kNotFound);
  std::byte byte{};
  CHECK(read(abroad.link->access(), abroad.region, 0, {&byte, 1}).code() == Code::kCancelled);
  abroad.helper.go_on();
}

TEST_CASE_TEMPLATE("one-sided: a wait that runs out of time leaves the operation under way", Way,
                   TENSORWIRE_ONE_SIDED_WAYS) {
  if (!possible<Way>()) return;
  std::atomic<int>& live = tally();
  Abroad<Way> abroad;
  if (!by_runtime(*abroad.link)) return;
  abroad.helper.stop();
  const auto started = abroad.leave_under_way(live);
  for (const auto& one : started)
    CHECK(abroad.link->access().wait(*one, now() + kMillisecond) == Waited::kTimeout);
  CHECK(live == 4);
  abroad.helper.go_on();
  for (const auto& one : started) CHECK(ended(abroad.link->access(), *one).ok());
  CHECK(live == 0);
}

constexpr int kFalseBytes = 1000;  // a read went well, and what it has read is not the region's

// Writes into a region of its server, or reads there, until it is killed or that fails.
TEST_CASE("helper: one-sided client" * doctest::skip()) {
  const auto link = follow(read_thing<Invite>(kFromTest));
  const auto kind = read_thing<Kind>(kFromTest);
  const auto region = read_thing<uint64_t>(kFromTest);
  arrived(link->access(), region);
  std::vector<std::byte> local(kExposed, std::byte{1});
  int code = 0;
  while (code == 0) {
    code = static_cast<int>(
        run(link->access(), access(kind, region, 0, local.data(), kExposed)).code());
    // Of each page one: nearly all of its time it reads.
    for (size_t i = 0; i < kExposed && code == 0 && kind == Kind::kRead; i += 4096)
      if (local[i] != std::byte{kCanary}) code = kFalseBytes;
    write_thing(kToTest, code);
  }
  char byte;
  (void)::read(kFromTest, &byte, 1);
}

// A server here, and another process that writes into its region, or reads there.
template <class Way>
struct Busybody {
  Busybody(OneSidedHouse<Way>& house, std::atomic<int>& live, Kind kind = Kind::kWrite,
           From from = From::kHeap)
      : helper("one-sided client") {
    // Of a writer before it.
    REQUIRE(eventually([&] { return ports_of(house.server()).empty(); }));
    helper.tell(invite(house.invitation(Way::kName)));
    CHECK(eventually([&] { return ports_of(house.server()).size() == 1; }));
    link = ports_of(house.server()).at(0);
    memory = make_ref<Storage>(kExposed, live, from);
    std::memset(memory->data(), kCanary, kExposed);
    const Rights rights = kind == Kind::kRead ? kMayRead : kMayWrite;
    region = link->access().expose(memory->data(), kExposed, rights, memory).value();
    helper.tell(kind);
    helper.tell(region);
    CHECK(helper.template hear<int>() == 0);
  }
  // How what it does has failed.
  int end() {
    int code = 0;
    while (code == 0) code = helper.template hear<int>();
    return code;
  }

  Helper helper;
  Ref<ServerPort> link;
  Ref<Storage> memory;
  uint64_t region;
};

TEST_CASE_TEMPLATE("one-sided: a region is concealed while a write into it stands still", Way,
                   TENSORWIRE_ONE_SIDED_WAYS) {
  if (!possible<Way>()) return;
  std::atomic<int>& live = tally();
  OneSidedHouse<Way> house;
  Busybody<Way> writer(house, live);
  writer.memory = nullptr;
  if (!by_runtime(*writer.link)) return;
  writer.helper.stop();
  CHECK(writer.link->access().conceal(writer.region).ok());
  CHECK(live == 0);
  writer.helper.go_on();
  int code = 0;
  while (code == 0) code = writer.helper.template hear<int>();
  CHECK(code == static_cast<int>(Code::kNotFound));
  CHECK(writer.link->link().alive());
}

TEST_CASE_TEMPLATE("one-sided: a writer that is killed leaves nothing behind", Way,
                   TENSORWIRE_ONE_SIDED_WAYS) {
  if (!possible<Way>()) return;
  std::atomic<int>& live = tally();
  OneSidedHouse<Way> house;
  Busybody<Way> writer(house, live);
  writer.memory = nullptr;
  writer.helper.kill();
  CHECK(eventually([&] { return live == 0; }));
  CHECK(eventually([&] { return ports_of(house.server()).empty(); }));
}

TEST_CASE("one-sided: mapped memory is accessed while its owner stands still") {
  Abroad<ShmWay> abroad("/t/ExposeShared");
  AccessPort& side = abroad.link->access();
  REQUIRE(side.mapped(abroad.region));
  abroad.helper.stop();
  const auto sent = bytes_of(100'000);
  CHECK(write(side, abroad.region, 800, sent).ok());
  std::vector<std::byte> got(sent.size());
  CHECK(read(side, abroad.region, 800, got).ok());
  CHECK(got == sent);
  CHECK(update(side, Kind::kFetchAdd, abroad.region, 0, 7) == 0);
  CHECK(update(side, Kind::kCompareSwap, abroad.region, 0, 9, 7) == 7);
  CHECK(update(side, Kind::kCompareSwap, abroad.region, 0, 1, 7) == 9);
  abroad.helper.kill();
  CHECK(eventually([&] { return side.over(); }));
  CHECK(read(side, abroad.region, 800, got).code() == Code::kUnavailable);
}

TEST_CASE("one-sided: memory of an arena is read while its owner stands still") {
  Abroad<ShmWay> abroad("/t/ExposeArena");
  AccessPort& side = abroad.link->access();
  REQUIRE(side.mapped(abroad.region));
  abroad.helper.stop();
  std::vector<std::byte> got(kExposed - 3);
  CHECK(read(side, abroad.region, 3, got).ok());
  CHECK(untouched(got));
  AccessRequest runs = access(Kind::kRead, abroad.region, 5, got.data(), 100);
  runs.count = 1000;
  runs.stride = 4097;
  runs.local_stride = 100;
  std::fill(got.begin(), got.end(), std::byte{});
  const auto batch = side.prepare(std::array{runs}, std::nullopt).value();
  CHECK(side.start(batch, std::nullopt, {}).value()->ended());
  CHECK(untouched(std::span(got).first(100'000)));
  CHECK(read(side, abroad.region, 4, got).code() == Code::kOutOfRange);
  CHECK(write(side, abroad.region, 0, got).code() == Code::kPermissionDenied);
  CHECK(side.prepare(std::array{access(Kind::kWrite, abroad.region, 0, got.data(), 8)}, {})
            .status()
            .code() == Code::kPermissionDenied);
  abroad.helper.kill();
  CHECK(eventually([&] { return side.over(); }));
  CHECK(read(side, abroad.region, 800, got).code() == Code::kUnavailable);
}

struct Amid {
  Kind kind;
  From from;
};

// A peer that is stopped while it copies bytes keeps the memory until it goes on, or dies.
TEST_CASE("one-sided: who conceals mapped memory waits for the peer that is amid an access") {
  std::atomic<int>& live = tally();
  OneSidedHouse<ShmWay> house;
  for (const auto& [kind, from] :
       {Amid{Kind::kWrite, From::kShared}, Amid{Kind::kRead, From::kArena}}) {
    for (const bool dies : {true, false}) {
      CAPTURE(dies);
      bool inside = false;
      for (int attempt = 0; attempt < 50 && !inside; ++attempt) {
        Busybody<ShmWay> peer(house, live, kind, from);
        peer.memory = nullptr;
        AccessPort& side = peer.link->access();
        peer.helper.stop();
        {
          const auto gone = side.conceal(peer.region);
          REQUIRE(gone.ok());
          inside = !(*gone)->left();
          if (inside) {
            CHECK(side.wait_left(**gone, now() + kMillisecond) == Waited::kTimeout);
            CHECK(side.conceal(peer.region).value().get() == gone->get());
          }
          if (dies)
            peer.helper.kill();
          else
            peer.helper.go_on();
          CHECK(side.wait_left(**gone, patience()) == Waited::kDone);
          CHECK(side.conceal(peer.region).status().code() == Code::kNotFound);
        }
        if (!dies) CHECK(peer.end() == static_cast<int>(Code::kNotFound));
      }
      CHECK(inside);
      CHECK(eventually([&] { return live == 0; }));
    }
  }
}

// The end of a link waits for nobody: the memory may be another owner's while a peer that was
// stopped still copies.
TEST_CASE("one-sided: what a peer read of an arena while its link ended is not believed") {
  std::atomic<int>& live = tally();
  OneSidedHouse<ShmWay> house;
  bool inside = false;
  for (int attempt = 0; attempt < 50 && !inside; ++attempt) {
    Busybody<ShmWay> peer(house, live, Kind::kRead, From::kArena);
    peer.helper.stop();
    inside = !peer.link->access().conceal(peer.region).value()->left();
    peer.link->link().close({Code::kCancelled, "enough"});
    std::memset(peer.memory->data(), 1, kExposed);
    peer.helper.go_on();
    const int code = peer.end();
    CHECK((code == static_cast<int>(Code::kUnavailable) ||
           (!inside && code == static_cast<int>(Code::kNotFound))));
  }
  CHECK(inside);
  CHECK(eventually([&] { return live == 0; }));
}

TEST_CASE("one-sided: memory of an arena is used anew once its readers have left") {
  constexpr size_t kBytes = 1 << 20;
  std::atomic<int>& live = tally();
  OneSidedHouse<ArenaWay> house;
  Ends<ArenaWay> ends(house);
  std::atomic<uint64_t> target{0};  // the region, and what it is full of
  std::atomic<bool> over{false};
  std::atomic<uint64_t> done{0}, wrong{0};
  const auto reads = [&] {
    std::vector<std::byte> local(kBytes);
    while (!over) {
      const uint64_t now = target;
      const Status status = read(ends.here(), now >> 8, 0, local);
      done += status.ok();
      wrong += status.ok() && (local[0] != static_cast<std::byte>(now) ||
                               std::memcmp(local.data(), local.data() + 1, kBytes - 1) != 0);
      wrong += !status.ok() && status.code() != Code::kNotFound;
    }
  };
  std::vector<std::thread> threads;
  for (int i = 0; i < 2; ++i) threads.emplace_back(reads);
  for (uint64_t round = 1; round < 40; ++round) {
    auto memory = make_ref<Storage>(kBytes, live, From::kArena);
    std::memset(memory->data(), static_cast<int>(round), kBytes);
    const uint64_t region = ends.there().expose(memory->data(), kBytes, kMayRead, memory).value();
    memory = nullptr;
    arrived(ends.here(), region);
    const uint64_t before = done;
    target = region << 8 | round;
    CHECK(eventually([&] { return done >= before + 3; }));
    const auto gone = ends.there().conceal(region);
    REQUIRE(gone.ok());
    CHECK(ends.there().wait_left(**gone, patience()) == Waited::kDone);
  }
  over = true;
  for (auto& thread : threads) thread.join();
  CHECK(wrong == 0);
  CHECK(live == 0);
}

TEST_CASE_TEMPLATE("one-sided: a peer that closes its link ends operations on its memory", Way,
                   TENSORWIRE_ONE_SIDED_WAYS) {
  if (!possible<Way>()) return;
  std::atomic<int>& live = tally();
  OneSidedHouse<Way> house;
  Ends<Way> ends(house);
  const auto [region, memory] = expose(ends, 1 << 20, kAllRights, live);
  std::vector<std::byte> local(1 << 20);
  std::thread closes([&] { house.server().close(); });
  Status status;
  while (status.ok()) status = read(ends.here(), region, 0, local);
  CAPTURE(status.details());
  // A device may refuse a read that is under way while the memory is taken back.
  CHECK((status.code() == Code::kUnavailable ||
         (std::is_same_v<Way, VerbsWay> && status.code() == Code::kPermissionDenied)));
  closes.join();
  CHECK(eventually([&] { return live == 0; }));
  (void)memory;
}

// ---- where a device does the operations, also for a peer that stands still ----

void set_canary(const Storage& memory) {
  std::memset(memory.data(), kCanary, memory.bytes().size());
}

TEST_CASE("one-sided: verbs: a region concealed under fire is not touched any more") {
  if (!possible<VerbsWay>()) return;
  constexpr size_t kBytes = 1 << 20;
  std::atomic<int>& live = tally();
  for (int round = 0; round < 5; ++round) {
    OneSidedHouse<VerbsWay> house;
    Ends<VerbsWay> ends(house);
    auto memory = make_ref<Storage>(kBytes, live);
    const auto exposed = ends.there().expose(memory->data(), kBytes, kAllRights, memory);
    REQUIRE_MESSAGE(exposed.ok(), exposed.status().details());
    arrived(ends.here(), *exposed);
    std::atomic<uint64_t> done{0};
    std::vector<std::thread> threads;
    for (const Kind kind : {Kind::kWrite, Kind::kRead, Kind::kFetchAdd}) {
      threads.emplace_back([&, kind] {
        std::vector<std::byte> local(kBytes);
        const size_t size = wire::updates(kind) ? 8 : kBytes;
        Status status;
        AccessRequest request = access(kind, *exposed, 0, local.data(), size);
        request.operand = 1;
        for (; status.ok(); done += status.ok()) status = run(ends.here(), request);
        // As the region is known to be gone, or the device refuses and the link is lost.
        CHECK((status.code() == Code::kNotFound || status.code() == Code::kPermissionDenied ||
               status.code() == Code::kUnavailable));
      });
    }
    CHECK(eventually([&] { return done >= 5; }));
    CHECK(ends.there().conceal(*exposed).ok());
    set_canary(*memory);
    for (auto& thread : threads) thread.join();
    CHECK(untouched(memory->bytes()));
  }
  CHECK(live == 0);
}

// Reads, writes and atomics, one after the other until one fails, and memory of this end's that may
// tell of late ones.
struct Busy {
  explicit Busy(AccessPort& side, uint64_t region) {
    for (const Kind kind : {Kind::kRead, Kind::kWrite, Kind::kFetchAdd}) {
      const size_t size = wire::updates(kind) ? 8 : kExposed;
      memory.push_back(make_ref<Storage>(size, live));
      threads.emplace_back([this, &side, region, kind, own = memory.back()] {
        AccessRequest request = access(kind, region, 0, own->data(), own->bytes().size());
        Status status;
        for (; status.ok(); done += status.ok()) status = run(side, request);
        codes.put(status.code());
        set_canary(*own);
      });
    }
    CHECK(eventually([this] { return done >= 5; }));
  }
  void end_as(Code code) {
    for (auto& thread : threads) thread.join();
    for (const auto& one : memory) {
      CHECK(codes.take() == code);
      CHECK(untouched(one->bytes()));
    }
  }

  std::atomic<int>& live = tally();
  std::atomic<uint64_t> done{0};
  Slot<Code> codes;
  std::vector<Ref<Storage>> memory;
  std::vector<std::thread> threads;
};

TEST_CASE("one-sided: verbs: a peer that is killed ends what is under way") {
  if (!possible<VerbsWay>()) return;
  Abroad<VerbsWay> abroad;
  Busy operations(abroad.link->access(), abroad.region);
  abroad.helper.kill();
  operations.end_as(Code::kUnavailable);
}

TEST_CASE("one-sided: verbs: a link that is closed ends what is under way") {
  if (!possible<VerbsWay>()) return;
  Abroad<VerbsWay> abroad;
  Busy operations(abroad.link->access(), abroad.region);
  abroad.link->link().close({Code::kCancelled, "enough"});
  operations.end_as(Code::kCancelled);
}

}  // namespace
}  // namespace tw::test

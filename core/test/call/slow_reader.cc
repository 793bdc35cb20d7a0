// SPDX-License-Identifier: Apache-2.0
// A peer that takes its replies slowly, or not at all: it holds up no worker, keeps no more memory
// than it may, and loses what it has given up.
#include <atomic>
#include <limits>
#include <optional>

#include "test/call/world.h"
#include "wire/call_header.h"

namespace tw::test {
namespace {

namespace flag = wire::call_flag;

// Proved itself as any client does; then it sends what it is told to, and takes bytes when it is
// told to.
class Reader {
 public:
  explicit Reader(House& house) {
    auto connected = meet::connect(runtime(), house.invitation("tcp"), patience());
    REQUIRE(connected.ok());
    transport_ = std::move(connected->transport);
    sender_.emplace(transport_->profile(), [](Slab&) { return Status(); });
  }

  void call(uint64_t stream, std::string_view method, Nanos timeout = 0) {
    wire::CallHeader header;
    header.flags = flag::kStart | flag::kEnd;
    header.method = method;
    header.timeout_ns = static_cast<uint64_t>(timeout);
    send(stream, header);
  }
  void cancel(uint64_t stream) {
    wire::CallHeader header;
    header.flags = flag::kCancel;
    header.code = Code::kCancelled;
    send(stream, header);
  }
  void take(size_t bytes) {
    std::vector<std::byte> room(std::min<size_t>(bytes, 1 << 20));
    while (bytes != 0) {
      iovec run{room.data(), std::min(bytes, room.size())};
      const auto got = transport_->receive({&run, 1});
      REQUIRE(got.ok());
      bytes -= *got;
      if (*got == 0) REQUIRE(transport_->sleep(false, patience()) != Wake::kTimeout);
    }
  }

 private:
  void send(uint64_t stream, const wire::CallHeader& header) {
    std::vector<std::byte> bytes(wire::call_header_size(header));
    wire::encode_call_header(bytes.data(), header);
    REQUIRE(sender_->submit(stream, bytes, {}).ok());
    while (sender_->pending()) {
      iovec runs[4];
      const size_t count = sender_->gather(runs);
      const auto taken = transport_->send({runs, count});
      REQUIRE(taken.ok());
      sender_->sent(*taken);
    }
  }

  std::unique_ptr<Transport> transport_;
  std::optional<Sender> sender_;
};

constexpr size_t kLarge = 64 << 20;

class Told final : public RefCounted {
 public:
  explicit Told(std::atomic<int>& times) : times_(times) {}

 private:
  ~Told() override { ++times_; }
  std::atomic<int>& times_;
};

// Answers /t/Large with what nobody has to keep still, and everything else with what was sent.
struct Library {
  explicit Library(Keeper::How how, int workers = 2)
      : keeper{how,
               [](void* context) -> Hold {
                 auto* const library = static_cast<Library*>(context);
                 ++library->kept;
                 return make_ref<Told>(library->told);
               },
               this},
        house(
            [this](Ref<ServerCall> call) {
              if (call->method() != "/t/Large") {
                echo(*call);
                return Ref<ServerCall>{};
              }
              std::vector<OutSegment> segments{out(large)};
              stage(call->link(), segments);
              Ref<ServerCall> next;
              if (handled.fetch_add(1) % 2 == 0)
                (void)call->finish(Code::kOk, {}, {}, true, segments, keeper);
              else
                (void)call->finish_and_poll(Code::kOk, {}, {}, true, segments, keeper, next);
              left.fetch_add(1);
              return next;
            },
            workers) {}

  const std::vector<std::byte> large = std::vector<std::byte>(kLarge, std::byte{7});
  std::atomic<int> handled{0}, left{0}, kept{0}, told{0};
  const Keeper keeper;
  House house;
};

TEST_CASE("slow reader: one that stops or drips holds up no worker") {
  Keeper::How how = Keeper::How::kHold;
  SUBCASE("of memory that is kept") {}
  SUBCASE("of memory that is copied") { how = Keeper::How::kCopy; }
  Library library(how);
  std::vector<std::unique_ptr<Reader>> readers;
  for (int i = 0; i < 4; ++i) {
    readers.push_back(std::make_unique<Reader>(library.house));
    readers.back()->call(1, "/t/Large");
  }
  const auto bytes = bytes_of(100'000);
  Closing good(library.house.connect<TcpWay>());
  for (int i = 0; i < 50; ++i) {
    readers[0]->take(1);
    readers[1]->take(1000);
    const Reply reply = unary(*good, "/t/Echo", {out(bytes)});
    REQUIRE(reply.code == Code::kOk);
    CHECK(same(reply.segments.at(0), bytes));
  }
  CHECK(eventually([&] { return library.left == 4; }));
  CHECK(library.told == 0);
  // It gets the whole reply, once it takes it.
  readers[1]->take(kLarge - 50'000);
  if (how == Keeper::How::kHold) {
    CHECK(library.kept == 4);
    CHECK(eventually([&] { return library.told == 1; }));
    readers.clear();
    CHECK(eventually([&] { return library.told == 4; }));
  }
}

TEST_CASE("slow reader: what it asked for is given up at the deadline, and when it cancels") {
  Library library(Keeper::How::kHold);
  Reader reader(library.house);
  reader.call(1, "/t/Large", kSecond);
  CHECK(eventually([&] { return library.told == 1; }));
  reader.call(2, "/t/Large");
  CHECK(eventually([&] { return library.left == 2; }));
  CHECK(library.kept == 2);
  reader.cancel(2);
  CHECK(eventually([&] { return library.told == 2; }));
  CHECK(ports_of(library.house.server()).size() == 1);
}

TEST_CASE("slow reader: a reply that a worker waits for is given up when it cancels") {
  Library library(Keeper::How::kWait);
  Reader reader(library.house);
  // By finish(), and by finish_and_poll().
  for (const int i : {1, 2}) {
    reader.call(static_cast<uint64_t>(i), "/t/Large");
    CHECK(eventually([&] {
      return library.handled == i && ports_of(library.house.server()).at(0)->calls() == 0;
    }));
    CHECK(library.left == i - 1);
    reader.cancel(static_cast<uint64_t>(i));
    CHECK(eventually([&] { return library.left == i; }));
  }
  CHECK(ports_of(library.house.server()).size() == 1);
}

TEST_CASE("slow reader: it keeps no more memory waiting than the arena may hold") {
  Library library(Keeper::How::kHold, 1);
  Reader reader(library.house);
  // The frames that announce them count, too.
  const int fit = static_cast<int>(runtime().settings().unread_bytes / kLarge);
  for (int i = 0; i < fit + 3; ++i) reader.call(static_cast<uint64_t>(i) + 1, "/t/Large");
  CHECK(eventually([&] { return library.left == fit + 3; }));
  CHECK(library.kept == fit);
  const auto link = ports_of(library.house.server()).at(0);
  CHECK(link->stats().sent.pushed_segments == static_cast<uint64_t>(fit));
  CHECK(library.house.server().active() == 1);  // it still sends
}

TEST_CASE("slow reader: a server may let as much wait for it as there is") {
  Library library(Keeper::How::kHold, 1);
  library.house.server().limit_unread(std::numeric_limits<size_t>::max());
  Reader reader(library.house);
  const int more = static_cast<int>(runtime().settings().unread_bytes / kLarge) + 3;
  for (int i = 0; i < more; ++i) reader.call(static_cast<uint64_t>(i) + 1, "/t/Large");
  CHECK(eventually([&] { return library.left == more; }));
  CHECK(library.kept == more);
}

}  // namespace
}  // namespace tw::test

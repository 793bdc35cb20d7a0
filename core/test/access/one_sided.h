// SPDX-License-Identifier: Apache-2.0
// Both ends of a link for tests of one-sided operations, and memory to expose.
#pragma once

#include <cstring>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "access/port.h"
#include "test/access/told_ends.h"
#include "test/call/world.h"
#include "test/not_tried.h"

namespace tw::test {

using Kind = wire::OperationKind;
struct VerbsWay {
  static constexpr const char* kName = "verbs";
};
#define TENSORWIRE_ONE_SIDED_WAYS TENSORWIRE_WAYS, tw::test::VerbsWay
// Memory that the peer maps.
struct MappedWay : ShmWay {};
// Memory of the arena, which the peer maps where it may only read.
struct ArenaWay : ShmWay {};
#define TENSORWIRE_ACCESS_WAYS TENSORWIRE_ONE_SIDED_WAYS, tw::test::MappedWay, tw::test::ArenaWay

// Where memory of a test comes from.
enum class From : uint8_t { kHeap, kShared, kArena };
template <class Way>
inline constexpr From kFrom = std::is_same_v<Way, MappedWay>  ? From::kShared
                              : std::is_same_v<Way, ArenaWay> ? From::kArena
                                                              : From::kHeap;
// Whether the peer maps it.
template <class Way>
constexpr bool mapped_with(Rights rights) {
  return kFrom<Way> == From::kShared || (kFrom<Way> == From::kArena && rights == kMayRead);
}

// Whether this host can try the way.
template <class Way>
bool possible() {
  if (std::string_view(Way::kName) != "verbs") return true;
  const Status why_not = runtime().kind(Way::kName)->why_not();
  if (!why_not.ok()) not_tried(why_not.details());
  return why_not.ok();
}

inline constexpr Rights kAllRights = kMayRead | kMayWrite | kMayUpdate;

// Memory of a test's own, zeroed; counts what of it is held.
class Storage final : public RefCounted {
 public:
  Storage(size_t bytes, std::atomic<int>& live, From from = From::kHeap)
      : size_(bytes), live_(live) {
    switch (from) {
      case From::kHeap:
        words_.reset(new uint64_t[(bytes + 7) / 8 + 1]());
        break;
      case From::kShared:
        shared_ = runtime().shared_memories().make(bytes + 8).value();
        break;
      case From::kArena:
        block_ = runtime().arena().allocate(bytes + 8).value();
        std::memset(block_->data(), 0, block_->size());
        break;
    }
    ++live_;
  }
  ~Storage() override { --live_; }
  std::byte* data() const {
    if (block_) return block_->data();
    return shared_ ? shared_->data() : reinterpret_cast<std::byte*>(words_.get());
  }
  uint64_t* words() const { return reinterpret_cast<uint64_t*>(data()); }
  std::span<std::byte> bytes() const { return {data(), size_}; }

 private:
  std::unique_ptr<uint64_t[]> words_;
  Ref<SharedMemory> shared_;
  Ref<Block> block_;
  const size_t size_;
  std::atomic<int>& live_;
};

inline AccessRequest access(Kind kind, uint64_t region, uint64_t offset, std::byte* local,
                            uint64_t length) {
  AccessRequest out;
  out.kind = kind;
  out.region = region;
  out.offset = offset;
  out.local = local;
  out.length = length;
  return out;
}

// Around a test's own access to memory that it has exposed at this end. The ring orders it with the
// peer's operations, but a ThreadSanitizer does not know that the two mappings of a ring are one:
// the lock of the link that serves them it knows.
inline void meet(AccessPort& side) { (void)side.remote(0); }

inline Status ended(AccessPort& side, Access& operation) {
  const Nanos deadline = patience();
  while (!operation.ended()) REQUIRE(side.wait(operation, deadline) != Waited::kTimeout);
  return operation.status();
}

// Begins an operation and waits for its end.
inline Status run(AccessPort& side, const AccessRequest& request) {
  auto started = side.start(request, {}, {}, true);
  return started ? ended(side, **started) : started.status();
}

inline Status write(AccessPort& side, uint64_t region, uint64_t offset,
                    std::span<const std::byte> bytes) {
  return run(side, access(Kind::kWrite, region, offset, const_cast<std::byte*>(bytes.data()),
                          bytes.size()));
}

inline Status read(AccessPort& side, uint64_t region, uint64_t offset, std::span<std::byte> bytes) {
  return run(side, access(Kind::kRead, region, offset, bytes.data(), bytes.size()));
}

// The value before it.
inline uint64_t update(AccessPort& side, Kind kind, uint64_t region, uint64_t offset,
                       uint64_t operand, uint64_t expected = 0) {
  uint64_t before = 0;
  AccessRequest request = access(kind, region, offset, reinterpret_cast<std::byte*>(&before), 8);
  request.operand = operand;
  request.expected = expected;
  const Status status = run(side, request);
  REQUIRE_MESSAGE(status.ok(), status.details());
  return before;
}

// A region's announcement is on its way when expose() returns.
inline AccessPort::Remote arrived(AccessPort& side, uint64_t region) {
  REQUIRE(eventually([&] { return side.remote(region).has_value(); }));
  return *side.remote(region);
}

// Whether operations need the peer's runtime. A device goes on when the peer stands still, and
// breaks the link where a runtime refuses.
inline bool by_runtime(const CallPort& port) {
  if (!port.link().profile().one_sided) return true;
  MESSAGE("does not apply: on " << std::string(port.link().transport())
                                << " a device does the operations");
  return false;
}

// A link whose server's end the test has, too.
template <class Way>
struct Ends {
  explicit Ends(House& house) : client(house.template connect<Way>()) {
    // A call of this link brings the server's end of it.
    auto call = start(*client, "/t/Hang");
    server = Ref<CallPort>::share(&hanging(house)->port());
    call->cancel(Code::kCancelled, "");
  }
  static Slot<Ref<ServerCall>>& slot() {
    static Slot<Ref<ServerCall>> slot;
    return slot;
  }
  static Ref<ServerCall> hanging(House&) { return slot().take(); }

  AccessPort& here() { return client->access(); }
  AccessPort& there() { return server->access(); }

  Closing client;
  Ref<CallPort> server;
};

// Echoes calls; hands those to /t/Hang to the test.
template <class Way>
struct OneSidedHouse : House {
  OneSidedHouse()
      : House(
            [](Ref<ServerCall> call) {
              if (call->method() == "/t/Hang")
                Ends<Way>::slot().put(std::move(call));
              else
                echo(*call);
              return Ref<ServerCall>{};
            },
            2) {}
};

// Exposes fresh memory at the server's end, and waits until the client knows of it.
template <class Way>
std::pair<uint64_t, Storage*> expose(Ends<Way>& ends, size_t bytes, Rights rights,
                                     std::atomic<int>& live) {
  auto memory = make_ref<Storage>(bytes, live, kFrom<Way>);
  Storage* const raw = memory.get();
  auto region = ends.there().expose(raw->data(), bytes, rights, std::move(memory));
  REQUIRE_MESSAGE(region.ok(), region.status().details());
  const auto remote = arrived(ends.here(), *region);
  CHECK(remote.length == bytes);
  CHECK(remote.rights == rights);
  CHECK(ends.here().mapped(*region) == mapped_with<Way>(rights));
  return {*region, raw};
}

// By what number of the memory the client reads: of the arena, what is for reading only is mapped.
template <class Way>
uint64_t for_reading(Ends<Way>& ends, uint64_t region, const Storage& memory) {
  if (kFrom<Way> != From::kArena) return region;
  const uint64_t readable =
      ends.there().expose(memory.data(), memory.bytes().size(), kMayRead, {}).value();
  arrived(ends.here(), readable);
  CHECK(ends.here().mapped(readable));
  return readable;
}

}  // namespace tw::test

// SPDX-License-Identifier: Apache-2.0
// What the verbs transport does beside the conformance suite: how bytes become SENDs and READs,
// credit, many links, memory taken back.
#include <arpa/inet.h>
#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <functional>
#include <mutex>
#include <set>
#include <thread>
#include <utility>

#include "test/transport/verbs/world.h"
#include "transport/verbs/library.h"

namespace tw::test {
namespace {

void receive_all(Transport& from, uint64_t at, uint64_t goal) {
  while (at < goal) {
    const size_t n = receive_pattern(from, at, std::min<uint64_t>(goal - at, 60'000));
    if (n == 0) REQUIRE(from.sleep(false, patience()) == Wake::kReady);
    at += n;
  }
}

void send_all(Transport& to, uint64_t at, uint64_t goal) {
  while (at < goal) {
    const size_t n = send_pattern(to, at, std::min<uint64_t>(goal - at, 60'000));
    if (n == 0) REQUIRE(to.sleep(true, patience()) == Wake::kReady);
    at += n;
  }
}

// Makes `by` know what `of` has shared: the news comes ahead of a byte.
void pass_news(Transport& of, Transport& by, uint64_t at = 0) {
  send_all(of, at, at + 1);
  receive_all(by, at, at + 1);
}

Completion await_completion(Transport& transport) {
  std::array<Completion, 4> out;
  for (;;) {
    const size_t n = transport.completed(out);
    REQUIRE(n <= 1);
    if (n == 1) return out[0];
    REQUIRE(transport.sleep(false, patience()) == Wake::kReady);
  }
}

Ref<Block> filled_block(size_t size, VerbsWorld& world = verbs_world()) {
  auto block = world.arena->allocate(size);
  REQUIRE(block.ok());
  fill_words((*block)->data(), size);
  return *block;
}

// A device that counts what it is asked for.
struct Counting {
  inline static std::atomic<size_t> sends, inline_sends, own_sends, reads;
  inline static int (*device)(ibv_qp*, ibv_send_wr*, ibv_send_wr**) = nullptr;

  static ibv_context* open(ibv_device* named) {
    ibv_context* const context = verbs::Library::get().value()->open_device(named);
    if (context) device = std::exchange(context->ops.post_send, post);
    return context;
  }
  static int post(ibv_qp* pair, ibv_send_wr* request, ibv_send_wr** bad) {
    if (request->opcode == IBV_WR_RDMA_READ) {
      ++reads;
    } else if (request->opcode == IBV_WR_SEND_WITH_IMM) {
      if (wire::decode_note(ntohl(request->imm_data)).own)
        ++own_sends;
      else if (++sends; (request->send_flags & IBV_SEND_INLINE) != 0)
        ++inline_sends;
    }
    return device(pair, request, bad);
  }
};

// Counts anew. Never destroyed, as what polls in the background.
VerbsWorld& counting_world() {
  static VerbsWorld& world = *[] {
    auto& library = *new verbs::Library(**verbs::Library::get());
    library.open_device = Counting::open;
    verbs::Settings settings;
    settings.queue_depth = 16;
    return new VerbsWorld(settings, library);
  }();
  REQUIRE(world.here());
  for (auto* const count :
       {&Counting::sends, &Counting::inline_sends, &Counting::own_sends, &Counting::reads})
    *count = 0;
  return world;
}

TEST_CASE("verbs: a small message is one SEND, inline where it fits") {
  TENSORWIRE_NEEDS_VERBS;
  TransportPair pair = counting_world().join(verbs_world());
  Transport* ends[2] = {pair.a.get(), pair.b.get()};
  for (int i = 0; i < 500; ++i) {
    send_all(*ends[i % 2], 0, 64);
    receive_all(*ends[1 - i % 2], 0, 64);
  }
  CHECK(Counting::sends.load() == 250);
  CHECK(Counting::inline_sends.load() == 250);
  CHECK(Counting::own_sends.load() < 40);  // credit goes along with what is sent anyway
  std::array<iovec, 8> runs;
  std::array<std::byte, 2048> bytes{};
  for (size_t i = 0; i < runs.size(); ++i) runs[i] = run_of(bytes.data() + i * 256, 256);
  REQUIRE(*pair.a->send(runs) == bytes.size());
  CHECK(Counting::sends.load() == 251);
  CHECK(Counting::inline_sends.load() == 250);
}

TEST_CASE("verbs: fetches of every size are right to the byte, and touch nothing beside") {
  TENSORWIRE_NEEDS_VERBS;
  VerbsWorld& reader = counting_world();
  TransportPair pair = verbs_world().join(reader);
  constexpr size_t kMost = 64 << 20;
  const Ref<Block> source = filled_block(kMost + 4096);
  const Ref<Block> target = filled_block(kMost + 4096, reader);
  REQUIRE(pair.a->share(source->slab()).ok());
  pass_news(*pair.a, *pair.b);
  // A device has a most for one request.
  const size_t largest = reader.context->rails().value().front().rail.port.max_message;
  size_t reads = 0;
  uint64_t id = 1;
  for (const size_t size : std::initializer_list<size_t>{
           1, 2, 63, 64, 1023, 1024, 1025, 4095, 4096, 4097, 65'536, 1 << 20, (4 << 20) - 1,
           4 << 20, (4 << 20) + 1, (8 << 20) + 1, kMost}) {
    CAPTURE(size);
    const size_t offset = 1 + id * 7;
    std::memset(target->data(), 0xee, std::min(size + 4096, kMost + 4096));
    const RegionRef from = source->region(source->data() + offset, size);
    auto begun = pair.b->fetch(id, from, target->data() + 16);
    REQUIRE(begun.ok());
    REQUIRE(*begun);
    const Completion done = await_completion(*pair.b);
    CHECK(done.id == id);
    REQUIRE(done.status.ok());
    CHECK(std::memcmp(target->data() + 16, source->data() + offset, size) == 0);
    for (size_t i = 0; i < 16; ++i) REQUIRE(target->data()[i] == std::byte{0xee});
    for (size_t i = 0; i < 64; ++i) REQUIRE(target->data()[16 + size + i] == std::byte{0xee});
    reads += largest == 0 ? 1 : (size + largest - 1) / largest;
    CHECK(Counting::reads.load() == reads);
    ++id;
  }
  const uint64_t registered = pair.b->facts().fetch_registrations;
  CHECK(registered == 0);  // its arena is known as a whole
  // Memory outside of the arena is registered for the time of the fetch.
  std::vector<std::byte> foreign(100'000);
  REQUIRE(*pair.b->fetch(id, source->region(source->data(), foreign.size()), foreign.data()));
  REQUIRE(await_completion(*pair.b).status.ok());
  CHECK(std::memcmp(foreign.data(), source->data(), foreign.size()) == 0);
  CHECK(pair.b->facts().fetch_registrations == registered + 1);
}

TEST_CASE("verbs: the smaller MTU of both ends counts, whoever sets it") {
  TENSORWIRE_NEEDS_VERBS;
  verbs::Settings small;
  small.mtu = 1024;
  VerbsWorld limited(small);
  REQUIRE(limited.here());
  for (const bool client : {false, true}) {
    CAPTURE(client);
    TransportPair pair = client ? limited.join(verbs_world()) : verbs_world().join(limited);
    if (client) std::swap(pair.a, pair.b);  // a: of the world that has no limit
    constexpr size_t kSize = 100'000;
    const Ref<Block> source = filled_block(kSize);
    std::vector<std::byte> target(kSize);
    REQUIRE(pair.a->share(source->slab()).ok());
    pass_news(*pair.a, *pair.b);
    REQUIRE(*pair.b->fetch(1, source->region(), target.data()));
    REQUIRE(await_completion(*pair.b).status.ok());
    CHECK(std::memcmp(target.data(), source->data(), kSize) == 0);
    send_all(*pair.b, 0, 60'000);
    receive_all(*pair.a, 0, 60'000);
  }
}

TEST_CASE("verbs: only memory that the peer has shared is fetched") {
  TENSORWIRE_NEEDS_VERBS;
  TransportPair pair = Verbs::make();
  auto slab = Slab::make(3, 7, 64 << 10);
  REQUIRE(slab.ok());
  std::array<std::byte, 64> to;
  CHECK(pair.b->fetch(1, {3, 7, 0, 1}, to.data()).status().code() == Code::kInternal);
  REQUIRE(pair.a->share(**slab).ok());
  REQUIRE(pair.a->share(**slab).ok());  // again: known already
  pass_news(*pair.a, *pair.b);
  for (const RegionRef& wrong :
       {RegionRef{2, 7, 0, 1}, RegionRef{3, 6, 0, 1}, RegionRef{3, 8, 0, 1},
        RegionRef{3, 7, 64 << 10, 1}, RegionRef{3, 7, 1, 64 << 10}, RegionRef{3, 7, 0, 0},
        RegionRef{3, 7, ~uint64_t{0}, 2}, RegionRef{3, 7, 2, ~uint64_t{0}}}) {
    const auto refused = pair.b->fetch(1, wrong, to.data());
    REQUIRE_FALSE(refused.ok());
    CHECK(refused.status().code() == Code::kInternal);
  }
  REQUIRE(*pair.b->fetch(2, {3, 7, 5, 64}, to.data()));
  CHECK(await_completion(*pair.b).status.ok());
  (*slab)->drop();
  pair.a->slabs_dropped();
  verbs_world().context->slabs_dropped();
  pass_news(*pair.a, *pair.b, 1);
  CHECK(pair.b->fetch(3, {3, 7, 0, 1}, to.data()).status().code() == Code::kInternal);
}

TEST_CASE("verbs: several fetches are under way at once, and no more than the device takes") {
  TENSORWIRE_NEEDS_VERBS;
  TransportPair pair = Verbs::make();
  const Ref<Block> source = filled_block(1 << 20);
  const Ref<Block> target = filled_block(1 << 20);
  std::memset(target->data(), 0, 1 << 20);
  REQUIRE(pair.a->share(source->slab()).ok());
  pass_news(*pair.a, *pair.b);
  constexpr size_t kPiece = 4096;
  std::set<uint64_t> under_way;
  size_t most = 0, done = 0, next = 0;
  while (done < 256) {
    while (next < 256) {
      const size_t at = next * kPiece;
      auto begun =
          pair.b->fetch(next, source->region(source->data() + at, kPiece), target->data() + at);
      REQUIRE(begun.ok());
      if (!*begun) break;
      under_way.insert(next++);
    }
    most = std::max(most, under_way.size());
    std::array<Completion, 7> out;
    const size_t n = pair.b->completed(out);
    for (size_t i = 0; i < n; ++i) {
      REQUIRE(out[i].status.ok());
      REQUIRE(under_way.erase(out[i].id) == 1);
    }
    done += n;
    if (n == 0) REQUIRE(pair.b->sleep(false, patience()) == Wake::kReady);
  }
  CHECK(most > 1);
  CHECK(std::memcmp(source->data(), target->data(), 1 << 20) == 0);
}

TEST_CASE("verbs: two ends that are both out of credit go on") {
  TENSORWIRE_NEEDS_VERBS;
  TransportPair pair = Verbs::make();
  Transport* ends[2] = {pair.a.get(), pair.b.get()};
  uint64_t sent[2] = {}, received[2] = {};
  for (int round = 0; round < 20; ++round) {
    for (const size_t end : {0, 1})
      while (const size_t n = send_pattern(*ends[end], sent[end], round % 2 ? 20 : 8192))
        sent[end] += n;
    for (const size_t end : {0, 1}) {
      receive_all(*ends[1 - end], received[end], sent[end]);
      received[end] = sent[end];
    }
  }
  // Receivers were always ready: the link would be lost otherwise. Both can still send.
  for (const size_t end : {0, 1}) {
    send_all(*ends[end], sent[end], sent[end] + 1000);
    receive_all(*ends[1 - end], sent[end], sent[end] + 1000);
  }
}

// "rxe0: pd 2 cq 2 qp 3 cm_id 0 mr 1": what the kernel counts, by a tool that the test VM has.
std::string kernel_resources() {
  std::string out;
  FILE* const tool = popen("rdma resource show 2>/dev/null", "r");
  if (!tool) return out;
  char line[256];
  while (std::fgets(line, sizeof line, tool)) out += line;
  return pclose(tool) == 0 ? out : std::string{};
}

std::vector<long> numbers(const std::string& text) {
  std::vector<long> out;
  for (size_t at = 0; (at = text.find_first_of("0123456789", at)) != std::string::npos;) {
    size_t length = 0;
    out.push_back(std::stol(text.substr(at), &length));
    at += length;
  }
  return out;
}

TEST_CASE("verbs: two hundred links at once, and nothing is left of them") {
  TENSORWIRE_NEEDS_VERBS;
  verbs::Settings settings;
  settings.queue_depth = 8;
  // Six descriptors for each, with the watches of this test.
  rlimit files{};
  REQUIRE(getrlimit(RLIMIT_NOFILE, &files) == 0);
  files.rlim_cur = std::min<rlim_t>(files.rlim_max, 4096);
  REQUIRE(setrlimit(RLIMIT_NOFILE, &files) == 0);
  VerbsWorld world(settings);
  REQUIRE(world.here());
  const std::string before = kernel_resources();
  {
    constexpr size_t kLinks = 200;
    std::vector<TransportPair> pairs;
    std::vector<std::unique_ptr<Watched>> watched;
    for (size_t i = 0; i < kLinks; ++i) {
      pairs.push_back(world.join());
      watched.push_back(std::make_unique<Watched>(*pairs.back().b));
      pairs.back().b->arm(false);
    }
    CHECK(kernel_resources() != before);
    for (int round = 0; round < 3; ++round) {
      for (size_t i = 0; i < kLinks; ++i) send_all(*pairs[i].a, 0, 100 + i);
      for (size_t i = 0; i < kLinks; ++i) {
        REQUIRE(watched[i]->wait());
        pairs[i].b->disarm();
        receive_all(*pairs[i].b, 0, 100 + i);
        send_all(*pairs[i].b, 0, 50);
        pairs[i].b->arm(false);
      }
      for (size_t i = 0; i < kLinks; ++i) receive_all(*pairs[i].a, 0, 50);
    }
    watched.clear();
  }
  // The last SENDs go out first.
  const auto most = numbers(before);
  const bool gone = eventually([&] {
    // Earlier tests may have left something that has gone since.
    const auto left = numbers(kernel_resources());
    return std::equal(left.begin(), left.end(), most.begin(), most.end(), std::less_equal<>());
  });
  INFO(kernel_resources());
  INFO(before);
  CHECK(gone);
  MESSAGE("kernel: " << (before.empty() ? std::string("no rdma tool to count with") : before));
}

// Has `b` fetch all of `source` of `a`, and `revoked` take its memory back once the fetch has come
// to `place` of it. By another thread: Soft-RoCE moves the bytes in the thread that posts.
void revoke_midway(TransportPair& pair, Transport& revoked, const Block& source, Block& target,
                   size_t place) {
  volatile std::byte* const watched = target.data() + place;
  *watched = ~*watched;  // what comes is what was there
  const std::byte before = *watched;
  std::atomic<bool> seen{false};
  std::thread revoker([&] {
    seen = eventually([&] { return *watched != before; });
    revoked.revoke();
  });
  const auto begun = pair.b->fetch(1, source.region(), target.data());
  revoker.join();
  REQUIRE(begun.ok());
  REQUIRE(*begun);
  REQUIRE(seen);
}

TEST_CASE("verbs: memory that was taken back is never seen by the peer") {
  TENSORWIRE_NEEDS_VERBS;
  constexpr size_t kSize = 4 << 20;
  for (size_t round = 0; round < 5; ++round) {
    TransportPair pair = Verbs::make();
    const Ref<Block> source = filled_block(kSize), target = filled_block(kSize);
    REQUIRE(pair.a->share(source->slab()).ok());
    pass_news(*pair.a, *pair.b);
    revoke_midway(pair, *pair.a, *source, *target, round * kSize / 5);
    std::memset(source->data(), 0xaa, kSize);
    // Nothing answers any more: the fetch fails after the device's retries, or it was through.
    const Completion done = await_completion(*pair.b);
    if (!done.status.ok()) CHECK(done.status.code() == Code::kUnavailable);
    fill_words(source->data(), kSize);  // as it was; so was the target, to begin with
    CHECK(std::memcmp(target->data(), source->data(), kSize) == 0);
    char byte;
    const iovec room = run_of(&byte, 1);
    CHECK(pair.a->receive({&room, 1}).status().code() == Code::kUnavailable);
    CHECK(pair.a->send({&room, 1}).status().code() == Code::kUnavailable);
  }
}

// A device that begins with a request when it is polled next.
struct Sluggish {
  struct Request {
    ibv_qp* pair;
    ibv_send_wr request;
    ibv_sge run;
  };
  inline static std::mutex mutex;  // guards requests: the background may poll, too
  inline static std::vector<Request> requests;
  inline static ibv_context_ops device;

  static ibv_context* open(ibv_device* named) {
    ibv_context* const context = verbs::Library::get().value()->open_device(named);
    REQUIRE(context != nullptr);
    device = context->ops;
    context->ops.post_send = post;
    context->ops.poll_cq = poll;
    return context;
  }
  static int post(ibv_qp* pair, ibv_send_wr* request, ibv_send_wr**) {
    REQUIRE((request->send_flags & IBV_SEND_INLINE) == 0);
    std::lock_guard lock(mutex);
    requests.push_back({pair, *request, request->num_sge == 0 ? ibv_sge{} : *request->sg_list});
    return 0;
  }
  static int poll(ibv_cq* queue, int room, ibv_wc* completions) {
    std::unique_lock lock(mutex);
    for (Request& held : std::exchange(requests, {})) {
      held.request.sg_list = &held.run;
      ibv_send_wr* bad = nullptr;
      (void)device.post_send(held.pair, &held.request, &bad);  // too late after a reset
    }
    lock.unlock();
    return device.poll_cq(queue, room, completions);
  }
};

TEST_CASE("verbs: what was sent goes out before memory is taken back") {
  TENSORWIRE_NEEDS_VERBS;
  // Never destroyed, as what polls in the background.
  auto& library = *new verbs::Library(**verbs::Library::get());
  library.open_device = Sluggish::open;
  auto& client = *new VerbsWorld({}, library);
  REQUIRE(client.here());
  TransportPair pair = client.join(verbs_world());
  uint64_t sent = 0;
  while (sent < 3 * 8192) sent += send_pattern(*pair.a, sent, 8192);
  pair.a->revoke();
  receive_all(*pair.b, 0, sent);
}

TEST_CASE("verbs: after a revocation its own fetches write nothing") {
  TENSORWIRE_NEEDS_VERBS;
  constexpr size_t kSize = 4 << 20;
  TransportPair other = Verbs::make();
  const Ref<Block> far = filled_block(kSize), near = filled_block(kSize);
  REQUIRE(other.a->share(far->slab()).ok());
  pass_news(*other.a, *other.b);
  for (size_t round = 0; round < 5; ++round) {
    TransportPair pair = Verbs::make();
    const Ref<Block> source = filled_block(kSize), target = filled_block(kSize);
    REQUIRE(pair.a->share(source->slab()).ok());
    pass_news(*pair.a, *pair.b);
    revoke_midway(pair, *pair.b, *source, *target, round * kSize / 5);
    std::memset(target->data(), 0xaa, kSize);
    // What must not come would have come before what the device does next.
    REQUIRE(*other.b->fetch(round, far->region(), near->data()));
    REQUIRE(await_completion(*other.b).status.ok());
    std::memset(source->data(), 0xaa, kSize);
    CHECK(std::memcmp(target->data(), source->data(), kSize) == 0);
  }
}

}  // namespace
}  // namespace tw::test

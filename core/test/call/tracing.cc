// SPDX-License-Identifier: Apache-2.0
// The protocol of AR-gRPC (HiPC'18) as the traces of real links show it: what small, middling and
// large segments turn into, around every threshold, and that settings move these.
#include <map>
#include <string>

#include "test/call/world.h"

namespace tw::test {
namespace {

struct Tracing {
  explicit Tracing(size_t events = 10'000) { runtime().trace(events); }
  ~Tracing() { runtime().trace(0); }
};

// Takes what it is sent, and answers with nothing.
void take(ServerCall& call) {
  InMessage request;
  if (receive(call, request)) answer(call, {});
}

// What a link does for one call with these segments.
struct Traced {
  Trace::Record client, server;

  static uint64_t count(const Trace::Record& record, bool sent, TraceStep step) {
    return record.sums[sent][static_cast<size_t>(step)].count;
  }
  uint64_t sent(TraceStep step) const { return count(client, true, step); }
  uint64_t answered(TraceStep step) const { return count(client, false, step); }
  // The steps of the request's payload, a letter each, as they were taken.
  std::string letters() const {
    std::string out;
    for (const TraceEvent& event : client.events) {
      if (!event.sent) continue;
      if (event.step == TraceStep::kMessage) out += 'M';
      if (event.step == TraceStep::kEager) out += 'E';
      if (event.step == TraceStep::kData) out += 'D';
      if (event.step == TraceStep::kRts) out += 'R';
    }
    return out;
  }
};

template <class Way>
Traced trace_of(House& house, const std::vector<size_t>& sizes) {
  std::vector<Ref<Block>> blocks;
  std::vector<OutSegment> segments;
  for (const size_t size : sizes) {
    blocks.push_back(block_of(bytes_of(std::max<size_t>(size, 4096))));
    blocks.back()->publish();
    segments.push_back(out({blocks.back()->data(), size}));
  }
  Traced traced;
  {
    Closing link(house.connect<Way>());
    REQUIRE(unary(*link, "/t/Take", segments).code == Code::kOk);
    REQUIRE(eventually([&] { return link->stats().leases == 0; }));
    traced.client = link->link().trace();
    REQUIRE(eventually([&] {
      const auto served = ports_of(house.server());
      return !served.empty() && served.front()->calls() == 0;
    }));
    traced.server = ports_of(house.server()).front()->link().trace();
  }
  REQUIRE(eventually([&] { return ports_of(house.server()).empty(); }));
  return traced;
}

TEST_CASE_TEMPLATE("tracing: 100 segments of 10 bytes are one message, and one send", Way,
                   TENSORWIRE_LINKS) {
  const Tracing on;
  House house(take);
  const Traced traced = trace_of<Way>(house, std::vector<size_t>(100, 10));
  CHECK(traced.letters() == "M");
  CHECK(traced.sent(TraceStep::kSend) == 1);
  const TraceEvent& message = traced.client.events.front();
  CHECK(message.step == TraceStep::kMessage);
  CHECK(message.segment == 100);
  CHECK(message.bytes == 1000);
  CHECK(traced.answered(TraceStep::kMessage) == 1);
}

TEST_CASE("tracing: 10 MB at a chunk of 4 MB are 3 RTS, 3 READ and 3 FIN, several in flight") {
  const Tracing on;
  House house(take);
  const Traced traced = trace_of<ReadWay>(house, {10 << 20});
  CHECK(traced.letters() == "MRRR");
  CHECK(traced.sent(TraceStep::kRts) == 3);
  CHECK(traced.answered(TraceStep::kFin) == 3);
  const auto served = [&](bool sent, TraceStep step) {
    return Traced::count(traced.server, sent, step);
  };
  CHECK(served(false, TraceStep::kRts) == 3);
  CHECK(served(true, TraceStep::kRead) == 3);
  CHECK(served(false, TraceStep::kReadDone) == 3);
  CHECK(served(true, TraceStep::kFin) == 3);
  // A chunk's FIN follows its read, and more than one read is under way at a time.
  std::map<uint64_t, TraceStep> chunks;
  int under_way = 0, most = 0;
  uint64_t bytes = 0;
  for (const TraceEvent& event : traced.server.events) {
    if (event.step == TraceStep::kRead) {
      CHECK(chunks.emplace(event.id, event.step).second);
      CHECK(event.segment == 0);
      most = std::max(most, ++under_way);
      bytes += event.bytes;
    } else if (event.step == TraceStep::kReadDone) {
      CHECK(chunks.at(event.id) == TraceStep::kRead);
      chunks[event.id] = event.step;
      --under_way;
    } else if (event.step == TraceStep::kFin && event.sent) {
      CHECK(chunks.at(event.id) == TraceStep::kReadDone);
      chunks[event.id] = event.step;
    }
  }
  CHECK(chunks.size() == 3);
  CHECK(most > 1);
  CHECK(bytes == 10 << 20);
}

TEST_CASE("tracing: thresholds are where the settings put them") {
  const Tracing on;
  House house(take);
  house.read_settings.eager_given = true;
  SUBCASE("as they are") {}
  SUBCASE("without coalescing") { house.read_settings.coalesce_bytes = 0; }
  SUBCASE("smaller") {
    house.read_settings.coalesce_bytes = 1 << 10;
    house.read_settings.eager_bytes = 4 << 10;
    house.read_settings.chunk_bytes = 64 << 10;
  }
  SUBCASE("larger") {
    house.read_settings.coalesce_bytes = 32 << 10;
    house.read_settings.eager_bytes = 64 << 10;
    house.read_settings.chunk_bytes = 8 << 20;
  }
  const size_t coalesce = house.read_settings.coalesce_bytes;
  const size_t eager = std::max(house.read_settings.eager_bytes, coalesce);
  const size_t chunk = house.read_settings.chunk_bytes;
  CAPTURE(coalesce);
  CAPTURE(eager);
  CAPTURE(chunk);
  if (coalesce != 0) {
    CHECK(trace_of<ReadWay>(house, {1, coalesce - 2}).letters() == "M");
    CHECK(trace_of<ReadWay>(house, {1, coalesce - 1}).letters() == "M");
    CHECK(trace_of<ReadWay>(house, {1, coalesce}).letters() == "ME");
  } else {
    CHECK(trace_of<ReadWay>(house, {10, 10, 10}).letters() == "MEE");
  }
  CHECK(trace_of<ReadWay>(house, {eager - 1}).letters() == "M");
  CHECK(trace_of<ReadWay>(house, {eager}).letters() == "M");
  CHECK(trace_of<ReadWay>(house, {eager + 1}).letters() == "MR");
  CHECK(trace_of<ReadWay>(house, {eager + 1, 1}).letters() == "MER");
  CHECK(trace_of<ReadWay>(house, {chunk - 1}).letters() == "MR");
  CHECK(trace_of<ReadWay>(house, {chunk}).letters() == "MR");
  CHECK(trace_of<ReadWay>(house, {chunk + 1}).letters() == "MRR");
  CHECK(trace_of<ReadWay>(house, {2 * chunk + 1}).letters() == "MRRR");
}

TEST_CASE("tracing: off by default, and what is switched on later begins then") {
  House house(echo);
  Closing link(house.connect<ShmWay>());
  const auto bytes = bytes_of(100);
  CHECK(unary(*link, "/t/Echo", {out(bytes)}).code == Code::kOk);
  CHECK(link->link().trace().total == 0);
  {
    const Tracing on;
    CHECK(unary(*link, "/t/Echo", {out(bytes)}).code == Code::kOk);
    const Trace::Record record = link->link().trace();
    CHECK(Traced::count(record, true, TraceStep::kMessage) == 1);
    CHECK(Traced::count(record, false, TraceStep::kMessage) == 1);
  }
  CHECK(link->link().trace().total == 0);
}

}  // namespace
}  // namespace tw::test

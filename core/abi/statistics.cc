// SPDX-License-Identifier: Apache-2.0
// The C ABI: what is counted.
#include <array>
#include <iterator>

#include "abi/abi.h"

using namespace tw;
using namespace tw::abi;

namespace {

static_assert(TW_COUNTER == static_cast<int>(Metric::Kind::kCounter) &&
              TW_GAUGE == static_cast<int>(Metric::Kind::kGauge));

// What `each` visits, as the ABI tells it.
template <size_t kNumbers, class Each>
std::array<tw_counter, kNumbers> declarations(Each&& each) {
  std::array<tw_counter, kNumbers> all{};
  size_t at = 0;
  each([&](const Declared& declared, uint64_t) {
    const Metric& metric = declared.metric;
    tw_counter& out = all[at++];
    out = {
        declared.name,    metric.name, metric.unit, metric.help, static_cast<int32_t>(metric.kind),
        declared.by_size, {}};
    for (size_t i = 0; i < std::size(out.labels); ++i)
      out.labels[i] = {declared.labels[i].name, declared.labels[i].value};
  });
  return all;
}

constexpr size_t kMemoryNumbers =
    std::size(kArenaStats) + std::size(kPoolStats) + std::size(kSharedStats);
template <class Visit>
void each_of_memory(const ArenaStats& arena, const PoolStats& pool, const SharedStats& shared,
                    Visit&& visit) {
  each_counter(kArenaStats, arena, visit);
  each_counter(kPoolStats, pool, visit);
  each_counter(kSharedStats, shared, visit);
}

void visit_statistics(CallPort& port, tw_visit_statistics visit, void* context) {
  const LinkStats stats = port.stats();
  std::array<uint64_t, LinkStats::kNumbers> values;
  size_t at = 0;
  stats.each([&](const Declared&, uint64_t value) { values[at++] = value; });
  constexpr const auto& kLimits = LinkStats::kClassLimits;
  std::array<tw_size_class, kLimits.size() + 1> classes;
  for (size_t i = 0; i < classes.size(); ++i) {
    const LinkStats::Class& found = stats.classes[i];
    classes[i] = {i < kLimits.size() ? kLimits[i] : UINT64_MAX, found.sent, found.sent_bytes,
                  found.received, found.received_bytes};
  }
  const auto reason = [](const Status& why) { return why.ok() ? nullptr : why.details().c_str(); };
  const Thresholds settled = port.link().thresholds();
  const auto threshold = [&](Threshold which) {
    const auto place = static_cast<size_t>(which);
    return tw_threshold{name_of(which), settled.bytes[place], name_of(settled.sources[place])};
  };
  const tw_statistics out{
      port.link().transport(),
      port.link().peer().address.c_str(),
      reason(stats.crowded_why),
      reason(stats.unshared),
      values.data(),
      values.size(),
      classes.data(),
      classes.size(),
      {threshold(Threshold::kCoalesce), threshold(Threshold::kEager), threshold(Threshold::kChunk)},
      reason(stats.unmapped_why)};
  visit(context, &out);
}

static_assert(TW_THRESHOLDS == kThresholds &&
              TW_COALESCE_BYTES == static_cast<int>(Threshold::kCoalesce) &&
              TW_EAGER_BYTES == static_cast<int>(Threshold::kEager) &&
              TW_CHUNK_BYTES == static_cast<int>(Threshold::kChunk));

}  // namespace

int tw_threshold_range(int threshold, uint64_t* lowest, uint64_t* highest) {
  if (threshold < 0 || threshold >= TW_THRESHOLDS) return 0;
  const setting::Size& sizes = sizes_of(static_cast<Threshold>(threshold));
  *lowest = sizes.lowest;
  *highest = sizes.highest;
  return 1;
}

const tw_counter* tw_link_counters(size_t* count) {
  static const auto all =
      declarations<LinkStats::kNumbers>([](auto&& visit) { LinkStats{}.each(visit); });
  *count = all.size();
  return all.data();
}

const tw_counter* tw_memory_counters(size_t* count) {
  static const auto all =
      declarations<kMemoryNumbers>([](auto&& visit) { each_of_memory({}, {}, {}, visit); });
  *count = all.size();
  return all.data();
}

void tw_peer_stats(tw_peer* peer, tw_visit_statistics visit, void* context) try {
  visit_statistics(*of(peer), visit, context);
} catch (const std::bad_alloc&) {
  const Shortage shortage;
}

void tw_server_stats(tw_server* server, tw_visit_statistics visit, void* context) try {
  if (of(server)->inherited()) return;
  of(server)->each_port([&](ServerPort& port) { visit_statistics(port, visit, context); });
} catch (const std::bad_alloc&) {
  const Shortage shortage;
}

size_t tw_arena(uint64_t* values, size_t room) try {
  auto runtime = Runtime::get();
  if (!runtime) return 0;
  size_t count = 0;
  each_of_memory((*runtime)->arena().stats(), (*runtime)->pool().stats(),
                 (*runtime)->shared_memories().stats(), [&](const Declared&, uint64_t value) {
                   if (count < room) values[count++] = value;
                 });
  return count;
} catch (const std::bad_alloc&) {
  return none<size_t>();
}

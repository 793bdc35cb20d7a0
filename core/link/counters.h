// SPDX-License-Identifier: Apache-2.0
// What a link and the calls on it count.
#pragma once

#include <array>
#include <iterator>

#include "base/declared.h"
#include "base/status.h"
#include "message/counters.h"
#include "transport/transport.h"

namespace tw {

struct LinkCounters {
  uint64_t calls = 0, waiting_calls = 0, refused_calls = 0, dropped_calls = 0;
  uint64_t copies = 0, copied_bytes = 0;
  uint64_t leases = 0, leased_bytes = 0, views = 0;
  uint64_t unmapped = 0, fetches = 0, backlog = 0;
  uint64_t spins = 0, sleeps = 0, background_wakes = 0;
  uint64_t trials = 0, threshold_moves = 0;
};

inline constexpr Counter<LinkCounters> kLinkCounters[] = {
    {&LinkCounters::calls,
     {"calls", {"link_calls", "calls", Metric::Kind::kGauge, "Calls that have not ended."}}},
    {&LinkCounters::waiting_calls,
     {"calls_waiting",
      {"link_waiting_calls", "calls", Metric::Kind::kGauge,
       "Calls that nobody has begun to serve, beyond those that workers find ready."}}},
    {&LinkCounters::refused_calls,
     {"calls_refused",
      {"link_refused_calls", "calls", Metric::Kind::kCounter,
       "Calls that came while too many others of their link waited."}}},
    {&LinkCounters::dropped_calls,
     {"calls_dropped",
      {"link_dropped_calls", "calls", Metric::Kind::kCounter,
       "Calls that nobody waited for any more when their turn came: they were not run."}}},
    {&LinkCounters::copies,
     {"copies",
      {"link_copies", "payloads", Metric::Kind::kCounter,
       "Payloads that were copied into the arena before they left."}}},
    {&LinkCounters::copied_bytes,
     {"copied_bytes",
      {"link_copied_bytes", "bytes", Metric::Kind::kCounter,
       "Bytes that were copied into the arena."}}},
    {&LinkCounters::leases,
     {"leases",
      {"link_leases", "segments", Metric::Kind::kGauge,
       "Segments of this process that the peer may be reading."}}},
    {&LinkCounters::leased_bytes,
     {"leased_bytes",
      {"link_leased_bytes", "bytes", Metric::Kind::kGauge,
       "Memory of this process that the peer may be reading."}}},
    {&LinkCounters::views,
     {"views",
      {"link_views", "segments", Metric::Kind::kGauge,
       "Segments of the peer that this process may be reading."}}},
    {&LinkCounters::unmapped, {"segments_unmappable", metric::kUnmappable, {metric::kReceived}}},
    {&LinkCounters::fetches,
     {"reads_pending",
      {"link_reads_pending", "chunks", Metric::Kind::kGauge,
       "Chunks that this end is reading, or is about to."}}},
    {&LinkCounters::backlog,
     {"backlog_bytes",
      {"link_backlog_bytes", "bytes", Metric::Kind::kGauge,
       "Bytes that wait for the peer to take them, and nobody waits for."}}},
    {&LinkCounters::spins,
     {"spins",
      {"link_spins", "waits", Metric::Kind::kCounter, "Waits that ended while spinning."}}},
    {&LinkCounters::sleeps,
     {"sleeps", {"link_sleeps", "waits", Metric::Kind::kCounter, "Waits that had to sleep."}}},
    {&LinkCounters::background_wakes,
     {"background_wakes",
      {"link_background_wakes", "wakes", Metric::Kind::kCounter,
       "Times that the background thread served the link."}}},
    {&LinkCounters::trials,
     {"trials",
      {"link_trials", "calls", Metric::Kind::kCounter,
       "Calls that went as another threshold would have it, to be compared."}}},
    {&LinkCounters::threshold_moves,
     {"threshold_moves",
      {"link_threshold_moves", "moves", Metric::Kind::kCounter,
       "Times that such calls have moved a threshold."}}},
};
static_assert(complete(kLinkCounters));

// One-sided operations: this end's, by the way that they went, the peer's that this end has done
// for it, and memory that is let at.
struct AccessCounters {
  uint64_t mapped = 0, mapped_bytes = 0;
  uint64_t by_frames = 0, by_frames_bytes = 0;
  uint64_t by_device = 0, by_device_bytes = 0;
  uint64_t served = 0, served_bytes = 0;
  uint64_t exposed = 0, exposed_bytes = 0;
  uint64_t known = 0, known_mapped = 0;
  uint64_t unhanded = 0, unmapped = 0;
};

namespace metric {

inline constexpr Metric kOperations{
    "link_operations", "operations", Metric::Kind::kCounter,
    "Operations on the peer's memory that have begun, by who does them: this process by mapping "
    "it, the peer's process, asked by frames, or a device. A batch is one."};
inline constexpr Metric kOperationBytes{"link_operation_bytes", "bytes", Metric::Kind::kCounter,
                                        "Bytes of these operations."};
inline constexpr Metric kUnmappedRegions{
    "link_unmapped_regions", "regions", Metric::Kind::kCounter,
    "Regions that were to be mapped by the peer, or were the peer's, and could not be handed over, "
    "or mapped. Accesses to them go by frames."};
inline constexpr Declared::Label kMappedWay{"way", "mapped"}, kFramesWay{"way", "frames"},
    kDeviceWay{"way", "device"};

}  // namespace metric

inline constexpr Counter<AccessCounters> kAccessCounters[] = {
    {&AccessCounters::mapped, {"operations_mapped", metric::kOperations, {metric::kMappedWay}}},
    {&AccessCounters::mapped_bytes,
     {"operation_bytes_mapped", metric::kOperationBytes, {metric::kMappedWay}}},
    {&AccessCounters::by_frames,
     {"operations_by_frames", metric::kOperations, {metric::kFramesWay}}},
    {&AccessCounters::by_frames_bytes,
     {"operation_bytes_by_frames", metric::kOperationBytes, {metric::kFramesWay}}},
    {&AccessCounters::by_device,
     {"operations_by_device", metric::kOperations, {metric::kDeviceWay}}},
    {&AccessCounters::by_device_bytes,
     {"operation_bytes_by_device", metric::kOperationBytes, {metric::kDeviceWay}}},
    {&AccessCounters::served,
     {"operations_served",
      {"link_served_operations", "frames", Metric::Kind::kCounter,
       "Frames by which the peer had this process access its own memory. Of what is mapped, or "
       "done by a device, this process knows nothing."}}},
    {&AccessCounters::served_bytes,
     {"operation_bytes_served",
      {"link_served_bytes", "bytes", Metric::Kind::kCounter,
       "Bytes that the peer has read or written by these frames."}}},
    {&AccessCounters::exposed,
     {"regions",
      {"link_regions", "regions", Metric::Kind::kGauge,
       "Regions of this process that the peer is let at."}}},
    {&AccessCounters::exposed_bytes,
     {"region_bytes",
      {"link_region_bytes", "bytes", Metric::Kind::kGauge,
       "Memory of these regions. What lies in several counts in each."}}},
    {&AccessCounters::known,
     {"remote_regions",
      {"link_remote_regions", "regions", Metric::Kind::kGauge,
       "Regions of the peer that this process is let at."}}},
    {&AccessCounters::known_mapped,
     {"remote_regions_mapped",
      {"link_mapped_regions", "regions", Metric::Kind::kGauge,
       "Of these, how many are mapped here."}}},
    {&AccessCounters::unhanded, {"regions_unmapped", metric::kUnmappedRegions, {metric::kSent}}},
    {&AccessCounters::unmapped,
     {"remote_regions_unmapped", metric::kUnmappedRegions, {metric::kReceived}}},
};
static_assert(complete(kAccessCounters));

// A snapshot.
struct LinkStats : LinkCounters {
  SendCounters sent;
  ReceiveCounters received;
  TransportFacts facts;
  AccessCounters accesses;
  Status crowded_why;   // why a segment was last pushed for want of room, or of a lease
  Status unshared;      // why memory of the arena was last pushed
  Status unmapped_why;  // why a region was last not mapped, of this end or the peer's
  // Counted under the send lock, and by whoever drives the link.
  struct Class {
    LiveCount sent, sent_bytes, received, received_bytes;
  };
  // Messages by payload: up to 256 B, 4 KiB, 64 KiB, 1 MiB, 16 MiB, and above.
  static constexpr std::array<uint64_t, 5> kClassLimits{256, 4 << 10, 64 << 10, 1 << 20, 16 << 20};
  using Classes = std::array<Class, kClassLimits.size() + 1>;
  Classes classes;

  // All numbers but those of the classes: visit(declared, value), always in the same order.
  static constexpr size_t kNumbers = std::size(kSendCounters) + std::size(kReceiveCounters) +
                                     std::size(kTransportFacts) + std::size(kLinkCounters) +
                                     std::size(kAccessCounters);
  template <class Visit>
  void each(Visit&& visit) const {
    each_counter(kSendCounters, sent, visit);
    each_counter(kReceiveCounters, received, visit);
    each_counter(kTransportFacts, facts, visit);
    each_counter(kLinkCounters, *this, visit);
    each_counter(kAccessCounters, accesses, visit);
  }
};

}  // namespace tw

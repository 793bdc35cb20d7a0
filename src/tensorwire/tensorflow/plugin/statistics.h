// SPDX-License-Identifier: Apache-2.0
// What went which way, but for what each transport has carried (transports.h). Counters only grow,
// from the start of the process on.
#pragma once

#include <atomic>
#include <cstdint>

namespace tensorwire {

// In the order in which people are told of them: COUNT(name, label), SIZED(name, label) of what has
// bytes, too, and TRANSPORTS(name) for what is counted for each transport.
#define TENSORWIRE_COUNTERS(COUNT, SIZED, TRANSPORTS)                                        \
  SIZED(received_in_place, "received: read where the sender has them, in shared memory")     \
  TRANSPORTS(received)                                                                       \
  COUNT(received_copied, "  of these, large ones of this host (32 KiB and more)")            \
  SIZED(received_grpc, "received: by stock gRPC")                                            \
  COUNT(grpc_because_peer, "  of these, the sender has no tensorwire")                       \
  COUNT(grpc_because_link, "  of these, no link to the sender could be made")                \
  COUNT(grpc_because_device, "  of these, on a device whose memory is out of reach")         \
  COUNT(received_realigned, "received in place, but copied because they were not aligned")   \
  COUNT(received_planned, "received: ahead of a call, as planned (also counted above)")      \
  COUNT(planned_edges, "  tensors of a step that came to be planned")                        \
  COUNT(unplanned_edges, "  of these, no longer planned")                                    \
  COUNT(planned_dropped, "  came as planned, and nobody wanted them")                        \
  COUNT(plans_refused, "plans given up because the peer broke them")                         \
  COUNT(coalesced_reads, "graphs: small variables that cross with others as one tensor")     \
  COUNT(served_planned, "sent: ahead of a call, as planned (also counted below)")            \
  SIZED(served_lent, "sent: lent where they lie in the arena")                               \
  SIZED(served_small, "sent: small ones (below 32 KiB), within messages")                    \
  SIZED(served_copied, "sent: large ones by a copy into the arena or a ring")                \
  SIZED(served_mutable, "  of these, what TensorFlow writes in place (reference variables)") \
  SIZED(served_pushed, "sent: large ones through a socket, which copies them")               \
  COUNT(served_serialized, "sent: strings and variants, in serialised form")                 \
  COUNT(served_grpc, "sent: by stock gRPC")                                                  \
  SIZED(collective_grouped, "collectives: by groups of ranks")                               \
  COUNT(collective_ungrouped, "collectives: by TensorFlow's own algorithms")                 \
  SIZED(collective_received, "  of these, buffers received over links")                      \
  COUNT(collective_grpc, "  of these, buffers received by stock gRPC")                       \
  COUNT(groups, "groups of ranks joined")                                                    \
  COUNT(links, "links to other servers")                                                     \
  COUNT(links_lost, "  of these, lost")                                                      \
  TRANSPORTS(failed)                                                                         \
  COUNT(allocated_in_arena, "memory: blocks in the arena")                                   \
  COUNT(allocated_traced, "memory: blocks by operations whose tensors are sent")             \
  COUNT(sites_traced, "  of so many operations")                                             \
  COUNT(allocated_elsewhere, "memory: blocks outside the full arena (raise TF_RDMA_BUF_SIZE)")

using Counter = std::atomic<uint64_t>;

struct Statistics {
#define TENSORWIRE_COUNT(name, label) Counter name{0};
#define TENSORWIRE_SIZED(name, label) Counter name{0}, name##_bytes{0};
#define TENSORWIRE_TRANSPORTS(name)  // in Transport
  TENSORWIRE_COUNTERS(TENSORWIRE_COUNT, TENSORWIRE_SIZED, TENSORWIRE_TRANSPORTS)
#undef TENSORWIRE_COUNT
#undef TENSORWIRE_SIZED
#undef TENSORWIRE_TRANSPORTS
};

Statistics& statistics();

inline void count(Counter& counter, uint64_t by = 1) {
  counter.fetch_add(by, std::memory_order_relaxed);
}

}  // namespace tensorwire

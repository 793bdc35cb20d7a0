// SPDX-License-Identifier: Apache-2.0
// What went which way, but for what each transport has carried (transports.h). Counters only grow,
// from the start of the process on.
#pragma once

#include <atomic>
#include <cstdint>

namespace tensorwire {

// X(name, what it counts)
#define TENSORWIRE_COUNTERS(X)                                                              \
  X(received_in_place, "tensors read in the sender's memory, without a copy")               \
  X(received_in_place_bytes, "their bytes")                                                 \
  X(received_copied, "copied within the host: 32 KiB and more, to have been read in place") \
  X(received_grpc, "tensors that TensorFlow's own gRPC brought")                            \
  X(received_grpc_bytes, "their bytes")                                                     \
  X(received_realigned, "of those in place: copied after all, as they are not aligned")     \
  X(grpc_because_peer, "tensors that took gRPC: their sender has no tensorwire")            \
  X(grpc_because_link, "the same: no link to the sender could be made")                     \
  X(grpc_because_device, "the same: they belong to a device whose memory is out of reach")  \
  X(received_planned, "tensors that came ahead of their call, as planned")                  \
  X(planned_edges, "edges that came to be planned: their tensors are sent ahead to here")   \
  X(unplanned_edges, "of these: no longer planned")                                         \
  X(planned_dropped, "tensors that came as planned, and that nobody wanted")                \
  X(plans_refused, "plans given up because the peer broke them")                            \
  X(served_planned, "tensors sent ahead of a call, as planned")                             \
  X(served_lent, "tensors sent as they lie in the arena")                                   \
  X(served_lent_bytes, "their bytes")                                                       \
  X(served_small, "tensors below 32 KiB, sent within a message")                            \
  X(served_small_bytes, "their bytes")                                                      \
  X(served_copied, "larger ones copied into the arena, or through the ring")                \
  X(served_copied_bytes, "their bytes")                                                     \
  X(served_mutable, "of these: in memory that TensorFlow writes in place, so never lent")   \
  X(served_mutable_bytes, "their bytes")                                                    \
  X(served_pushed, "larger ones copied through the socket, wherever they lie")              \
  X(served_pushed_bytes, "their bytes")                                                     \
  X(served_serialized, "strings and variants, which were sent in serialised form")          \
  X(served_grpc, "tensors that peers fetched by TensorFlow's own gRPC")                     \
  X(collective_received, "buffers of collectives that came over a link")                    \
  X(collective_received_bytes, "their bytes")                                               \
  X(collective_grpc, "buffers of collectives that TensorFlow's own gRPC brought")           \
  X(collective_grouped, "collectives that went by a group of ranks")                        \
  X(collective_grouped_bytes, "bytes of their results")                                     \
  X(collective_ungrouped, "collectives of several workers by TensorFlow's own algorithms")  \
  X(groups, "groups of ranks joined")                                                       \
  X(links, "links made to peers")                                                           \
  X(links_lost, "of these: lost")                                                           \
  X(allocated_in_arena, "allocations that the arena served")                                \
  X(allocated_traced, "allocations of the sites whose tensors are sent")                    \
  X(sites_traced, "these sites")                                                            \
  X(allocated_elsewhere, "allocations that went to ordinary memory because the arena was full")

using Counter = std::atomic<uint64_t>;

struct Statistics {
#define TENSORWIRE_COUNTER(name, about) Counter name{0};
  TENSORWIRE_COUNTERS(TENSORWIRE_COUNTER)
#undef TENSORWIRE_COUNTER
};

Statistics& statistics();

inline void count(Counter& counter, uint64_t by = 1) {
  counter.fetch_add(by, std::memory_order_relaxed);
}

}  // namespace tensorwire

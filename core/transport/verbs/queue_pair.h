// SPDX-License-Identifier: Apache-2.0
// A reliable connected queue pair: its life, and the account of what it has been asked to do.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <utility>

#include "base/status.h"
#include "transport/verbs/completion_queue.h"
#include "transport/verbs/context.h"
#include "transport/verbs/domain.h"
#include "transport/verbs/settings.h"
#include "transport/verbs/wire.h"

struct ibv_qp;
struct ibv_send_wr;

namespace tw::verbs {

// A fetch or an operation under way; several requests may be parts of it.
struct DeviceTransfer {
  uint64_t id = 0;
  uint32_t parts = 0;  // not yet completed
  Status status;
  Ref<Registration> memory;     // of this end
  std::byte* result = nullptr;  // atomics: where the old value goes
  int32_t scratch = -1;         // ... and which cell the device writes it to
};

// What a posted request holds until it has completed.
struct Posted {
  enum class Kind : uint8_t { kSend, kRead, kWrite, kBind, kProbe, kMarker };
  Kind kind = Kind::kSend;
  int32_t buffer = -1;  // kSend: the send buffer; -1: it went inline
  size_t bytes = 0;
  std::shared_ptr<DeviceTransfer> transfer;
  Ref<Window> window;  // kBind
};

// The work request id of a receive: this bit and its buffer. The ids of the others are numbers in
// the order of posting.
inline constexpr uint64_t kReceiveRequest = uint64_t{1} << 63;

// Not thread-safe, but for the life of its completions: the endpoint's lock guards it.
class QueuePair {
 public:
  // In the state INIT, where receives can be posted. `depth`: requests that post() takes.
  static Result<std::unique_ptr<QueuePair>> create(const OpenRail& rail, CompletionQueues& queues,
                                                   const Settings& settings, uint32_t depth,
                                                   uint32_t receives);
  ~QueuePair() { destroy(); }

  uint32_t number() const { return number_; }
  const OpenRail& rail() const { return rail_; }
  Domain& domain() const { return *rail_.domain; }
  CompletionQueue& queue() const { return share_.queue(); }
  uint32_t inline_bytes() const { return inline_bytes_; }
  // As the peer has to know it.
  wire::VerbsPair describe() const;

  // To RTR and RTS. UNAVAILABLE: the device does not do it.
  Status connect(const wire::VerbsPair& peer, const Settings& settings);
  // Stops the device: afterwards it neither reads nor writes any memory for this queue pair, and
  // completions that were not polled are void.
  void reset();
  // The same for good.
  void destroy();
  // The device has put it into the error state.
  bool broken() const;

  // Room for another request; `extra` for the few that go beyond the depth.
  bool room(uint32_t extra = 0) const { return posted_.size() < depth_ + extra; }
  // Room for another RDMA READ or atomic.
  bool read_room() const { return room() && reads_ < max_reads_; }
  size_t bytes_under_way() const { return bytes_; }
  size_t largest() const { return largest_; }
  bool idle() const { return posted_.empty(); }
  // Whether no request has completed since this was asked last, though some were under way.
  bool stalled() {
    const auto oldest = idle() ? std::nullopt : std::optional(first_);
    return std::exchange(seen_, oldest) == oldest && oldest;
  }
  // The request that is posted next, and whether one that was has completed.
  uint64_t next() const { return first_ + posted_.size(); }
  bool through(uint64_t request) const { return request < first_ || posted_.empty(); }

  // Sets the request's id and whether it is signalled. An error is the queue pair's end.
  Status post(ibv_send_wr& request, Posted what);
  Status post_receive(uint64_t buffer, std::byte* data, uint32_t size, uint32_t key);

  // Calls done(Posted&, failed) for what the completion of a request tells of: itself, and those
  // before it that were not signalled.
  template <class Done>
  void retire(uint64_t id, bool failed, Done&& done) {
    while (!posted_.empty() && first_ <= id) {
      Posted what = std::move(posted_.front());
      posted_.pop_front();
      const bool last = first_++ == id;
      if (reads_ != 0 && what.kind == Posted::Kind::kRead) --reads_;
      bytes_ -= what.bytes;
      done(what, failed && last);
    }
  }

 private:
  // Requests beyond the depth: one that gives credit back, one that probes, one that marks the end.
  static constexpr uint32_t kExtra = 3;

  QueuePair(const OpenRail& rail, CompletionQueues::Share share, uint32_t depth)
      : rail_(rail), share_(std::move(share)), depth_(depth) {}

  const OpenRail rail_;
  CompletionQueues::Share share_;
  const uint32_t depth_;
  uint32_t number_ = 0;
  uint32_t first_packet_ = 0;
  uint32_t inline_bytes_ = 0;
  uint8_t mtu_ = 0;  // as verbs spells it: the port's, or the setting's if that is smaller
  ibv_qp* pair_ = nullptr;
  uint32_t max_reads_ = 1;
  size_t largest_ = 0;  // bytes of one request

  std::deque<Posted> posted_;
  uint64_t first_ = 0;  // the id of the first of them
  std::optional<uint64_t> seen_;
  uint32_t reads_ = 0, unsignalled_ = 0;
  size_t bytes_ = 0;
};

// A port as a peer has to know it; no queue pair yet.
wire::VerbsPair describe(const OpenRail& rail);

// What a failed completion means: UNAVAILABLE, PERMISSION_DENIED (the peer's device refused the
// access) or INTERNAL.
Status completion_error(const Library& library, const ibv_wc& completion, const Rail& rail);

}  // namespace tw::verbs

// SPDX-License-Identifier: Apache-2.0
// The endpoint's half that deals with memory: slabs of both ends, fetches, one-sided operations and
// exposed regions.
#include <arpa/inet.h>
#include <sched.h>

#include <algorithm>
#include <cstring>

#include "base/text.h"
#include "transport/verbs/endpoint.h"
#include "transport/verbs/library.h"

namespace tw::verbs {
namespace {

// The most that expose() waits for room in the queue of requests, which the device empties by
// itself.
constexpr Nanos kRoomTime = 100 * kMillisecond;

bool reads(Operation::Kind kind) {
  return kind == Operation::Kind::kRead || kind == Operation::Kind::kFetchAdd ||
         kind == Operation::Kind::kCompareSwap;
}

Status has_atomics(const Domain& domain) {
  if (domain.device().atomics) return {};
  return {Code::kUnimplemented,
          text({"RDMA device ", domain.device().name, " has no atomic operations"})};
}

bool atomic(Operation::Kind kind) {
  return kind == Operation::Kind::kFetchAdd || kind == Operation::Kind::kCompareSwap;
}

}  // namespace

// ---- slabs ----

Status Endpoint::announce(Slab& slab) {
  wire::VerbsControl news;
  news.slab = slab.index();
  news.generation = slab.generation();
  news.size = slab.size();
  for (const size_t count = pairs(); news.pairs < count;) {
    auto memory = domain(news.pairs).slab(slab);
    if (!memory) return memory.status();
    auto& window = news.window[news.pairs++];
    window.address = reinterpret_cast<uint64_t>((*memory)->data());
    window.key = (*memory)->remote_key();
  }
  const MutexLock lock(mutex_);
  if (!failure_.ok()) return failure_;
  news_.push_back(news);
  post_news();
  return {};
}

void Endpoint::withdraw(const Slab& slab) {
  wire::VerbsControl news;
  news.type = wire::VerbsControlType::kSlabGone;
  news.slab = slab.index();
  news.generation = slab.generation();
  const MutexLock lock(mutex_);
  if (!failure_.ok()) return;
  news_.push_back(news);
  post_news();
}

Result<Ref<Registration>> Endpoint::local(Domain& domain, std::byte* data, size_t size,
                                          Access access) {
  // A slab is registered once for all; the block keeps it while the operation runs.
  if (const Ref<Block> block = arena_.find(data, size)) return domain.slab(block->slab());
  return domain.add_temporary(data, size, access);
}

// ---- fetches and operations ----

size_t Endpoint::freest_pair() const {
  size_t best = pairs_.size();
  for (size_t i = 0; i < pairs_.size(); ++i) {
    if (!pairs_[i]->read_room()) continue;
    if (best == pairs_.size() || pairs_[i]->bytes_under_way() < pairs_[best]->bytes_under_way())
      best = i;
  }
  return best;
}

Result<bool> Endpoint::fetch(uint64_t id, const RegionRef& from, std::byte* to) {
  size_t pair;
  Domain* domain;
  RemoteKey remote;
  {
    const MutexLock lock(mutex_);
    if (!failure_.ok()) return failure_;
    const auto known = peer_slabs_.find(from.slab);
    if (known == peer_slabs_.end() || known->second.generation != from.generation ||
        known->second.size == 0 || from.length == 0 || from.offset > known->second.size ||
        from.length > known->second.size - from.offset)
      return Status{Code::kInternal,
                    text({"protocol error: the peer names memory that it has not shared: slab ",
                          from.slab, " generation ", from.generation, " offset ", from.offset,
                          " length ", from.length})};
    pair = freest_pair();
    refused_fetch_ = !waiting_.empty() || pair == pairs_.size();
    if (refused_fetch_) return false;
    domain = &pairs_[pair]->domain();
    const auto& window = known->second.windows[pair];
    remote = {window.address + from.offset, window.key};
  }
  auto memory = local(*domain, to, from.length, kLocalWrite);
  if (!memory) return memory.status();
  auto transfer = std::make_shared<DeviceTransfer>();
  transfer->id = id;
  transfer->memory = std::move(*memory);
  const MutexLock lock(mutex_);
  submit({Operation::Kind::kRead, std::move(transfer), pair, to, from.length, remote});
  return true;
}

Result<bool> Endpoint::start(const Operation& operation) {
  const bool cell = atomic(operation.kind);
  if (cell && operation.length != sizeof(uint64_t))
    return Status{Code::kInternal, "an atomic operation on anything but 8 bytes"};
  Domain* domain;
  size_t inline_bytes;
  {
    const MutexLock lock(mutex_);
    domain = &pairs_[0]->domain();
    inline_bytes = pairs_[0]->inline_bytes();
    if (cell)
      if (Status status = has_atomics(*domain); !status.ok()) return status;
    if (!failure_.ok()) return failure_;
    refused_.reset();
    if (!waiting_.empty() || !can_post(operation.kind, 0)) {
      refused_ = operation.kind;
      return false;
    }
  }
  auto transfer = std::make_shared<DeviceTransfer>();
  transfer->id = operation.id;
  if (cell) {
    transfer->result = operation.local;
  } else if (operation.length > inline_bytes ||
             (operation.length != 0 && operation.kind == Operation::Kind::kRead)) {
    auto memory = local(*domain, operation.local, operation.length,
                        operation.kind == Operation::Kind::kRead ? kLocalWrite : 0);
    if (!memory) return memory.status();
    transfer->memory = std::move(*memory);
  }
  const MutexLock lock(mutex_);
  submit({operation.kind, std::move(transfer), 0, operation.local, operation.length,
          operation.remote, operation.operand, operation.expected, operation.immediate});
  return true;
}

bool Endpoint::can_post(Operation::Kind kind, size_t pair) const {
  if (atomic(kind) && free_cells_.empty()) return false;
  if (kind == Operation::Kind::kWriteImmediate && credits_ <= 1) return false;
  return reads(kind) ? pairs_[pair]->read_room() : pairs_[pair]->room();
}

// Room comes back with any completion, and with the peer's credit: not only when something ends
// that completed() tells of.
void Endpoint::look_for_room() {
  if (!waiting_.empty()) return;
  if (refused_fetch_ && freest_pair() != pairs_.size()) {
    refused_fetch_ = false;
    room_ = true;
  }
  if (refused_ && can_post(*refused_, 0)) {
    refused_.reset();
    room_ = true;
  }
}

void Endpoint::submit(DeviceRequest whole) {
  // A write's immediate value goes with its last piece.
  const size_t largest = pairs_[whole.pair]->largest();
  const auto count =
      static_cast<uint32_t>(whole.length == 0 ? 1 : (whole.length + largest - 1) / largest);
  whole.transfer->parts = count;
  for (size_t offset = 0, i = 0; i < count; ++i, offset += largest) {
    DeviceRequest piece = whole;
    piece.length = std::min(largest, whole.length - offset);
    piece.local += offset;
    piece.remote.address += offset;
    if (i + 1 < count && piece.kind == Operation::Kind::kWriteImmediate)
      piece.kind = Operation::Kind::kWrite;
    waiting_.push_back(std::move(piece));
  }
  post_waiting();
}

void Endpoint::post_waiting() {
  while (!waiting_.empty() && failure_.ok() && !life_.stopped() &&
         can_post(waiting_.front().kind, waiting_.front().pair)) {
    DeviceRequest piece = std::move(waiting_.front());
    waiting_.pop_front();
    post(piece);
  }
}

void Endpoint::post(const DeviceRequest& piece) {
  DeviceTransfer& transfer = *piece.transfer;
  ibv_sge run{reinterpret_cast<uint64_t>(piece.local), static_cast<uint32_t>(piece.length),
              transfer.memory ? transfer.memory->local_key() : 0};
  ibv_send_wr request{};
  request.sg_list = &run;
  request.num_sge = piece.length == 0 ? 0 : 1;
  request.wr.rdma.remote_addr = piece.remote.address;
  request.wr.rdma.rkey = piece.remote.key;
  Posted what;
  what.kind = reads(piece.kind) ? Posted::Kind::kRead : Posted::Kind::kWrite;
  what.bytes = piece.length;
  what.transfer = piece.transfer;
  if (what.kind == Posted::Kind::kWrite && !transfer.memory && piece.length != 0)
    request.send_flags = IBV_SEND_INLINE;
  switch (piece.kind) {
    case Operation::Kind::kRead:
      request.opcode = IBV_WR_RDMA_READ;
      break;
    case Operation::Kind::kWrite:
      request.opcode = IBV_WR_RDMA_WRITE;
      break;
    case Operation::Kind::kWriteImmediate:
      request.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
      request.imm_data = htonl(piece.immediate);
      --credits_;
      break;
    case Operation::Kind::kFetchAdd:
    case Operation::Kind::kCompareSwap: {
      const bool add = piece.kind == Operation::Kind::kFetchAdd;
      const uint32_t result = free_cells_.back();
      free_cells_.pop_back();
      transfer.scratch = static_cast<int32_t>(result);
      run.addr = reinterpret_cast<uint64_t>(cell(result));
      run.lkey = memory_->local_key();
      request.opcode = add ? IBV_WR_ATOMIC_FETCH_AND_ADD : IBV_WR_ATOMIC_CMP_AND_SWP;
      request.wr.atomic.remote_addr = piece.remote.address;
      request.wr.atomic.rkey = piece.remote.key;
      request.wr.atomic.compare_add = add ? piece.operand : piece.expected;
      request.wr.atomic.swap = add ? 0 : piece.operand;
      break;
    }
  }
  Status status = pairs_[piece.pair]->post(request, std::move(what));
  if (status.ok()) return;
  if (transfer.status.ok()) transfer.status = status;
  if (--transfer.parts == 0) end(transfer);
  fail(std::move(status));
}

void Endpoint::end(DeviceTransfer& transfer) {
  if (transfer.scratch >= 0) {
    const auto result = static_cast<uint32_t>(transfer.scratch);
    if (transfer.status.ok()) std::memcpy(transfer.result, cell(result), sizeof(uint64_t));
    free_cells_.push_back(result);
  }
  ended_.push_back({{transfer.id, std::move(transfer.status)}, std::move(transfer.memory)});
}

size_t Endpoint::completed(std::span<Completion> out) {
  std::vector<Ref<Registration>> done;  // let go of without the lock
  const MutexLock lock(mutex_);
  room_ = false;  // whoever asks tries again what was refused
  size_t count = 0;
  while (count < out.size() && !ended_.empty()) {
    out[count++] = std::move(ended_.front().completion);
    if (ended_.front().memory) done.push_back(std::move(ended_.front().memory));
    ended_.pop_front();
  }
  return count;
}

size_t Endpoint::immediates(std::span<uint32_t> out) {
  const MutexLock lock(mutex_);
  size_t count = 0;
  while (count < out.size() && !immediates_.empty()) {
    out[count++] = immediates_.front();
    immediates_.pop_front();
  }
  return count;
}

// ---- exposed regions ----

Result<RemoteKey> Endpoint::expose(std::byte* data, size_t size, Rights rights) {
  Domain& domain = this->domain(0);
  if ((rights & kMayUpdate) != 0)
    if (Status status = has_atomics(domain); !status.ok()) return status;
  Exposed exposed;
  exposed.key.address = reinterpret_cast<uint64_t>(data);
  if (!domain.device().windows) {
    // Not only this peer could use the key, but nobody else learns it.
    const Access access = ((rights & (kMayWrite | kMayUpdate)) != 0 ? kLocalWrite : 0) |
                          ((rights & kMayRead) != 0 ? kRemoteRead : 0) |
                          ((rights & kMayWrite) != 0 ? kRemoteWrite : 0) |
                          ((rights & kMayUpdate) != 0 ? kRemoteUpdate : 0);
    auto memory = domain.add(data, size, access);
    if (!memory) return memory.status();
    exposed.memory = std::move(*memory);
    exposed.key.key = exposed.memory->remote_key();
    const RemoteKey key = exposed.key;
    const MutexLock lock(mutex_);
    if (!failure_.ok()) return failure_;
    exposed_.push_back(std::move(exposed));
    return key;
  }
  // The kernel binds windows to writable memory only, also for reading.
  Ref<Block> block;
  if (domain.device().exact_windows) block = arena_.find(data, size);
  Ref<Registration> memory;
  if (block) {
    auto slab = domain.slab(block->slab());
    if (!slab) return slab.status();
    memory = std::move(*slab);
  } else {
    auto share = domain.share(data, size);
    if (!share) return share.status();
    exposed.share = std::move(*share);
    memory = exposed.share.memory();
  }
  auto window = domain.window();
  if (!window) return window.status();
  exposed.window = std::move(*window);
  const Nanos deadline = now() + kRoomTime;
  for (;;) {
    {
      const MutexLock lock(mutex_);
      if (!failure_.ok()) return failure_;
      if (pairs_[0]->room()) {
        // Whatever tells the peer of the key goes out later, and a bind comes before what follows.
        ibv_send_wr request = exposed.window->bind(std::move(memory), data, size, rights);
        Posted what;
        what.kind = Posted::Kind::kBind;
        what.window = exposed.window;
        exposed.bind = pairs_[0]->next();
        Status status = pairs_[0]->post(request, std::move(what));
        if (!status.ok()) {
          fail(status);
          return status;
        }
        exposed.key.key = exposed.window->key();
        const RemoteKey key = exposed.key;
        exposed_.push_back(std::move(exposed));
        return key;
      }
    }
    if (now() >= deadline)
      return Status{Code::kResourceExhausted,
                    "too many requests to the peer are under way to expose memory now: try again, "
                    "or set TENSORWIRE_VERBS_QUEUE_DEPTH higher"};
    poll(false);
    sched_yield();
  }
}

void Endpoint::conceal(const RemoteKey& key) {
  Exposed last;  // the device lets go of it without the lock
  const Nanos deadline = now() + kRoomTime;
  for (;;) {
    {
      const MutexLock lock(mutex_);
      const auto it = std::find_if(exposed_.begin(), exposed_.end(), [&](const Exposed& exposed) {
        return exposed.key.key == key.key && exposed.key.address == key.address;
      });
      if (it == exposed_.end()) return;
      // A bind that is still queued would open the region later, or find its window gone.
      const bool bound = !it->window || pairs_[0]->through(it->bind);
      if (bound || life_.stopped() || now() >= deadline) {
        if (!bound && !life_.stopped()) {
          fail({Code::kUnavailable, "the device did not take a region back in time"});
          pairs_[0]->reset();
        }
        last = std::move(*it);
        exposed_.erase(it);
        return;
      }
    }
    poll(false);
    sched_yield();
  }
}

}  // namespace tw::verbs

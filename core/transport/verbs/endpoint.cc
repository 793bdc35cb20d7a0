// SPDX-License-Identifier: Apache-2.0
#include "transport/verbs/endpoint.h"

#include <arpa/inet.h>
#include <sys/eventfd.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>

#include "base/text.h"
#include "transport/verbs/library.h"

namespace tw::verbs {
namespace {

// An eager frame has a header and a list of segments beside its payload.
constexpr size_t kPrefixBytes = 512;

class Buffers final : public RefCounted {
 public:
  explicit Buffers(MemoryMap memory) : memory_(std::move(memory)) {}
  std::byte* data() const { return memory_.data(); }

 private:
  const MemoryMap memory_;
};

uint32_t stride_of(const Settings& settings) {
  const size_t payload = std::max(settings.eager_bytes, settings.coalesce_bytes);
  return static_cast<uint32_t>(std::clamp<size_t>(round_up(payload + kPrefixBytes, 64),
                                                  wire::kMinVerbsBuffer, wire::kMaxVerbsBuffer));
}

}  // namespace

// ---- coming to life ----

Result<Ref<Endpoint>> Endpoint::create(Ref<Context> context, Arena& arena, Poller& background,
                                       std::span<const OpenRail> pairs) {
  auto made = Ref<Endpoint>::adopt(new Endpoint(std::move(context), arena, background));
  if (!made->bell_)
    return errno_status(Code::kResourceExhausted, "cannot create an eventfd", errno);
  const Settings& settings = made->context_->settings();
  uint32_t depth = settings.queue_depth;
  for (const OpenRail& rail : pairs)
    if (const uint32_t most = rail.domain->device().max_queue_depth; most != 0)
      depth = std::min(depth, most > 8 ? most - 8 : 1);
  made->depth_ = std::max(depth / 2, 2u);
  made->stride_ = stride_of(settings);
  const MutexLock lock(made->mutex_);
  for (const OpenRail& rail : pairs) {
    auto pair =
        QueuePair::create(rail, made->context_->completion_queues(), settings, depth, made->depth_);
    if (!pair) return pair.status();
    made->pairs_.push_back(std::move(*pair));
  }
  return made;
}

Endpoint::Endpoint(Ref<Context> context, Arena& arena, Poller& background)
    : context_(std::move(context)),
      arena_(arena),
      background_(background),
      bell_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

Endpoint::~Endpoint() { retire(); }

void Endpoint::dispose() noexcept {
  if (home_.here()) delete this;
}

wire::VerbsOffer Endpoint::describe() const {
  const MutexLock lock(mutex_);
  wire::VerbsOffer offer;
  for (const auto& pair : pairs_) offer.pair[offer.pairs++] = pair->describe();
  offer.receive_depth = depth_;
  offer.buffer_bytes = stride_;
  return offer;
}

Status Endpoint::connect(std::span<const uint32_t> own, const wire::VerbsOffer& peer) {
  std::vector<QueuePair*> pairs;
  {
    const MutexLock lock(mutex_);
    std::vector<std::unique_ptr<QueuePair>> chosen;
    for (const uint32_t index : own) {
      pairs.push_back(pairs_[index].get());
      chosen.push_back(std::move(pairs_[index]));
    }
    pairs_ = std::move(chosen);
  }

  Domain& domain = pairs[0]->domain();
  const size_t size =
      round_up(2 * size_t{depth_} * stride_ + kCells * sizeof(uint64_t), page_size());
  auto map = MemoryMap::map(-1, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS);
  if (!map) return map.status();
  auto buffers = make_ref<Buffers>(std::move(*map));
  auto memory = domain.add(buffers->data(), size, kLocalWrite, buffers);
  if (!memory) return memory.status();
  memory_ = std::move(*memory);

  {
    const MutexLock lock(mutex_);
    peer_depth_ = credits_ = peer.receive_depth;
    send_bytes_ = std::min(stride_, peer.buffer_bytes);
    for (uint32_t i = 0; i < depth_; ++i) {
      free_buffers_.push_back(i);
      post_receive(i);
    }
    for (uint32_t i = 0; i < kCells; ++i) free_cells_.push_back(i);
    if (!failure_.ok()) return failure_;
  }
  // Without the lock, because the kernel may look for the peer's address for a second. Nobody else
  // knows of this endpoint yet, and the peer sends nothing before it has heard that this is done.
  for (uint32_t i = 0; i < pairs.size(); ++i)
    if (Status status = pairs[i]->connect(peer.pair[i], context_->settings()); !status.ok())
      return status;
  for (QueuePair* const pair : pairs)
    if (std::ranges::find(queues_, &pair->queue(), &Ref<CompletionQueue>::get) == queues_.end())
      queues_.push_back(Ref<CompletionQueue>::share(&pair->queue()));
  for (uint32_t i = 0; i < pairs.size(); ++i) {
    QueuePair& pair = *pairs[i];
    pair.queue().attach(pair.number(), sink(), i);
    pair.domain().observe(Ref<Observer>::share(this));
    // What has happened before was reported to others.
    if (pair.domain().lost() || pair.queue().abandoned() || pair.broken())
      return {Code::kUnavailable,
              text({"RDMA device ", pair.rail().rail.device, " failed while a link was set up"})};
  }
  return {};
}

void Endpoint::take_over(Fd side) { side_ = UnsharedFd(std::move(side)); }

// ---- the pipe ----

Result<size_t> Endpoint::send(std::span<const iovec> data) {
  const MutexLock lock(mutex_);
  if (!failure_.ok()) return failure_;
  size_t left = 0;
  for (const iovec& run : data) left += run.iov_len;
  post_news();
  size_t sent = 0, run = 0, offset = 0;
  while (left != 0 && news_.empty() && can_send() && failure_.ok()) {
    const size_t size = std::min<size_t>(left, send_bytes_);
    const bool in_line = size <= pairs_[0]->inline_bytes();
    int32_t buffer = -1;
    if (in_line) {
      inline_.resize(size);
    } else {
      buffer = static_cast<int32_t>(free_buffers_.back());
      free_buffers_.pop_back();
    }
    std::byte* const to = in_line ? inline_.data() : send_buffer(static_cast<uint32_t>(buffer));
    for (size_t done = 0; done < size;) {
      const size_t n = std::min(data[run].iov_len - offset, size - done);
      if (n != 0) std::memcpy(to + done, static_cast<std::byte*>(data[run].iov_base) + offset, n);
      done += n;
      offset += n;
      if (offset == data[run].iov_len) {
        ++run;
        offset = 0;
      }
    }
    post_send({to, size}, buffer, false);
    sent += size;
    left -= size;
  }
  return sent;
}

size_t Endpoint::receive(std::span<const iovec> room) {
  const MutexLock lock(mutex_);
  size_t stored = 0;
  for (const iovec& run : room) {
    size_t filled = 0;
    while (filled < run.iov_len && !arrived_.empty()) {
      Arrived& from = arrived_.front();
      const size_t n = std::min<size_t>(from.size, run.iov_len - filled);
      std::memcpy(static_cast<std::byte*>(run.iov_base) + filled,
                  receive_buffer(from.buffer) + from.offset, n);
      filled += n;
      from.offset += static_cast<uint32_t>(n);
      from.size -= static_cast<uint32_t>(n);
      if (from.size != 0) break;
      post_receive(from.buffer);
      ++owed_;
      arrived_.pop_front();
    }
    stored += filled;
  }
  if (stored != 0) give_back();
  return stored;
}

Status Endpoint::failure() const {
  const MutexLock lock(mutex_);
  return failure_;
}

bool Endpoint::can_send() const {
  return credits_ > 1 && !free_buffers_.empty() && pairs_[0]->room();
}

void Endpoint::post_send(std::span<const std::byte> bytes, int32_t buffer, bool own) {
  ibv_sge piece{reinterpret_cast<uint64_t>(bytes.data()), static_cast<uint32_t>(bytes.size()),
                memory_->local_key()};
  ibv_send_wr request{};
  request.opcode = IBV_WR_SEND_WITH_IMM;
  request.imm_data = htonl(wire::encode_note({own, owed_}));
  request.sg_list = &piece;
  request.num_sge = bytes.empty() ? 0 : 1;
  if (buffer < 0 && !bytes.empty()) request.send_flags = IBV_SEND_INLINE;
  Posted what;
  what.buffer = buffer;
  if (Status status = pairs_[0]->post(request, std::move(what)); !status.ok()) return fail(status);
  --credits_;
  owed_ = 0;
  if (trace_ && !own) trace_->note(true, TraceStep::kSend, 0, 0, 0, bytes.size());
}

void Endpoint::post_news() {
  while (!news_.empty() && can_send() && failure_.ok()) {
    const uint32_t buffer = free_buffers_.back();
    free_buffers_.pop_back();
    const std::span<std::byte, wire::kVerbsNewsSize> bytes(send_buffer(buffer),
                                                           wire::kVerbsNewsSize);
    wire::encode(bytes, news_.front());
    news_.pop_front();
    post_send(bytes, static_cast<int32_t>(buffer), true);
  }
}

// Credit of which half is owed goes back without waiting for a SEND that could take it along.
void Endpoint::give_back() {
  if (owed_ * 2 < depth_ || credits_ == 0 || !failure_.ok() || life_.stopped() || !life_.open())
    return;
  if (pairs_[0]->room(1)) post_send({}, -1, true);
}

void Endpoint::post_receive(uint32_t buffer) {
  if (life_.stopped() || !failure_.ok()) return;
  if (Status status =
          pairs_[0]->post_receive(buffer, receive_buffer(buffer), stride_, memory_->local_key());
      !status.ok())
    fail(status);
}

// ---- what has happened ----

void Endpoint::on_completion(uint32_t tag, const ibv_wc& completion, bool own) {
  const MutexLock lock(mutex_);
  if (life_.stopped()) return;
  if ((completion.wr_id & kReceiveRequest) != 0)
    on_received(completion);
  else
    on_posted(*pairs_[tag], completion);
  look_for_room();
  rouse(own);
}

void Endpoint::on_received(const ibv_wc& completion) {
  if (completion.status != IBV_WC_SUCCESS)
    return fail(
        completion_error(pairs_[0]->domain().library(), completion, pairs_[0]->rail().rail));
  const auto buffer = static_cast<uint32_t>(completion.wr_id);
  const uint32_t value = ntohl(completion.imm_data);
  if (completion.opcode == IBV_WC_RECV_RDMA_WITH_IMM) {
    immediates_.push_back(value);
    post_receive(buffer);
    ++owed_;
    return give_back();
  }
  const auto broken = [this](std::string_view what) {
    mutex_.held();
    fail({Code::kInternal, text({"protocol error: verbs: ", what})});
  };
  if ((completion.wc_flags & IBV_WC_WITH_IMM) == 0)
    return broken("a SEND without its immediate value");
  const wire::SendNote note = wire::decode_note(value);
  if (note.credits > peer_depth_ - credits_) return broken("more credit than was spent");
  credits_ += note.credits;
  if (!note.own && completion.byte_len != 0) {
    arrived_.push_back({buffer, 0, completion.byte_len});
  } else {
    if (completion.byte_len != 0) {
      const auto news = wire::decode_verbs_news({receive_buffer(buffer), completion.byte_len});
      if (!news) return fail(news.status());
      on_news(*news);
    }
    post_receive(buffer);
    ++owed_;
  }
  if (note.credits != 0) post_waiting();
  post_news();
  give_back();
}

void Endpoint::on_news(const wire::VerbsControl& news) {
  PeerSlab& slab = peer_slabs_[news.slab];
  if (news.type == wire::VerbsControlType::kSlabGone) {
    if (slab.size == 0 || slab.generation != news.generation)
      return fail({Code::kInternal, text({"protocol error: verbs: slab ", news.slab, " generation ",
                                          news.generation, " goes without having come"})});
    slab.size = 0;
    slab.windows.clear();
    return;
  }
  if (slab.size != 0 || news.pairs != pairs_.size() || peer_slabs_.size() > kMaxPeerSlabs)
    return fail({Code::kInternal, text({"protocol error: verbs: slab ", news.slab, " is announced ",
                                        slab.size != 0 ? "twice" : "wrongly"})});
  slab.generation = news.generation;
  slab.size = news.size;
  slab.windows.assign(news.window.begin(), news.window.begin() + news.pairs);
}

void Endpoint::on_posted(QueuePair& pair, const ibv_wc& completion) {
  const bool failed = completion.status != IBV_WC_SUCCESS;
  Status why;
  if (failed) why = completion_error(pair.domain().library(), completion, pair.rail().rail);
  pair.retire(completion.wr_id, failed, [&](Posted& what, bool bad) {
    mutex_.held();
    if (what.buffer >= 0) free_buffers_.push_back(static_cast<uint32_t>(what.buffer));
    if (what.kind == Posted::Kind::kMarker) close_side();
    if (!what.transfer) return;
    if (bad && what.transfer->status.ok()) what.transfer->status = why;
    if (--what.transfer->parts == 0) end(*what.transfer);
  });
  if (failed)
    fail(why.code() == Code::kPermissionDenied ? Status{Code::kUnavailable, why.details()} : why);
  else
    post_waiting();
  post_news();
  give_back();
}

void Endpoint::on_event(const AsyncEvent& event) {
  if (event.kind == AsyncEvent::Kind::kCompletions)
    context_->completion_queues().abandon(event.completions);
  const MutexLock lock(mutex_);
  if (life_.stopped()) return;
  switch (event.kind) {
    case AsyncEvent::Kind::kDeviceLost:
      fail(event.why);
      break;
    case AsyncEvent::Kind::kQueuePair:
      // Two devices may use the same number.
      for (const auto& pair : pairs_)
        if (pair->number() == event.queue_pair && pair->broken()) fail(event.why);
      break;
    case AsyncEvent::Kind::kCompletions:
      for (const auto& queue : queues_)
        if (queue->handle() == event.completions) fail(event.why);
      break;
    case AsyncEvent::Kind::kPortUp:
      // What was lost meanwhile is repeated now or fails now, also where nobody sends or a device
      // has given up in silence, as Soft-RoCE does now and then.
      for (const auto& pair : pairs_)
        if (failure_.ok() && life_.open() && pair->room(2))
          post_empty_write(*pair, Posted::Kind::kProbe);
      expect_progress();
      break;
    case AsyncEvent::Kind::kPortDown:  // it may come up again: the retries decide
    case AsyncEvent::Kind::kPortChanged:
      return;
  }
  rouse(false);
}

// Whoever sleeps hears of what is due; the driver who found it himself (`own`) needs no bell.
void Endpoint::rouse(bool own) {
  if (attention_ == Attention::kAwake || !due_locked()) return;
  attention_ = Attention::kAwake;
  if (!own) ring_locked();
}

void Endpoint::fail(Status why) {
  if (!failure_.ok()) return;
  failure_ = std::move(why);
  while (!waiting_.empty()) {
    DeviceTransfer& transfer = *waiting_.front().transfer;
    if (transfer.status.ok()) transfer.status = {Code::kUnavailable, failure_.details()};
    if (--transfer.parts == 0) end(transfer);
    waiting_.pop_front();
  }
  close_side();
  rouse(false);
}

// ---- sleeping ----

bool Endpoint::due_locked() const {
  return !arrived_.empty() || !ended_.empty() || !immediates_.empty() || room_ || !failure_.ok() ||
         (want_send_ && can_send());
}

bool Endpoint::due() const {
  const MutexLock lock(mutex_);
  return due_locked();
}

bool Endpoint::doze(Attention attention, bool want_send) {
  const MutexLock lock(mutex_);
  want_send_ = want_send;
  if (due_locked()) return false;
  attention_ = attention;
  expect_progress();
  return true;
}

bool Endpoint::dozing() const {
  const MutexLock lock(mutex_);
  return attention_ != Attention::kAwake;
}

void Endpoint::wake() {
  const MutexLock lock(mutex_);
  attention_ = Attention::kAwake;
  want_send_ = false;
  if (!std::exchange(rung_, false)) return;
  uint64_t value;
  [[maybe_unused]] const ssize_t n = ::read(bell_.get(), &value, sizeof value);
}

void Endpoint::ring() {
  const MutexLock lock(mutex_);
  ring_locked();
}

void Endpoint::ring_locked() {
  rung_ = true;
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t n = ::write(bell_.get(), &one, sizeof one);
}

void Endpoint::poll(bool driver) {
  for (const auto& queue : queues_) queue->poll(driver ? &sink() : nullptr);
}

void Endpoint::begin_driving() {
  for (const auto& queue : queues_) queue->begin(sink());
}

void Endpoint::end_driving() {
  for (const auto& queue : queues_) queue->end(sink());
}

size_t Endpoint::prepare_sleep(std::span<int> channels) {
  size_t count = 0;
  for (const auto& queue : queues_)
    if (queue->prepare_sleep(sink()) && count < channels.size())
      channels[count++] = queue->channel();
  return count;
}

void Endpoint::end_sleep() {
  for (const auto& queue : queues_) queue->end_sleep(sink());
}

// ---- what there is to see ----

TransportFacts Endpoint::facts() const {
  const DomainStats stats = context_->stats();
  return {stats.registrations, stats.temporary_made};
}

void Endpoint::set_trace(Trace& trace) {
  const MutexLock lock(mutex_);
  trace_ = &trace;
}

}  // namespace tw::verbs

// SPDX-License-Identifier: Apache-2.0
// The endpoint's half that ends it: memory is taken back at once, the last SENDs go out, and the
// queue pairs go when they have.
#include <sched.h>
#include <sys/socket.h>

#include <utility>

#include "transport/verbs/endpoint.h"
#include "transport/verbs/library.h"

namespace tw::verbs {

void Endpoint::revoke(bool peer_lives) {
  if (peer_lives) flush();
  const MutexLock lock(mutex_);
  if (!life_.revoke()) return;
  for (const auto& pair : pairs_) pair->reset();
  // Ahead of the link, which lets go of the memory now.
  for (Exposed& exposed : exposed_) exposed.share.close();
  waiting_.clear();
  if (failure_.ok()) failure_ = {Code::kUnavailable, "the link's memory was taken back"};
  if (attention_ != Attention::kAwake) {
    attention_ = Attention::kAwake;
    ring_locked();
  }
  close_side();  // the marker that a link which is leaving waits for went with the reset
}

// Why a link ends is said by its last SEND, which a reset would take back.
void Endpoint::flush() {
  uint64_t last;
  {
    const MutexLock lock(mutex_);
    waiting_.clear();
    if (life_.stopped() || !failure_.ok() || pairs_[0]->idle() || !pairs_[0]->room(2)) return;
    last = pairs_[0]->next();
    post_empty_write(*pairs_[0], Posted::Kind::kProbe);
  }
  const auto settled = [&] {
    const MutexLock lock(mutex_);
    return life_.stopped() || !failure_.ok() || pairs_[0]->through(last);
  };
  const Nanos deadline = now() + kLastWords;
  do {
    poll(false);
    sched_yield();
  } while (!settled() && now() < deadline);
}

void Endpoint::hang_up(bool peer_lives) {
  const MutexLock lock(mutex_);
  if (!life_.leave()) return;
  if (!peer_lives || life_.stopped() || !failure_.ok() || pairs_.empty() || pairs_[0]->idle())
    return close_side();
  post_empty_write(*pairs_[0], Posted::Kind::kMarker);
}

// Completes after all SENDs before it, takes up nothing of the peer's, and writes nothing.
void Endpoint::post_empty_write(QueuePair& pair, Posted::Kind kind) {
  ibv_send_wr request{};
  request.opcode = IBV_WR_RDMA_WRITE;
  Posted what;
  what.kind = kind;
  if (Status status = pair.post(request, std::move(what)); !status.ok()) fail(std::move(status));
}

void Endpoint::close_side() {
  if (!life_.close()) return;
  end_side();
  // By the background: whoever polls may belong to another link.
  if (life_.released())
    background_.add_timer(0, [self = Ref<Endpoint>::share(this)] { self->retire(); });
}

void Endpoint::end_side() {
  if (side_) ::shutdown(side_.get(), SHUT_RDWR);
}

void Endpoint::leave(bool peer_lives) {
  if (!home_.here()) {
    // The parent's devices are left alone; its peer must be able to see the parent's end.
    side_.reset();
    return;
  }
  hang_up(peer_lives);
  end_driving();
  {
    const MutexLock lock(mutex_);
    trace_ = nullptr;
    if (!life_.release()) return;
    if (!life_.closed()) {
      linger_ = background_.add_timer(now() + kLinger,
                                      [self = Ref<Endpoint>::share(this)] { self->retire(); });
      return;
    }
  }
  retire();
}

void Endpoint::retire() {
  std::vector<Exposed> exposed;
  std::vector<std::unique_ptr<QueuePair>> pairs;
  std::deque<EndedTransfer> ended;
  std::optional<Poller::Timer> linger, expecting;
  {
    const MutexLock lock(mutex_);
    const bool closed = life_.closed();
    if (!life_.retire()) return;
    if (!closed) end_side();
    exposed.swap(exposed_);
    pairs.swap(pairs_);
    ended.swap(ended_);
    waiting_.clear();
    linger.swap(linger_);
    expecting.swap(expecting_);
  }
  for (const auto& timer : {linger, expecting})
    if (timer) background_.cancel_timer(*timer);
  // A window may keep its queue pair.
  exposed.clear();
  for (const auto& pair : pairs) {
    pair->domain().forget(*this);
    const uint32_t number = pair->number();
    // What it has left there is not mistaken for a later one's of the same number, which the
    // device may give once this one is destroyed.
    pair->reset();
    pair->queue().poll(nullptr);
    pair->queue().detach(number, sink());
    pair->destroy();
  }
}

}  // namespace tw::verbs

// SPDX-License-Identifier: Apache-2.0
#include "link/link.h"

#include <sys/epoll.h>

#include <new>

#include "base/mutex.h"
#include "base/shortage.h"
#include "wire/bytes.h"

namespace tw {
namespace {

// What calls may change is what nobody has set: see Link::online().
Ref<OnlineThreshold> online_of(Runtime& runtime, const Profile& profile,
                               const Thresholds& thresholds, const Peer& peer) {
  if (runtime.settings().tune_online != "on") return nullptr;
  if (thresholds.sources[static_cast<size_t>(Threshold::kEager)] > Source::kTable) return nullptr;
  return runtime.online_thresholds().of(profile.name, host_of_rule(peer.same_host, peer.address),
                                        profile.eager_bytes, profile.coalesce_bytes);
}

}  // namespace

// Views may die on any thread and after their link: they reach it through this.
class Link::Returns final : public LeaseReturn {
 public:
  explicit Returns(Link& link) : link_(&link) {}

  void lease_done(uint64_t id) noexcept override {
    Ref<Link> link;  // kept beyond the lock: returning a lease may be what ends the link
    {
      const MutexLock lock(mutex_);
      if (link_ && link_->try_retain()) link = Ref<Link>::adopt(link_);
    }
    if (link) link->surely([&] { link->return_lease(id); });
  }
  void forget() {
    const MutexLock lock(mutex_);
    link_ = nullptr;
  }

 private:
  Mutex mutex_;  // guards link_; taken before any lock of the link
  Link* link_ TW_GUARDED_BY(mutex_);
};

Link::Link(Runtime& runtime, Poller& poller, std::unique_ptr<Transport> transport, Peer peer,
           uint64_t max_message, Role role, const Wanted& wanted)
    : runtime_(runtime),
      transport_(std::move(transport)),
      between_hosts_(transport_->host_answer().has_value()),
      peer_(std::move(peer)),
      profile_(transport_->profile()),
      thresholds_(settle(profile_, runtime.settings(),
                         runtime.link_table().of(profile_.name, peer_.same_host, peer_.address),
                         wanted)),
      online_(online_of(runtime, profile_, thresholds_, peer_)),
      role_(role),
      receiver_(runtime.pool(), runtime.receive_memory(), max_message, *this, {}, &trace_),
      received_(receiver_.counters()),
      fetches_(trace_),
      spinner_(runtime.settings().spin),
      sender_(
          profile_, [this](Slab& slab) { return transport_->share(slab); }, {}, &trace_),
      host_silence_(Silence::after(runtime.settings().silence)),
      returns_(make_ref<Returns>(*this)),
      poller_(poller) {
  (void)baton_.try_take();  // until start() hands it on
  transport_->set_trace(trace_);
}

Link::~Link() { returns_->forget(); }

void Link::slabs_dropped() {
  const MutexLock lock(send_mutex_);
  if (sends_ != Sends::kEnded) transport_->slabs_dropped();
}

Status Link::start() {
  baton_.held();  // since it was made
  Status status;
  try {
    status = be_watched();
    if (!status.ok()) lose(status);
  } catch (const std::bad_alloc&) {
    out_of_memory();
    status = death();
  }
  hand_on();
  return status;
}

// What it leaves behind where it fails, lose() takes away.
Status Link::be_watched() {
  if (Status status = transport_->watch(poller_, Ref<Watcher>::share(this)); !status.ok())
    return status;
  if (peer_.pidfd) {
    auto watch =
        poller_.watch(peer_.pidfd.get(), EPOLLIN | EPOLLONESHOT, Ref<Watcher>::share(this), kDeath);
    if (!watch) return watch.status();
    death_watch_ = *watch;
  }
  runtime_.subscribe(*this);
  return {};
}

// ---- sending ----

Result<Ref<Outgoing>> Link::send(uint64_t stream, std::span<const std::byte> header,
                                 std::span<OutSegment> segments, Event* event, Hold owner,
                                 bool driving, bool defer) {
  uint64_t bytes = 0;
  for (const OutSegment& segment : segments) bytes += segment.size;
  Result<Ref<Outgoing>> outgoing = Ref<Outgoing>{};
  bool backlog, starved = false;
  {
    const Sending lock(*this);
    if (sends_ == Sends::kEnded) return death();
    backlog = unsent_.load();
    try {
      queue_fins_locked();
      outgoing = sender_.submit(stream, header, segments, event, std::move(owner));
      if (outgoing) sent_locked(bytes, defer && !*outgoing);
    } catch (const std::bad_alloc&) {
      // Half a message, or half of what goes back, may be queued: the link cannot go on, and reads
      // nobody's memory any more.
      const Shortage shortage;
      sends_ = Sends::kBroken;
      starved = true;
      outgoing =
          Status(Code::kResourceExhausted, "this process has no memory left for the message");
    }
  }
  if (starved) starve();
  if (!outgoing) return outgoing;
  // Whoever has lent its memory waits until it is free: it drives meanwhile, or somebody is told.
  after_flush(backlog, driving || *outgoing);
  return outgoing;
}

// A message has been queued.
void Link::sent_locked(uint64_t bytes, bool defer) {
  if (!sender_.crowded().ok()) tell_crowded(sender_.crowded());
  if (!defer || sender_.queued_bytes() >= kDeferLimit) {
    flush_locked();
  } else {
    deferred_.store(true, std::memory_order_relaxed);
    if (!defer_timer_)
      defer_timer_ = poller_.add_timer(now() + kDeferTime, Ref<Watcher>::share(this));
  }
  LinkStats::Class& counters = class_of(bytes);
  ++counters.sent;
  counters.sent_bytes += bytes;
}

void Link::send_credit(uint64_t stream, uint64_t bytes) {
  bool backlog;
  {
    const Sending lock(*this);
    if (sends_ == Sends::kEnded) return;
    backlog = unsent_.load();
    queue_fins_locked();
    sender_.credit(stream, bytes);
    flush_locked();
  }
  after_flush(backlog, false);
}

// Whether something was left to be sent before.
bool Link::flush_all() {
  const Sending lock(*this);
  const bool backlog = unsent_.load();
  queue_fins_locked();
  flush_locked();
  return backlog;
}

// No lock held. `backlog`: something was left to be sent, and now that it has gone the driver may
// be the one who waits for that.
void Link::after_flush(bool backlog, bool driving) {
  if (unsent_.load())
    kick(driving);
  else if (backlog && baton_.taken())
    transport_->interrupt();
}

void Link::on_timer() {
  {
    const MutexLock lock(send_mutex_);
    const Nanos at = now();
    for (auto* timer : {&defer_timer_, &return_timer_, &linger_timer_})
      if (*timer && (*timer)->first <= at) timer->reset();
  }
  surely([this] {
    after_flush(flush_all(), false);
    look_at_reader();
    look_at_host();
    for (const auto& port : messages_) port->on_timer();
    if (life_.closing()) kick(false);
  });
}

// Send lock held. Messages and one-sided operations take turns, at the ends of frames. A broken
// transport is found out by whoever receives, once what has arrived is handed up: until then
// something counts as left.
void Link::flush_locked() {
  deferred_.store(false, std::memory_order_relaxed);
  iovec runs[64];
  FrameQueue& operations = memory_->out();
  bool went = false;
  while (sends_ == Sends::kOn && (sender_.pending() || operations.pending())) {
    if (!sender_.pending()) turn_ended_ = true;
    if (turn_ended_ && !operations.midway())
      operations_turn_ = operations.pending() && !(operations_turn_ && sender_.pending());
    const size_t count = operations_turn_ ? operations.gather(runs) : sender_.gather(runs);
    auto taken = transport_->send({runs, count});
    if (!taken) {
      sends_ = Sends::kBroken;
      transport_->peer_gone(taken.status().details());
      break;
    }
    if (*taken == 0) break;
    went = true;
    taken_.store(taken_.load(std::memory_order_relaxed) + *taken, std::memory_order_relaxed);
    if (operations_turn_) {
      operations.sent(*taken);
      continue;
    }
    size_t offered = 0;
    for (size_t i = 0; i < count; ++i) offered += runs[i].iov_len;
    turn_ended_ = *taken == offered;
    sender_.sent(*taken);
  }
  const bool unsent = sender_.pending() || operations.pending();
  unsent_.store(unsent);
  queued_.store(sender_.queued_bytes(), std::memory_order_relaxed);
  // Once it is counted what has gone: there may be no memory for a timer.
  if (unsent && !reader_timer_ && sends_ == Sends::kOn) watch_reader();
  if (went && between_hosts_ && !host_timer_) watch_host();
}

void Link::queue_fins_locked() {
  if (!fins_due_.load(std::memory_order_acquire)) return;
  std::vector<uint64_t> ids;
  {
    const MutexLock lock(fin_mutex_);
    ids.swap(fins_);
    fins_due_.store(false, std::memory_order_relaxed);
  }
  if (sends_ != Sends::kEnded) sender_.fin(ids);
}

// Something is left to do: whoever drives does it, or is going to, else the background. Whoever
// holds the baton may be past its last look already, hence the flag; and a caller that is going to
// drive, but finds that another one has begun to, relies on that one seeing unsent_, which was
// stored before the look at the baton.
void Link::kick(bool driving) {
  if (driving && !baton_.taken()) return;
  if (baton_.take_or_flag())
    hand_on();
  else
    transport_->interrupt();
}

void Link::return_lease(uint64_t id) {
  size_t waiting;
  {
    const MutexLock lock(fin_mutex_);
    fins_.push_back(id);
    waiting = fins_.size();
    // Before the look at the state, as close() stores that before it looks here.
    fins_due_.store(true);
    // Before the FIN leaves, after which the peer may lend as much again.
    views_.fetch_sub(1, std::memory_order_release);
  }
  if (waiting < kReturnsTogether && keeps_leases()) {
    const MutexLock lock(send_mutex_);
    if (!return_timer_ && sends_ != Sends::kEnded)
      return_timer_ = poller_.add_timer(now() + kReturnTime, Ref<Watcher>::share(this));
    return;
  }
  after_flush(flush_all(), false);
  if (life_.closing()) kick(false);
}

// Once for a link, what is sent to it is slower from now on; and when the arena is found to be
// smaller still than was told.
void Link::tell_crowded(const Status& why) {
  const bool told = crowded_told_.load(std::memory_order_relaxed) || crowded_told_.exchange(true);
  if (runtime_.arena().take_wanted() != 0 || !told)
    runtime_.audit().note(Incident::kBudgetArena, peer_.name(), why.details());
}

// ---- receiving ----

// True when bytes came in, or fetches ended. A link for which there is no memory is lost: where it
// stood is not known any more.
bool Link::step() {
  try {
    return move();
  } catch (const std::bad_alloc&) {
    out_of_memory();
    return false;
  }
}

// For one turn: what is left then is told again.
void Link::steps() {
  const Nanos until = now() + kTurn;
  while (step() && now() < until) {
  }
}

void Link::flush_returns() {
  try {
    (void)flush_all();
  } catch (const std::bad_alloc&) {
    out_of_memory();
  }
}

// As step().
bool Link::move() {
  if (lost()) return false;
  if (const auto why = life_.doomed(); why != Lifecycle::Doom::kNone) {
    give_up(why);
    return false;
  }
  if (unsent_.load(std::memory_order_relaxed)) {
    const Sending lock(*this);
    flush_locked();
  }
  const bool ended = take_completions();
  if (lost()) return false;
  // After the completions, which may have made room for what was refused.
  Status started = fetches_.waiting() ? start_fetches() : Status{};
  if (started.ok() && memory_->due()) started = memory_->start_due();
  if (!started.ok()) {
    fail(std::move(started));
    return false;
  }
  memory_->settle();
  const Result<size_t> got = memory_->receive(*transport_, receiver_);
  if (!got) {
    lose(got.status());
    return false;
  }
  if (*got != 0) {
    came_ += *got;
    Status status = receiver_.received(*got);
    if (status.ok() && receiver_.offered_reads()) status = start_fetches();
    if (!status.ok()) {
      fail(std::move(status));
      return false;
    }
    memory_->settle();
  }
  if (life_.closing() && drained() && !lingers(*got != 0)) lose(death());
  return ended || *got != 0;
}

bool Link::take_completions() {
  const bool device = profile().one_sided;
  if (!fetches_.under_way() && !device) return false;
  Completion ended[16];
  bool any = false;
  Status status;
  while (const size_t count = status.ok() ? transport_->completed(ended) : 0) {
    any = true;
    for (size_t i = 0; i < count && status.ok(); ++i)
      status = ended[i].id & Operation::kIdBit ? memory_->on_completion(ended[i])
                                               : fetches_.ended(ended[i]);
  }
  if (device && status.ok()) status = memory_->take_immediates();
  if (any && status.ok()) status = start_fetches();  // and their FINs
  if (!status.ok())
    fail(std::move(status));
  else if (device)
    memory_->settle();
  return any;
}

// The next ones begin before those that are through are handed up.
Status Link::start_fetches() {
  do {
    // What is through makes room for others.
    if (receiver_.offered_reads()) fetches_.add(receiver_.take_reads());
    if (Status status = fetches_.start(*transport_, receiver_); !status.ok()) return status;
    const std::vector<Receiver::Read> done = fetches_.take_done();
    if (done.empty()) continue;
    for (const Receiver::Read& read : done)
      if (Status status = receiver_.read_done(read); !status.ok()) return status;
    const Sending lock(*this);
    for (const Receiver::Read& read : done) sender_.fin({&read.rendezvous, 1});
    flush_locked();
  } while (receiver_.offered_reads());
  return {};
}

void Link::hand_on() {
  for (;;) {
    if (fins_due_.load() && !keeps_leases()) flush_returns();
    // Nobody waits for a closing link to end: each who lets go of it sees whether it has.
    if (life_.closing() || life_.doomed() != Lifecycle::Doom::kNone || memory_->due()) steps();
    if (baton_.pass_to_waiter()) return;
    baton_.held();
    // Armed while the baton is still held, because arming reads what the baton guards.
    transport_->arm(unsent_.load());
    if (!baton_.free() || !baton_.try_take()) return;
    // Somebody came while the baton was held, and went again.
    transport_->disarm();
    steps();
  }
}

bool Link::try_drive() {
  if (!baton_.try_take()) return false;
  transport_->disarm();
  return true;
}

// Whether there may be something for whoever drives.
bool Link::noticed(uint32_t tag, uint32_t events) {
  if (tag == kDeath) {
    const std::string pid = peer_.pid == 0 ? "" : " (pid " + std::to_string(peer_.pid) + ")";
    transport_->peer_gone("the peer's process" + pid + " has died");
  } else {
    switch (transport_->meaning(tag, events)) {
      case Transport::Meaning::kNone:
        return false;
      case Transport::Meaning::kActivity:
        break;
      case Transport::Meaning::kHungUp:
        transport_->peer_gone("the peer closed the connection");
        break;
    }
  }
  return true;
}

void Link::on_event(uint32_t tag, uint32_t events) {
  background_wakes_.fetch_add(1, std::memory_order_relaxed);
  try {
    if (!noticed(tag, events)) return;
  } catch (const std::bad_alloc&) {
    const Shortage shortage;
    transport_->peer_gone("this process had no memory left for what the peer announced");
  }
  // Whoever has the baton learns that there was something, and looks again when letting it go.
  if (!baton_.take_or_flag()) return;
  transport_->disarm();
  const Nanos begun = now();
  const uint64_t before = came_;
  // Others wait for this thread: it polls only for a message that comes in at a good pace.
  const auto pays = [&] {
    baton_.held();
    return receiver_.midway() && now() - begun < static_cast<Nanos>(came_ - before) * kPacePerByte;
  };
  do {
    if (step()) continue;
    const auto moves = [&] {
      baton_.held();
      return transport_->readable() && step();
    };
    if (!pays() || !spinner_(moves)) break;
  } while (now() < begun + kTurn);
  hand_on();  // what is left is reported again
}

Status Link::on_message(Ref<Parcel> message) {
  const size_t bytes = message->payload_bytes();
  if (bytes >= Pool::kSmallest) runtime_.memory_used();
  LinkStats::Class& counters = class_of(bytes);
  ++counters.received;
  counters.received_bytes += bytes;
  return port_of(message->stream()).on_message(std::move(message));
}

Status Link::on_fin(std::span<const uint64_t> ids) {
  const Sending lock(*this);
  Status status = sender_.on_fin(ids);
  if (sender_.pending()) flush_locked();
  return status;
}

Status Link::on_unmappable(uint64_t lease) {
  const Sending lock(*this);
  return sender_.on_unmappable(lease);
}

void Link::on_go_away(Code code, std::string_view reason) {
  life_.leave(code, reason);
  if (code != Code::kOk) return;
  for (const auto& port : messages_) port->on_peer_closed();
}

Ref<LeasedView> Link::held(std::span<const std::byte> bytes) const {
  if (bytes.size() < wire::kLeastReturned || (peer_.features & wire::kReturned) == 0 ||
      views_.load(std::memory_order_relaxed) == 0)
    return nullptr;
  return transport_->held(bytes);
}

Result<InSegment> Link::on_return(const wire::SegmentInfo& segment) {
  const auto lent = [&] {
    const MutexLock lock(send_mutex_);
    return sender_.lent(segment.map.lease, {segment.map.slab, segment.map.generation,
                                            segment.map.offset, segment.length});
  }();
  if (!lent) return lent.status();
  return view_of(*lent);
}

Result<InSegment> Link::on_map(const wire::SegmentInfo& segment) {
  if (views_.load(std::memory_order_relaxed) >= wire::kMaxLeases)
    return wire::protocol_error({"MESSAGE frame: lease is ", segment.map.lease, ", but ",
                                 wire::kMaxLeases, " before it are out without a FIN"});
  auto located = transport_->locate(
      {segment.map.slab, segment.map.generation, segment.map.offset, segment.length});
  if (!located) {
    // The peer pushes what lies there from now on.
    if (located.status().code() == Code::kResourceExhausted) {
      unmapped_.fetch_add(1, std::memory_order_relaxed);
      const Sending lock(*this);
      if (sends_ != Sends::kEnded) sender_.unmappable(segment.map.lease);
      flush_locked();
    }
    return located.status();
  }
  views_.fetch_add(1, std::memory_order_relaxed);
  auto view = LeasedView::make(*located, returns_, segment.map.lease);
  if (!view) {
    return_lease(segment.map.lease);
    return view.status();
  }
  InSegment in;
  in.data = (*view)->bytes().data();
  in.size = segment.length;
  in.hold = std::move(*view);
  return in;
}

}  // namespace tw

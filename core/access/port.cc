// SPDX-License-Identifier: Apache-2.0
#include "access/port.h"

#include <algorithm>
#include <new>
#include <utility>
#include <vector>

#include "access/exposing.h"
#include "base/shortage.h"
#include "wire/bytes.h"

namespace tw {
namespace {

Status status_of_loss(const Status& why) {
  return why.code() == Code::kCancelled ? why : Status{Code::kUnavailable, why.details()};
}

// Tells in the region what was handed over. A status: nothing was, so that the peer has to ask.
Status hand_over(Transport& transport, wire::Region& region, const std::byte* data,
                 const Ref<SharedMemory>& shared, const Ref<Block>& block, const Ref<Door>& door) {
  if (block) {
    if (Status status = transport.hand_over(region.id, Ref<Slab>::share(&block->slab()), door);
        !status.ok())
      return status;
    region.address = block->region(data, region.length).offset;
    region.key = wire::kInArena;
  } else {
    const bool writable = (region.rights & (kMayWrite | kMayUpdate)) != 0;
    if (Status status = transport.hand_over(region.id, shared, writable, door); !status.ok())
      return status;
    region.address = shared->offset_of(data);
    region.key = wire::kHandedOver;
  }
  return {};
}

// For one more, so that push_back() cannot fail.
void make_room(std::vector<Ref<Grant>>& grants) {
  if (grants.size() == grants.capacity()) grants.reserve(2 * grants.size() + 1);
}

bool hands_over(const Link& link, uint64_t feature) {
  return link.profile().bulk == Bulk::kMap && (link.peer().features & feature) != 0;
}

}  // namespace

AccessPort::AccessPort(Link& link)
    : link_(link),
      device_(link.profile().one_sided),
      supported_((link.peer().features & wire::kOneSided) != 0),
      maps_(hands_over(link, wire::kMapped)),
      maps_blocks_(hands_over(link, wire::kMappedBlocks)),
      target_(out_),
      initiator_(out_, link.profile().chunk_bytes, device_),
      mapped_(link.runtime().copier()) {}

Status AccessPort::usable(const Link::Sending& sending) const {
  if (sending.ended() || over()) return status_of_loss(link_.death());
  if (supported_) return {};
  return {Code::kUnimplemented,
          "the peer at " + link_.peer().address + " runs a version without one-sided operations"};
}

// ---- memory of this end ----

Result<uint64_t> AccessPort::expose(std::byte* data, size_t size, Rights rights, Hold hold) {
  if (!data || size == 0) return Status{Code::kInvalidArgument, "a region needs at least 1 byte"};
  if ((rights & ~wire::kRegionRights) != 0)
    return Status{Code::kInvalidArgument, text({"rights are ", rights, "; known are ",
                                                wire::kRegionRights, " and its parts"})};
  if ((rights & kMayUpdate) != 0 && reinterpret_cast<uintptr_t>(data) % sizeof(uint64_t) != 0)
    return Status{Code::kInvalidArgument,
                  "memory for atomic updates must begin at a multiple of 8 bytes"};
  wire::Region region;
  Ref<SharedMemory> shared = link_.runtime().shared_memories().find(data, size);
  // For reading only: so are its slabs, by every descriptor of them.
  Ref<Block> block;
  if (!shared && maps_blocks_ && rights == kMayRead)
    block = link_.runtime().arena().find(data, size);
  Ref<Door> door;
  Status unhanded;
  if ((shared && maps_) || block) door = make_ref<Door>();
  bool backlog, starved = false;
  // Let go of without the lock, as their owners may have leases of this link.
  std::vector<Ref<Grant>> left;
  Ref<Grant> granted;
  {
    Link::Sending sending(link_);
    if (Status status = usable(sending); !status.ok()) return status;
    note_unhanded(sending.transport());
    const auto at = std::partition(leaving_.begin(), leaving_.end(),
                                   [](const Ref<Grant>& grant) { return !grant->left(); });
    left.assign(at, leaving_.end());
    leaving_.erase(at, leaving_.end());
    // A peer that hears of none of it lets what is exposed and concealed again wait without end.
    if (const size_t unread = link_.queued(); unread > link_.runtime().settings().unread_bytes)
      return Status{Code::kResourceExhausted,
                    text({"the peer has yet to take ", unread, " bytes: let it take some first"})};
    if (target_.regions() == wire::kMaxRegions)
      return Status{Code::kResourceExhausted,
                    text({wire::kMaxRegions, " regions are exposed on this link already"})};
    if (device_) {
      auto key = sending.transport().expose(data, size, rights);
      if (!key) return key.status();
      region.address = key->address;
      region.key = key->key;
    }
    region.id = target_.next_region();
    region.length = size;
    region.rights = rights;
    Exposing exposing(device_ ? &sending.transport() : nullptr, {region.address, region.key});
    if (door) unhanded = hand_over(sending.transport(), region, data, shared, block, door);
    if (!unhanded.ok()) {
      door = nullptr;
      region.key = wire::kNotHandedOver;
      not_mapped(unhanded_, unhanded);
    }
    if (!door) block = nullptr;
    granted = make_ref<Grant>(region, data, std::move(hold), shared, door, device_, block);
    target_.expose(granted);
    exposing.done();
    backlog = sending.backlog();
    // The peer may have been told, or not: the link, which then keeps the memory, is lost.
    starved = !has_memory_for([&] {
      sending.sender().region(region);
      sending.flush();
    });
    if (starved) sending.break_off();
  }
  if (starved) {
    link_.starve();
    return Status{Code::kResourceExhausted, "this process has no memory left for the region"};
  }
  link_.after_flush(backlog, false);
  // From now on it changes without a word to this end: who waits for a word of it has to look.
  if (shared && (door || device_)) {
    tell(shared->words());
    link_.runtime().word_waits().tell();
  }
  return region.id;
}

Result<Ref<Grant>> AccessPort::conceal(uint64_t region) {
  try {
    return end_grant(region);
  } catch (const std::bad_alloc&) {
    // It is still there, and ends with the link: until then nothing begins in any region, and
    // nobody reads or writes what had begun.
    const Shortage shortage;
    {
      Link::Sending sending(link_);
      if (target_.inbound() != 0) misplace();
      target_.close(Status(Code::kUnavailable, {}));
      sending.break_off();
    }
    link_.revoke();
    link_.starve();
    throw;
  }
}

Result<Ref<Grant>> AccessPort::end_grant(uint64_t region) {
  Ref<Grant> gone;
  bool backlog, dead, starved;
  {
    Link::Sending sending(link_);
    for (const Ref<Grant>& grant : leaving_)
      if (grant->region.id == region) return grant;
    make_room(leaving_);
    {
      // An answer that has begun is copied: meanwhile nothing that is received is stored there.
      const MutexLock places(place_mutex_);
      const bool inbound = target_.inbound() == region;
      gone = target_.conceal(region);
      if (!gone) return no_such_region(region);
      misplaced_ = misplaced_ || inbound;
    }
    if (!gone->left()) leaving_.push_back(gone);
    backlog = sending.backlog();
    dead = sending.broken();
    // From here on it is concealed, and without memory the link is lost.
    starved = !has_memory_for([&] {
      link_.send_mutex().held();
      sending.transport().withdraw(region);
      note_unhanded(sending.transport());
      if (dead) return;
      sending.sender().region_gone(region);
      sending.flush();
      if (device_) sending.transport().conceal({gone->region.address, gone->region.key});
    });
    if (starved) sending.break_off();
  }
  look_again();
  // With a transport that failed nobody can speak of keys any more.
  if (dead || starved) link_.revoke();
  if (starved)
    link_.starve();
  else
    link_.after_flush(backlog, false);
  return gone;
}

// From the return on nothing that is being received is stored where it was going to.
void AccessPort::misplace() {
  const MutexLock lock(place_mutex_);
  misplaced_ = true;
}

// ---- memory of the peer ----

std::optional<AccessPort::Remote> AccessPort::remote(uint64_t region) {
  const Link::Sending sending(link_);
  const wire::Region* const known = initiator_.region(region);
  if (!known) return std::nullopt;
  return Remote{known->length, known->rights};
}

Status AccessPort::why_not_mapped(uint64_t region) {
  if (mapped_.holds(region)) return {};
  if (Status why = mapped_.refused(region); !why.ok()) return why;
  if (!remote(region)) return no_such_region(region);
  if (device_) return {Code::kUnimplemented, "a device accesses the memory of this peer"};
  if (link_.profile().bulk != Bulk::kMap)
    return {Code::kUnimplemented,
            text({"memory is not mapped by the transport ", link_.transport()})};
  if (!maps_) return {Code::kUnimplemented, "the peer runs a version whose memory is not mapped"};
  return {
      Code::kFailedPrecondition,
      "memory is mapped that is made to be accessed, and of the arena what is for reading only"};
}

void AccessPort::not_mapped(uint64_t& counter, const Status& why) {
  ++counter;
  const bool told = !unmapped_why_.ok();
  unmapped_why_ = why;
  if (!told && why.code() != Code::kUnavailable)
    link_.runtime().audit().note(
        Incident::kBudgetMapping, link_.peer().name(),
        "memory is accessed by messages instead of being mapped: " + why.details());
}

void AccessPort::note_unhanded(const Transport& transport) {
  const auto [count, why] = transport.not_handed();
  if (std::exchange(late_, count) == count) return;
  uint64_t counted = 0;  // with the transport's
  not_mapped(counted, why);
}

Waited AccessPort::wait(Access& access, Nanos deadline) {
  return link_.wait(access.event(), [&] { return access.ended(); }, deadline);
}

bool AccessPort::take_immediate(uint32_t& value) {
  const Link::Sending sending(link_);
  const bool taken = target_.take_immediate(value);
  immediates_.store(target_.immediates(), std::memory_order_release);
  return taken;
}

Waited AccessPort::wait_immediate(Nanos deadline) {
  return link_.wait(
      arrival_, [this] { return immediates_.load(std::memory_order_acquire) != 0 || over(); },
      deadline);
}

bool AccessPort::over() const { return link_.closed(); }

// ---- frames ----

Status AccessPort::on_region(const wire::Region& region) {
  {
    // Before it is mapped, where a batch may use it at once.
    const Link::Sending sending(link_);
    if (Status status = initiator_.check_new(region); !status.ok()) return status;
  }
  Result<HandedOver> handed = HandedOver{};
  wire::Region mapped = region;
  if (maps_ && region.key == wire::kHandedOver) {
    handed = link_.device().take_over(region.id);
  } else if (maps_blocks_ && region.key == wire::kInArena) {
    handed = link_.device().take_over(region.id, region.address, region.length);
    mapped.address = 0;  // nothing else of the slab is mapped
  } else if (maps_ && region.key == wire::kNotHandedOver) {
    handed->why_not = {Code::kResourceExhausted,
                       "its owner could not hand it over, and its log says why"};
  }
  if (!handed) return handed.status();
  if (handed->memory)
    if (Status status = mapped_.add(mapped, std::move(handed->memory)); !status.ok()) return status;
  const Link::Sending sending(link_);
  if (!handed->why_not.ok()) {
    not_mapped(unmapped_, handed->why_not);
    mapped_.refuse(region.id, std::move(handed->why_not));
  }
  return initiator_.on_region(region);
}

Status AccessPort::on_region_gone(uint64_t region) {
  mapped_.remove(region);
  const Link::Sending sending(link_);
  unsettled_ = true;
  return initiator_.on_region_gone(region);
}

Result<std::byte*> AccessPort::on_operation(const wire::OperationFrame& operation,
                                            std::span<const std::byte> here) {
  if (device_)
    return wire::protocol_error(
        {"OPERATION frame: id is ", operation.id, ", on a link whose devices do the operations"});
  const Link::Sending sending(link_);
  return target_.on_operation(operation, here);
}

Result<std::byte*> AccessPort::on_outcome(const wire::OutcomeFrame& outcome,
                                          std::span<const std::byte> here) {
  if (device_)
    return wire::protocol_error(
        {"OUTCOME frame: id is ", outcome.id, ", on a link whose devices do the operations"});
  const Link::Sending sending(link_);
  return initiator_.on_outcome(outcome, here);
}

Status AccessPort::on_placed(wire::FrameType type) {
  unsettled_ = true;
  const Link::Sending sending(link_);
  {
    const MutexLock places(place_mutex_);
    misplaced_ = false;
  }
  if (type == wire::FrameType::kOutcome) return initiator_.outcome_arrived();
  target_.operation_arrived();
  if (const Grant* const changed = target_.changed()) {
    changed->changed();
    wrote_ = true;
  }
  return {};
}

void AccessPort::settle_now() {
  unsettled_ = false;
  EndedAccesses ended;
  {
    Link::Sending sending(link_);
    if (out_.pending()) sending.flush();
    note_unhanded(sending.transport());
    ended = take_ended();
    immediates_.store(target_.immediates(), std::memory_order_release);
  }
  finish(std::move(ended));
  arrival_.notify();
  if (std::exchange(wrote_, false)) link_.runtime().word_waits().tell();
}

void AccessPort::finish(EndedAccesses ended) {
  while (const Ref<Access> access = ended.pop()) {
    access->finish();
    link_.nudge(access->event());
  }
}

// ---- the device ----

Status AccessPort::start_due() {
  if (!due_.exchange(false)) return {};
  const Link::Sending sending(link_);
  while (const auto piece = initiator_.next()) {
    auto started = link_.device().start(*piece);
    if (!started) {
      const Code code = started.status().code();
      if (code == Code::kInternal || code == Code::kUnavailable) return started.status();
      // This end's device cannot do it; everything else is well.
      initiator_.taken(*piece);
      if (Status status = initiator_.completed({piece->id, started.status()}); !status.ok())
        return status;
      unsettled_ = true;
      continue;
    }
    if (!*started) {
      due_.store(true);
      break;
    }
    initiator_.taken(*piece);
  }
  return {};
}

Status AccessPort::on_completion(const Completion& completion) {
  unsettled_ = true;
  due_.store(true);
  const Link::Sending sending(link_);
  return initiator_.completed(completion);
}

Status AccessPort::take_immediates() {
  uint32_t values[64];
  while (const size_t count = link_.device().immediates(values)) {
    unsettled_ = true;
    const Link::Sending sending(link_);
    for (size_t i = 0; i < count; ++i)
      if (!target_.add_immediate(values[i]))
        return {Code::kResourceExhausted,
                text({"nobody takes the values of the peer's writes with immediate, of which ",
                      Target::kMaxImmediates, " wait"})};
  }
  return {};
}

// ---- counting ----

AccessCounters AccessPort::counters() const {
  AccessCounters counters;
  counters.mapped = mapped_.operations();
  counters.mapped_bytes = mapped_.bytes();
  (device_ ? counters.by_device : counters.by_frames) = initiator_.operations();
  (device_ ? counters.by_device_bytes : counters.by_frames_bytes) = initiator_.bytes();
  counters.served = target_.served();
  counters.served_bytes = target_.served_bytes();
  counters.exposed = target_.regions();
  counters.exposed_bytes = target_.bytes();
  counters.known = initiator_.regions();
  counters.known_mapped = mapped_.size();
  counters.unhanded = unhanded_;
  counters.unmapped = unmapped_;
  return counters;
}

// ---- ending ----

// Nobody waits for them from now on: what a peer reads there is not to be believed.
void AccessPort::end_leaving() {
  for (const Ref<Grant>& grant : leaving_) grant->end(Door::kLinkOver);
}

void AccessPort::on_closed(const Status& why) {
  std::vector<Ref<Grant>> grants;
  EndedAccesses ended;
  bool dead;
  {
    Link::Sending sending(link_);
    dead = sending.broken();
    if (target_.inbound() != 0 || initiator_.inbound()) misplace();
    // First: whoever is under way is told of the link's end, and not of the region's.
    target_.close({Code::kUnavailable, "the peer has closed the link"});
    end_leaving();
    const std::vector<uint64_t> ids = target_.ids();
    leaving_.reserve(leaving_.size() + ids.size());
    grants.reserve(ids.size());
    for (const uint64_t id : ids) {
      auto gone = target_.conceal(id, Door::kLinkOver);
      sending.transport().withdraw(id);
      if (!gone->left()) leaving_.push_back(gone);
      if (device_ && !dead) sending.transport().conceal({gone->region.address, gone->region.key});
      grants.push_back(std::move(gone));
    }
    initiator_.close(status_of_loss(why));
    ended = take_ended();
  }
  if (dead) link_.revoke();
  finish(std::move(ended));
  arrival_.notify();
  link_.nudge(arrival_);
}

void AccessPort::on_lost(const Status& why) {
  std::vector<Ref<Grant>> grants;
  EndedAccesses ended;
  {
    Link::Sending sending(link_);
    out_.drop();
    end_leaving();
    leaving_.reserve(leaving_.size() + target_.regions());
    grants = target_.drop();
    for (const Ref<Grant>& grant : grants) {
      sending.transport().withdraw(grant->region.id);
      if (!grant->left()) leaving_.push_back(grant);
    }
    initiator_.drop(status_of_loss(why));
    ended = take_ended();
  }
  due_.store(false);
  mapped_.clear();
  finish(std::move(ended));
  arrival_.notify();
}

}  // namespace tw

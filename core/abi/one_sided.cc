// SPDX-License-Identifier: Apache-2.0
// The C ABI: one-sided operations at either end of a link.
#include "abi/abi.h"
#include "access/port.h"

using namespace tw;
using namespace tw::abi;

struct tw_access final : RefCounted {
  explicit tw_access(Ref<AccessPort> on) : port(std::move(on)) {}
  const Ref<AccessPort> port;
  Ref<Access> access;
};

static_assert(TW_MAY_READ == kMayRead && TW_MAY_WRITE == kMayWrite && TW_MAY_UPDATE == kMayUpdate);
static_assert(TW_READ == static_cast<int>(wire::OperationKind::kRead));
static_assert(TW_WRITE == static_cast<int>(wire::OperationKind::kWrite));
static_assert(TW_WRITE_IMMEDIATE == static_cast<int>(wire::OperationKind::kWriteImmediate));
static_assert(TW_FETCH_ADD == static_cast<int>(wire::OperationKind::kFetchAdd));
static_assert(TW_COMPARE_SWAP == static_cast<int>(wire::OperationKind::kCompareSwap));

namespace {

Hold hold_of(const tw_owner* owner) {
  if (!owner || !owner->release) return nullptr;
  return lent_by(*owner);
}

}  // namespace

int tw_peer_expose(tw_peer* peer, void* data, size_t size, uint32_t rights, const tw_owner* owner,
                   uint64_t* region, tw_status* status) try {
  Hold hold = hold_of(owner);
  if (of(peer)->link().inherited()) return inherited(status, "link");
  auto exposed =
      of(peer)->access().expose(static_cast<std::byte*>(data), size, rights, std::move(hold));
  if (!exposed) return report(status, exposed.status());
  *region = *exposed;
  return TW_OK;
} catch (const std::bad_alloc&) {
  return no_memory(status);
}

int tw_peer_conceal(tw_peer* peer, uint64_t region, tw_status* status) try {
  if (of(peer)->link().inherited()) return inherited(status, "link");
  const Status concealed = of(peer)->access().conceal(region);
  return concealed.ok() ? TW_OK : report(status, concealed);
} catch (const std::bad_alloc&) {
  return no_memory(status);
}

int tw_peer_region(tw_peer* peer, uint64_t region, uint64_t* size, uint32_t* rights) try {
  if (of(peer)->link().inherited()) return 0;
  const auto known = of(peer)->access().remote(region);
  if (!known) return 0;
  *size = known->length;
  *rights = known->rights;
  return 1;
} catch (const std::bad_alloc&) {
  return none(0);
}

int tw_peer_access(tw_peer* peer, const tw_access_request* request, const tw_owner* owner,
                   tw_events* queue, uint64_t token, tw_access** out, tw_status* status) try {
  Hold hold = hold_of(owner);
  if (of(peer)->link().inherited()) return inherited(status, "link");
  if (request->kind < TW_READ || request->kind > TW_COMPARE_SWAP)
    return report(status, Code::kInvalidArgument, "there is no such kind of operation");
  AccessRequest wanted;
  wanted.kind = static_cast<wire::OperationKind>(request->kind);
  wanted.region = request->region;
  wanted.offset = request->offset;
  wanted.local = static_cast<std::byte*>(request->local);
  wanted.length = request->length;
  wanted.operand = request->operand;
  wanted.expected = request->expected;
  wanted.immediate = request->immediate;
  // All that takes memory comes before the operation begins.
  auto handle = make_ref<tw_access>(Ref<AccessPort>::share(&of(peer)->access()));
  std::function<void()> told;
  if (queue) {
    auto place = std::make_shared<EventQueue::Place>(Ref<EventQueue>::share(of(queue)));
    told = [place = std::move(place), token] { place->push(token); };
  }
  auto started = of(peer)->access().start(wanted, std::move(hold), std::move(told));
  if (!started) return report(status, started.status());
  handle->access = std::move(*started);
  *out = handle.leak();
  return TW_OK;
} catch (const std::bad_alloc&) {
  return no_memory(status);
}

int tw_access_wait(tw_access* access, const tw_wait* wait, tw_status* status) try {
  if (access->port->link().inherited()) return inherited(status, "operation");
  AccessPort& side = *access->port;
  const Ended ended =
      wait_through(wait_of(wait), [&](Nanos slice) { return side.wait(*access->access, slice); });
  if (ended != Ended::kDone) return report(status, ended, "the operation has not ended yet");
  while (!access->access->ended()) (void)side.wait(*access->access, kForever);
  const Status& how = access->access->status();
  return how.ok() ? TW_OK : report(status, how);
} catch (const std::bad_alloc&) {
  return no_memory(status);
}

int tw_access_ended(const tw_access* access) {
  return access->access->ended() || access->port->link().inherited();
}
void tw_access_release(tw_access* access) {
  if (!access->port->link().inherited()) access->release();
}

int tw_peer_immediate(tw_peer* peer, const tw_wait* wait, uint32_t* value, tw_status* status) try {
  if (of(peer)->link().inherited()) return inherited(status, "link");
  const Wait until = wait_of(wait);
  while (!of(peer)->access().take_immediate(*value)) {
    const Ended ended =
        wait_through(until, [&](Nanos slice) { return of(peer)->access().wait_immediate(slice); });
    if (ended != Ended::kDone) return report(status, ended, "no write with immediate came in time");
    if (of(peer)->access().take_immediate(*value)) return TW_OK;
    if (of(peer)->access().over()) return report(status, of(peer)->link().death());
  }
  return TW_OK;
} catch (const std::bad_alloc&) {
  return no_memory(status);
}

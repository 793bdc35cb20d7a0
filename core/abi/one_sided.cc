// SPDX-License-Identifier: Apache-2.0
// The C ABI: one-sided operations at either end of a link.
#include "abi/abi.h"
#include "access/blocking.h"

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

struct tw_batch final : RefCounted {
  tw_batch(Ref<AccessPort> on, Ref<AccessBatch> what)
      : port(std::move(on)), batch(std::move(what)) {}
  const Ref<AccessPort> port;
  const Ref<AccessBatch> batch;
};

namespace {

Hold hold_of(const tw_owner* owner) {
  if (!owner || !owner->release) return nullptr;
  return lent_by(*owner);
}

Status convert(const tw_access_request& request, AccessRequest& wanted) {
  if (request.kind < TW_READ || request.kind > TW_COMPARE_SWAP)
    return {Code::kInvalidArgument, "there is no such kind of operation"};
  wanted.kind = static_cast<wire::OperationKind>(request.kind);
  wanted.region = request.region;
  wanted.offset = request.offset;
  wanted.local = static_cast<std::byte*>(request.local);
  wanted.length = request.length;
  wanted.operand = request.operand;
  wanted.expected = request.expected;
  wanted.immediate = request.immediate;
  wanted.count = std::max<uint64_t>(request.count, 1);
  wanted.stride = request.stride;
  wanted.local_stride = request.local_stride;
  return {};
}

std::optional<Signal> signal_of(const tw_signal* signal) {
  if (!signal) return std::nullopt;
  return Signal{signal->region, signal->offset, signal->value, signal->add != 0};
}

// start() begins an operation, once all that takes memory is there.
template <class Start>
int begin(AccessPort& port, tw_access** out, tw_status* status, Start&& start) {
  auto handle = make_ref<tw_access>(Ref<AccessPort>::share(&port));
  auto started = start(port);
  if (!started) return report(status, started.status());
  handle->access = std::move(*started);
  *out = handle.leak();
  return TW_OK;
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

int tw_peer_conceal(tw_peer* peer, uint64_t region, const tw_wait* wait, tw_status* status) try {
  if (of(peer)->link().inherited()) return inherited(status, "link");
  return report(status, conceal(of(peer)->access(), region, wait_of(wait)));
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
  AccessRequest wanted;
  if (Status status_of_it = convert(*request, wanted); !status_of_it.ok())
    return report(status, status_of_it);
  return begin(of(peer)->access(), out, status, [&](AccessPort& port) {
    return port.start(wanted, std::move(hold), notice_of(queue, token));
  });
} catch (const std::bad_alloc&) {
  return no_memory(status);
}

int tw_peer_mapped(tw_peer* peer, uint64_t region) {
  return !of(peer)->link().inherited() && of(peer)->access().mapped(region);
}

int tw_peer_why_not_mapped(tw_peer* peer, uint64_t region, tw_status* status) try {
  if (of(peer)->link().inherited()) return inherited(status, "link");
  return report(status, of(peer)->access().why_not_mapped(region));
} catch (const std::bad_alloc&) {
  return no_memory(status);
}

int tw_peer_access_mapped(tw_peer* peer, const tw_access_request* request, const tw_signal* signal,
                          int* done, tw_status* status) try {
  *done = 0;
  if (of(peer)->link().inherited()) return inherited(status, "link");
  AccessRequest wanted;
  if (Status wrong = convert(*request, wanted); !wrong.ok()) return report(status, wrong);
  const auto outcome = of(peer)->access().do_mapped(wanted, signal_of(signal));
  if (!outcome) return report(status, outcome.status());
  *done = *outcome;
  return TW_OK;
} catch (const std::bad_alloc&) {
  return no_memory(status);
}

void tw_peer_fence(tw_peer* peer) {
  if (!of(peer)->link().inherited()) of(peer)->access().fence();
}

int tw_peer_flush(tw_peer* peer, tw_access** out, tw_status* status) try {
  if (of(peer)->link().inherited()) return inherited(status, "link");
  return begin(of(peer)->access(), out, status, [](AccessPort& port) { return port.flush(); });
} catch (const std::bad_alloc&) {
  return no_memory(status);
}

int tw_peer_prepare(tw_peer* peer, const tw_access_request* requests, size_t count,
                    const tw_signal* signal, tw_batch** out, tw_status* status) try {
  if (of(peer)->link().inherited()) return inherited(status, "link");
  std::vector<AccessRequest> wanted(count);
  for (size_t i = 0; i < count; ++i)
    if (Status wrong = convert(requests[i], wanted[i]); !wrong.ok()) return report(status, wrong);
  auto batch = of(peer)->access().prepare(wanted, signal_of(signal));
  if (!batch) return report(status, batch.status());
  *out = make_ref<tw_batch>(Ref<AccessPort>::share(&of(peer)->access()), std::move(*batch)).leak();
  return TW_OK;
} catch (const std::bad_alloc&) {
  return no_memory(status);
}

uint64_t tw_batch_size(const tw_batch* batch) { return batch->batch->bytes(); }
uint64_t tw_batch_runs(const tw_batch* batch) { return batch->batch->runs(); }
void tw_batch_release(tw_batch* batch) {
  if (!batch->port->link().inherited()) batch->release();
}

int tw_batch_start(tw_batch* batch, const uint64_t* value, const tw_owner* owner, tw_events* queue,
                   uint64_t token, tw_access** out, tw_status* status) try {
  Hold hold = hold_of(owner);
  if (batch->port->link().inherited()) return inherited(status, "link");
  return begin(*batch->port, out, status, [&](AccessPort& port) {
    return port.start(batch->batch, value ? std::optional<uint64_t>(*value) : std::nullopt,
                      std::move(hold), notice_of(queue, token));
  });
} catch (const std::bad_alloc&) {
  return no_memory(status);
}

int tw_peer_wait_word(tw_peer* peer, uint64_t region, uint64_t offset, uint64_t at_least,
                      const tw_wait* wait, uint64_t* value, tw_status* status) try {
  if (of(peer)->link().inherited()) return inherited(status, "link");
  return report(status,
                await_word(of(peer)->access(), region, offset, at_least, wait_of(wait), *value));
} catch (const std::bad_alloc&) {
  return no_memory(status);
}

int tw_peer_change_word(tw_peer* peer, uint64_t region, uint64_t offset, uint64_t value, int add,
                        uint64_t* before, tw_status* status) try {
  if (of(peer)->link().inherited()) return inherited(status, "link");
  const auto word = of(peer)->access().word(region, offset);
  if (!word) return report(status, word.status());
  *before = of(peer)->access().change(*word, value, add != 0);
  return TW_OK;
} catch (const std::bad_alloc&) {
  return no_memory(status);
}

int tw_shared_wait_any(const tw_shared_word* words, size_t count, const tw_wait* wait,
                       tw_status* status) try {
  const auto runtime = Runtime::get();
  if (!runtime) return report(status, runtime.status());
  std::vector<AwaitedWord> wanted;
  wanted.reserve(count);
  for (const tw_shared_word& word : std::span(words, count))
    wanted.push_back({of(word.memory), word.offset, word.at_least, word.nudges});
  return report(status, await_any(wanted, (*runtime)->settings().spin, wait_of(wait)));
} catch (const std::bad_alloc&) {
  return no_memory(status);
}

void tw_shared_nudge(tw_shared* shared) { nudge(*of(shared)); }
uint32_t tw_shared_nudges(const tw_shared* shared) { return nudges_of(*of(shared)); }

int tw_access_wait(tw_access* access, const tw_wait* wait, tw_status* status) try {
  if (access->port->link().inherited()) return inherited(status, "operation");
  return report(status, await_end(*access->port, *access->access, wait_of(wait)));
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
  return report(status, await_immediate(of(peer)->access(), wait_of(wait), *value));
} catch (const std::bad_alloc&) {
  return no_memory(status);
}

// SPDX-License-Identifier: Apache-2.0
// The C ABI: the process, its memory, and what comes ahead of a link.
#include <span>
#include <vector>

#include "abi/abi.h"
#include "base/shortage.h"
#include "engine/allocation.h"
#include "process/arena_allocator.h"
#include "process/copying.h"
#include "process/posting.h"
#include "wire/welcome.h"

using namespace tw;
using namespace tw::abi;

namespace {

// Only what was posted with tw_post() is handed back by tw_message_posted(): other memory to
// receive into has an owner, too, who knows nothing of that.
class PostedOwner final : public Owner {
 public:
  using Owner::Owner;
};

static_assert(TW_SMALLEST_POSTED == PostedBuffer::kSmallest);
static_assert(TW_CODE_OK == static_cast<int>(Code::kOk) &&
              TW_CODE_CANCELLED == static_cast<int>(Code::kCancelled) &&
              TW_CODE_UNKNOWN == static_cast<int>(Code::kUnknown) &&
              TW_CODE_INVALID_ARGUMENT == static_cast<int>(Code::kInvalidArgument) &&
              TW_CODE_DEADLINE_EXCEEDED == static_cast<int>(Code::kDeadlineExceeded) &&
              TW_CODE_NOT_FOUND == static_cast<int>(Code::kNotFound) &&
              TW_CODE_ALREADY_EXISTS == static_cast<int>(Code::kAlreadyExists) &&
              TW_CODE_PERMISSION_DENIED == static_cast<int>(Code::kPermissionDenied) &&
              TW_CODE_RESOURCE_EXHAUSTED == static_cast<int>(Code::kResourceExhausted) &&
              TW_CODE_FAILED_PRECONDITION == static_cast<int>(Code::kFailedPrecondition) &&
              TW_CODE_ABORTED == static_cast<int>(Code::kAborted) &&
              TW_CODE_OUT_OF_RANGE == static_cast<int>(Code::kOutOfRange) &&
              TW_CODE_UNIMPLEMENTED == static_cast<int>(Code::kUnimplemented) &&
              TW_CODE_INTERNAL == static_cast<int>(Code::kInternal) &&
              TW_CODE_UNAVAILABLE == static_cast<int>(Code::kUnavailable) &&
              TW_CODE_DATA_LOSS == static_cast<int>(Code::kDataLoss) &&
              TW_CODE_UNAUTHENTICATED == static_cast<int>(Code::kUnauthenticated));
static_assert(TW_WELCOME_ROOM ==
              wire::kWelcomeFixedSize + wire::kMaxAddresses * (2 + wire::kMaxAddressLength));

}  // namespace

const char* tw_version() { return TENSORWIRE_VERSION; }

int tw_trace(size_t events, tw_status* status) try {
  auto runtime = Runtime::get();
  if (!runtime) return report(status, runtime.status());
  (*runtime)->trace(events);
  return TW_OK;
} catch (const std::bad_alloc&) {
  return no_memory(status);
}

int tw_incidents(tw_visit_incident visit, void* context, tw_status* status) try {
  auto runtime = Runtime::get();
  if (!runtime) return report(status, runtime.status());
  for (size_t i = 0; i < kIncidents; ++i) {
    const auto incident = static_cast<Incident>(i);
    const IncidentName name = name_of(incident);
    visit(context, name.kind, name.reason, (*runtime)->audit().count(incident));
  }
  return TW_OK;
} catch (const std::bad_alloc&) {
  return no_memory(status);
}

int tw_audit_next(const tw_wait* wait, tw_audit_line* out, tw_status* status) try {
  auto runtime = Runtime::get();
  if (!runtime) return report(status, runtime.status());
  Audit::Line line;
  const Ended next = await_line((*runtime)->audit(), line, wait_of(wait));
  if (next == Ended::kInterrupted) return TW_INTERRUPTED;
  if (next == Ended::kTimeout) return report(status, Code::kDeadlineExceeded, "nothing to tell");
  if (next == Ended::kClosed) return report(status, Code::kUnavailable, "the audit is closed");
  const IncidentName name = name_of(line.incident);
  out->kind = name.kind;
  out->reason = name.reason;
  out->more = line.more;
  copy_text(out->peer, line.peer);
  copy_text(out->details, line.what);
  return TW_OK;
} catch (const std::bad_alloc&) {
  return no_memory(status);
}

void tw_audit_close() try {
  if (auto runtime = Runtime::get()) (*runtime)->audit().close();
} catch (const std::bad_alloc&) {
  const Shortage shortage;  // there was no runtime, and nobody waits for its audit
}

void tw_shut_down() { Runtime::shut_down(); }

tw_quota* tw_quota_create(size_t bytes) try {
  return reinterpret_cast<tw_quota*>(make_ref<Quota>(bytes).leak());
} catch (const std::bad_alloc&) {
  return none<tw_quota*>();
}
size_t tw_quota_leased(const tw_quota* quota) { return of(quota)->leased(); }
uint64_t tw_quota_copied(const tw_quota* quota) { return of(quota)->copied(); }
void tw_quota_release(tw_quota* quota) {
  if (quota) of(quota)->release();
}

int tw_allocate(tw_quota* quota, size_t size, const tw_wait* wait, tw_buffer** out,
                tw_status* status) try {
  auto runtime = Runtime::get();
  if (!runtime) return report(status, runtime.status());
  auto block = allocate((*runtime)->arena(), size, Ref<Quota>::share(of(quota)), wait_of(wait));
  if (!block) return report(status, block.status());
  if (!*block) return TW_INTERRUPTED;
  auto buffer = make_ref<tw_buffer>();
  buffer->data = (*block)->data();
  buffer->size = size;
  buffer->readonly = false;
  buffer->block = std::move(*block);
  *out = buffer.leak();
  return TW_OK;
} catch (const std::bad_alloc&) {
  return no_memory(status);
}

int tw_publish(const void* data, size_t size) try {
  auto runtime = Runtime::get();
  if (!runtime) return 0;
  const Ref<Block> block = (*runtime)->arena().find(data, size);
  if (!block) return 0;
  block->publish();
  return 1;
} catch (const std::bad_alloc&) {
  return none(0);
}

int tw_published(const void* data, size_t size) try {
  auto runtime = Runtime::get();
  if (!runtime) return 0;
  const Ref<Block> block = (*runtime)->arena().find(data, size);
  return block && block->published();
} catch (const std::bad_alloc&) {
  return none(0);
}

void* tw_arena_allocate(size_t size) try {
  auto runtime = Runtime::get();
  return runtime ? arena_allocate(**runtime, size) : nullptr;
} catch (const std::bad_alloc&) {
  return none<void*>();
}

int tw_arena_holds(const void* data, size_t size) try {
  auto runtime = Runtime::get();
  return runtime && (*runtime)->arena().find(data, size);
} catch (const std::bad_alloc&) {
  return none(0);
}

int tw_arena_free(void* data) try {
  auto runtime = Runtime::get();
  return runtime && arena_free(**runtime, data);
} catch (const std::bad_alloc&) {
  return none(0);  // there was no runtime, hence no block
}

int tw_shared_create(size_t size, tw_shared** out, tw_status* status) try {
  auto runtime = Runtime::get();
  if (!runtime) return report(status, runtime.status());
  auto memory = (*runtime)->shared_memories().make(size);
  if (!memory) return report(status, memory.status());
  *out = reinterpret_cast<tw_shared*>(memory->leak());
  return TW_OK;
} catch (const std::bad_alloc&) {
  return no_memory(status);
}

void* tw_shared_data(const tw_shared* shared) { return of(shared)->data(); }
size_t tw_shared_size(const tw_shared* shared) { return of(shared)->size(); }
void tw_shared_release(tw_shared* shared) { of(shared)->release(); }

void tw_copy(void* to, const void* from, size_t size) {
  copy_bytes(static_cast<std::byte*>(to), static_cast<const std::byte*>(from), size);
}

void tw_copy_all(const tw_copying* copies, size_t count) {
  std::vector<Copier::Copy> found;
  const bool known = has_memory_for([&] {
    found.reserve(count);
    for (const tw_copying& copy : std::span(copies, count))
      found.push_back(
          {static_cast<std::byte*>(copy.to), static_cast<const std::byte*>(copy.from), copy.size});
  });
  if (known) return copy_all(found);
  for (const tw_copying& copy : std::span(copies, count)) tw_copy(copy.to, copy.from, copy.size);
}

void tw_trim() {
  if (Runtime* const runtime = Runtime::present()) runtime->trim(kForever);
}

void* tw_buffer_data(const tw_buffer* buffer) { return buffer->data; }
size_t tw_buffer_size(const tw_buffer* buffer) { return buffer->size; }
int tw_buffer_readonly(const tw_buffer* buffer) {
  return buffer->readonly || (buffer->block && buffer->block->published());
}
int tw_buffer_leased(const tw_buffer* buffer) { return buffer->view != nullptr; }
void tw_buffer_expose(tw_buffer* buffer) {
  if (buffer->view) buffer->view->expose();
}
int tw_buffer_separate(tw_buffer* buffer, tw_status* status) try {
  if (!buffer->view) return TW_OK;
  if (Status separated = buffer->view->separate(); !separated.ok())
    return report(status, separated);
  buffer->data = const_cast<std::byte*>(buffer->view->bytes().data());
  return TW_OK;
} catch (const std::bad_alloc&) {
  return no_memory(status);
}
void tw_buffer_release(tw_buffer* buffer) { buffer->release(); }

size_t tw_message_count(const tw_message* message) { return message->message.segments.size(); }
size_t tw_message_size(const tw_message* message) { return message->message.payload_bytes; }
tw_segment tw_message_segment(const tw_message* message, size_t index) {
  const InSegment& segment = message->message.segments[index];
  return {segment.data, segment.size};
}
void tw_message_copy(const tw_message* message, void* to) {
  copy_payload(static_cast<std::byte*>(to), message->message);
}
int tw_message_leased(const tw_message* message) { return message->message.leased(); }

void tw_post(void* data, size_t size, const tw_owner* owner) try {
  auto buffer =
      make_ref<PostedBuffer>(static_cast<std::byte*>(data), size, lent_by<PostedOwner>(*owner));
  if (auto runtime = Runtime::get()) post(**runtime, std::move(buffer));
} catch (const std::bad_alloc&) {
  const Shortage shortage;  // the owner has been told, or is by now
}
void* tw_message_posted(tw_message* message) {
  const PostedBuffer* const posted = posted_for(message->message);
  RefCounted* const owner = posted ? posted->owner().get() : nullptr;
  if (!owner || typeid(*owner) != typeid(PostedOwner)) return nullptr;
  return static_cast<PostedOwner*>(owner)->disown();
}
tw_buffer* tw_message_buffer(tw_message* message, size_t index) try {
  const InSegment& segment = message->message.segments[index];
  auto buffer = make_ref<tw_buffer>();
  buffer->data = const_cast<std::byte*>(segment.data);
  buffer->size = segment.size;
  buffer->view = segment.view();
  buffer->hold = segment.hold;
  return buffer.leak();
} catch (const std::bad_alloc&) {
  return none<tw_buffer*>();
}
void tw_message_release(tw_message* message) { message->release(); }

void tw_metadata_each(const tw_metadata* metadata, tw_visit_pair visit, void* context) {
  if (!metadata) return;
  for (const wire::MetadataEntry entry : metadata->metadata.view) {
    const tw_pair pair{entry.key.data(), entry.key.size(), entry.value.data(), entry.value.size()};
    visit(context, &pair);
  }
}
void tw_metadata_release(tw_metadata* metadata) { metadata->release(); }

int tw_hello(uint8_t out[TW_HELLO_SIZE], tw_status* status) try {
  auto runtime = Runtime::get();
  if (!runtime) return report(status, runtime.status());
  std::array<std::byte, wire::kHelloSize> bytes;
  wire::encode_hello(bytes, (*runtime)->hello());
  std::memcpy(out, bytes.data(), bytes.size());
  return TW_OK;
} catch (const std::bad_alloc&) {
  return no_memory(status);
}

int tw_parse_hello(const void* hello, size_t size, tw_peer_facts* out, tw_status* status) try {
  auto runtime = Runtime::get();
  if (!runtime) return report(status, runtime.status());
  auto theirs = wire::decode_hello({static_cast<const std::byte*>(hello), size});
  if (!theirs) return report(status, theirs.status());
  const wire::Hello ours = (*runtime)->hello();
  auto version = meet::agreed_version(ours, *theirs);
  if (!version) return report(status, version.status());
  *out = {*version, wire::same_host(ours, *theirs), wire::same_user(ours, *theirs),
          static_cast<int32_t>(theirs->pid)};
  return TW_OK;
} catch (const std::bad_alloc&) {
  return no_memory(status);
}

int tw_encode_welcome(const tw_welcome* welcome, const char* const* addresses, size_t count,
                      void* out, size_t* size, tw_status* status) try {
  wire::Welcome from;
  auto hello = wire::decode_hello(std::as_bytes(std::span(welcome->hello)));
  if (!hello) return report(status, hello.status());
  from.hello = *hello;
  std::ranges::copy(welcome->instance, from.instance.begin());
  std::ranges::copy(welcome->session, from.session.begin());
  std::ranges::copy(welcome->secret, from.secret.begin());
  from.addresses.assign(addresses, addresses + count);
  if (Status good = wire::check_addresses(from.addresses); !good.ok()) return report(status, good);
  wire::encode_welcome(static_cast<std::byte*>(out), from);
  *size = wire::welcome_size(from);
  return TW_OK;
} catch (const std::bad_alloc&) {
  return no_memory(status);
}

int tw_decode_welcome(const void* bytes, size_t size, tw_welcome* out, tw_visit_address visit,
                      void* context, tw_status* status) try {
  auto welcome = wire::decode_welcome({static_cast<const std::byte*>(bytes), size});
  if (!welcome) return report(status, welcome.status());
  wire::encode_hello(std::as_writable_bytes(std::span(out->hello)), welcome->hello);
  std::ranges::copy(welcome->instance, out->instance);
  std::ranges::copy(welcome->session, out->session);
  std::ranges::copy(welcome->secret, out->secret);
  for (const std::string_view address : welcome->addresses)
    visit(context, std::string(address).c_str());
  return TW_OK;
} catch (const std::bad_alloc&) {
  return no_memory(status);
}

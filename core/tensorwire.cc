// The C ABI: handles over the runtime's objects, and waits that return to the caller for signals.
#include "tensorwire.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "call/client.h"
#include "call/server.h"
#include "link/host_facts.h"

using namespace tw;

// Handles are the objects themselves, with these in between where the runtime has values.
struct tw_buffer final : RefCounted {
  std::byte* data = nullptr;
  size_t size = 0;
  bool readonly = true;
  LeasedView* view = nullptr;
  Ref<Block> block;  // of this process's arena
  Hold hold;         // received
};

struct tw_message final : RefCounted {
  InMessage message;
};

struct tw_metadata final : RefCounted {
  ReceivedMetadata metadata;
};

namespace {

// A wait returns to the caller at least this often, in case a signal came just before it began.
constexpr Nanos kSlice = 250 * kMillisecond;
constexpr size_t kFewSegments = 8;

int report(tw_status* status, Code code, std::string_view details) {
  if (status) {
    status->code = static_cast<int32_t>(code);
    const size_t size = std::min(details.size(), sizeof status->details - 1);
    std::memcpy(status->details, details.data(), size);
    status->details[size] = 0;
  }
  return static_cast<int>(code);
}

int report(tw_status* status, const Status& from) {
  return report(status, from.code(), from.details());
}

int inherited(tw_status* status, const char* what) {
  return report(status, Code::kFailedPrecondition,
                std::string("this ") + what +
                    " was made before fork() and belongs to the parent process: make a new one");
}

Nanos deadline_of(const tw_wait* wait) {
  return !wait || wait->timeout_ns < 0 ? kForever : deadline_after(wait->timeout_ns);
}

enum class Ended : uint8_t { kDone, kTimeout, kInterrupted };

// Repeats operation(deadline), which returns a Waited, through signals.
template <class Operation>
Ended wait_through(const tw_wait* wait, Nanos deadline, Operation&& operation) {
  const bool interruptible = wait && wait->interrupted;
  for (;;) {
    const Nanos slice = interruptible ? std::min(deadline, now() + kSlice) : deadline;
    const Waited waited = operation(slice);
    if (waited == Waited::kDone) return Ended::kDone;
    if (interruptible && wait->interrupted(wait->context) != 0) return Ended::kInterrupted;
    if (waited == Waited::kTimeout && slice == deadline) return Ended::kTimeout;
  }
}

// The segments of a payload, without an allocation for the usual few.
class Outbox {
 public:
  explicit Outbox(tw_payload payload) : count_(payload.count) {
    if (count_ > kFewSegments) many_.resize(count_);
    for (size_t i = 0; i < count_; ++i) {
      segments()[i].data = static_cast<const std::byte*>(payload.segments[i].data);
      segments()[i].size = payload.segments[i].size;
    }
  }
  std::span<OutSegment> segments() { return {count_ > kFewSegments ? many_.data() : few_, count_}; }
  size_t bytes() {
    size_t sum = 0;
    for (const OutSegment& segment : segments()) sum += segment.size;
    return sum;
  }

 private:
  const size_t count_;
  OutSegment few_[kFewSegments];
  std::vector<OutSegment> many_;
};

class Pairs {
 public:
  explicit Pairs(tw_pairs pairs) {
    entries_.reserve(pairs.count);
    for (size_t i = 0; i < pairs.count; ++i)
      entries_.push_back({{pairs.pairs[i].key, pairs.pairs[i].key_size},
                          {pairs.pairs[i].value, pairs.pairs[i].value_size}});
  }
  std::span<const wire::MetadataEntry> entries() const { return entries_; }

 private:
  std::vector<wire::MetadataEntry> entries_;
};

Call* of(tw_call* call) { return reinterpret_cast<Call*>(call); }
const Call* of(const tw_call* call) { return reinterpret_cast<const Call*>(call); }
ClientCall* client(tw_call* call) { return static_cast<ClientCall*>(of(call)); }
ServerCall* server(tw_call* call) { return static_cast<ServerCall*>(of(call)); }
tw_call* handle(Ref<Call> call) { return reinterpret_cast<tw_call*>(call.leak()); }
ClientLink* of(tw_link* link) { return reinterpret_cast<ClientLink*>(link); }
const ClientLink* of(const tw_link* link) { return reinterpret_cast<const ClientLink*>(link); }
Server* of(tw_server* server) { return reinterpret_cast<Server*>(server); }
const Server* of(const tw_server* server) { return reinterpret_cast<const Server*>(server); }
EventQueue* of(tw_events* queue) { return reinterpret_cast<EventQueue*>(queue); }

tw_metadata* handle(ReceivedMetadata metadata) {
  if (metadata.view.empty()) return nullptr;
  auto out = make_ref<tw_metadata>();
  out->metadata = std::move(metadata);
  return out.leak();
}

tw_message* handle(InMessage message) {
  auto out = make_ref<tw_message>();
  out->message = std::move(message);
  return out.leak();
}

// Makes the caller's memory its own again, whatever became of the call.
void let_go(Call& call, const Ref<Outgoing>& outgoing) {
  if (outgoing && outgoing->borrowed()) call.withdraw(outgoing);
}

// Waits until the caller's memory has been sent. INTERRUPTED and timeouts are the caller's to deal
// with.
Ended await_sent(Call& call, const Ref<Outgoing>& outgoing, const tw_wait* wait, Nanos deadline) {
  if (!outgoing) return Ended::kDone;
  const Ended ended =
      wait_through(wait, deadline, [&](Nanos slice) { return call.wait_sent(*outgoing, slice); });
  let_go(call, outgoing);
  return ended;
}

// Brings the payload to where the transport can lend it. A result that is not 0 ends the operation.
int stage(Call& call, Outbox& outbox, const tw_wait* wait, Nanos deadline, tw_status* status) {
  Status why;
  const Ended ended = wait_through(wait, deadline, [&](Nanos slice) {
    const Waited waited = call.stage(outbox.segments(), slice, why);
    // Other failures than a full arena will not mend.
    if (waited == Waited::kTimeout && why.code() != Code::kResourceExhausted) return Waited::kDone;
    return waited;
  });
  if (ended == Ended::kInterrupted) return TW_INTERRUPTED;
  return why.ok() ? TW_OK : report(status, why);
}

template <class Set>
void visit_number(tw_visit_fact visit, void* context, const char* name, Set number) {
  visit(context, name, std::to_string(number).c_str());
}

void visit_stats(const Link& link, const LinkStats& stats, tw_visit_fact visit, void* context) {
  visit(context, "transport", link.transport());
  visit(context, "peer", link.peer().address.c_str());
  const auto put = [&](const char* name, uint64_t value) {
    visit_number(visit, context, name, value);
  };
  put("messages_sent", stats.sent.messages);
  put("bytes_sent", stats.sent.bytes);
  put("segments_sent_inline", stats.sent.inline_segments);
  put("frames_sent_eager", stats.sent.eager_frames);
  put("segments_sent_pushed", stats.sent.pushed_segments);
  put("chunks_sent", stats.sent.pushed_chunks);
  put("segments_sent_mapped", stats.sent.mapped_segments);
  put("segments_sent_read", stats.sent.read_segments);
  put("messages_received", stats.received.messages);
  put("bytes_received", stats.received.bytes);
  put("segments_received_inline", stats.received.inline_segments);
  put("segments_received_eager", stats.received.eager_segments);
  put("segments_received_pushed", stats.received.pushed_segments);
  put("chunks_received", stats.received.pushed_chunks);
  put("segments_received_mapped", stats.received.mapped_segments);
  put("messages_refused", stats.received.refused);
  put("copies", stats.copies);
  put("copied_bytes", stats.copied_bytes);
  put("leased_bytes", stats.leased_bytes);
  put("leases", stats.leases);
  put("views", stats.views);
  put("spins", stats.spins);
  put("sleeps", stats.sleeps);
  put("background_wakes", stats.background_wakes);
  for (size_t i = 0; i < stats.classes.size(); ++i) {
    const std::string upto =
        i < LinkStats::kClassLimits.size() ? std::to_string(LinkStats::kClassLimits[i]) : "inf";
    put(("class." + upto + ".messages_sent").c_str(), stats.classes[i].sent);
    put(("class." + upto + ".bytes_sent").c_str(), stats.classes[i].sent_bytes);
    put(("class." + upto + ".messages_received").c_str(), stats.classes[i].received);
    put(("class." + upto + ".bytes_received").c_str(), stats.classes[i].received_bytes);
  }
}

}  // namespace

// -------------------------------------------------------------------------------------------
// process

const char* tw_version() { return TENSORWIRE_VERSION; }

int tw_settings(tw_visit_fact visit, void* context, tw_status* status) {
  auto runtime = Runtime::get();
  if (!runtime) return report(status, runtime.status());
  const Settings& settings = (*runtime)->settings();
  visit_number(visit, context, "coalesce_bytes", settings.coalesce_bytes);
  visit_number(visit, context, "eager_bytes", settings.eager_bytes);
  visit_number(visit, context, "chunk_bytes", settings.chunk_bytes);
  visit_number(visit, context, "buffer_bytes", settings.buffer_bytes);
  visit_number(visit, context, "pool_bytes", settings.pool_bytes);
  visit_number(visit, context, "max_message_bytes", settings.max_message_bytes);
  visit_number(visit, context, "stream_window_bytes", settings.stream_window_bytes);
  visit_number(visit, context, "ring_bytes", settings.ring_bytes);
  visit_number(visit, context, "spin_us", settings.spin / kMicrosecond);
  visit(context, "tcp_congestion", settings.tcp_congestion.c_str());
  return TW_OK;
}

void tw_host(tw_visit_fact visit, void* context) {
  auto runtime = Runtime::get();
  const Settings settings = runtime ? (*runtime)->settings() : Settings{};
  for (const auto& [name, value] : link::host_facts(settings))
    visit(context, name.c_str(), value.c_str());
}

void tw_shut_down() { Runtime::shut_down(); }

// --------------------------------------------------------------------------------------------
// memory

int tw_allocate(size_t size, const tw_wait* wait, tw_buffer** out, tw_status* status) {
  auto runtime = Runtime::get();
  if (!runtime) return report(status, runtime.status());
  Result<Ref<Block>> block = Status{};
  const Ended ended = wait_through(wait, deadline_of(wait), [&](Nanos slice) {
    block = (*runtime)->arena().allocate(size, slice);
    if (block || block.status().code() != Code::kResourceExhausted) return Waited::kDone;
    return Waited::kTimeout;
  });
  if (ended == Ended::kInterrupted) return TW_INTERRUPTED;
  if (!block) return report(status, block.status());
  auto buffer = make_ref<tw_buffer>();
  buffer->data = (*block)->data();
  buffer->size = size;
  buffer->readonly = false;
  buffer->block = std::move(*block);
  *out = buffer.leak();
  return TW_OK;
}

int tw_publish(const void* data, size_t size) {
  auto runtime = Runtime::get();
  if (!runtime) return 0;
  const Ref<Block> block = (*runtime)->arena().find(data, size);
  if (!block) return 0;
  block->publish();
  return 1;
}

int tw_published(const void* data, size_t size) {
  auto runtime = Runtime::get();
  if (!runtime) return 0;
  const Ref<Block> block = (*runtime)->arena().find(data, size);
  return block && block->published();
}

void tw_arena(tw_visit_fact visit, void* context) {
  auto runtime = Runtime::get();
  if (!runtime) return;
  const ArenaStats arena = (*runtime)->arena().stats();
  visit_number(visit, context, "capacity", arena.capacity);
  visit_number(visit, context, "reserved", arena.reserved);
  visit_number(visit, context, "resident", arena.resident);
  visit_number(visit, context, "used", arena.used);
  visit_number(visit, context, "leased", arena.leased);
  visit_number(visit, context, "high_water", arena.high_water);
  visit_number(visit, context, "slabs", arena.slabs);
  visit_number(visit, context, "blocks", arena.blocks);
  const PoolStats pool = (*runtime)->pool().stats();
  visit_number(visit, context, "pool_used", pool.used);
  visit_number(visit, context, "pool_idle", pool.idle);
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
void tw_buffer_retain(tw_buffer* buffer) { buffer->retain(); }
void tw_buffer_release(tw_buffer* buffer) { buffer->release(); }

size_t tw_message_count(const tw_message* message) { return message->message.segments.size(); }
size_t tw_message_size(const tw_message* message) { return message->message.payload_bytes; }
tw_segment tw_message_segment(const tw_message* message, size_t index) {
  const InSegment& segment = message->message.segments[index];
  return {segment.data, segment.size};
}
tw_buffer* tw_message_buffer(tw_message* message, size_t index) {
  const InSegment& segment = message->message.segments[index];
  auto buffer = make_ref<tw_buffer>();
  buffer->data = const_cast<std::byte*>(segment.data);
  buffer->size = segment.size;
  buffer->view = segment.view;
  buffer->hold = segment.hold;
  return buffer.leak();
}
void tw_message_release(tw_message* message) { message->release(); }

size_t tw_metadata_count(const tw_metadata* metadata) {
  return metadata ? metadata->metadata.view.size() : 0;
}
void tw_metadata_each(const tw_metadata* metadata, tw_visit_pair visit, void* context) {
  if (!metadata) return;
  for (const wire::MetadataEntry entry : metadata->metadata.view) {
    const tw_pair pair{entry.key.data(), entry.key.size(), entry.value.data(), entry.value.size()};
    visit(context, &pair);
  }
}
void tw_metadata_release(tw_metadata* metadata) { metadata->release(); }

// -----------------------------------------------------------------------------------------
// bootstrap

int tw_hello(uint8_t out[TW_HELLO_SIZE], tw_status* status) {
  auto runtime = Runtime::get();
  if (!runtime) return report(status, runtime.status());
  std::array<std::byte, wire::kHelloSize> bytes;
  wire::encode_hello(bytes, (*runtime)->hello());
  std::memcpy(out, bytes.data(), bytes.size());
  return TW_OK;
}

int tw_parse_hello(const void* hello, size_t size, tw_peer_facts* out, tw_status* status) {
  auto runtime = Runtime::get();
  if (!runtime) return report(status, runtime.status());
  auto theirs = wire::decode_hello({static_cast<const std::byte*>(hello), size});
  if (!theirs) return report(status, theirs.status());
  const wire::Hello ours = (*runtime)->hello();
  auto version = wire::common_version(ours, *theirs);
  if (!version) return report(status, version.status());
  if (Status features = wire::check_features(ours, *theirs); !features.ok())
    return report(status, features);
  *out = {*version, wire::same_host(ours, *theirs), wire::same_user(ours, *theirs),
          static_cast<int32_t>(theirs->pid)};
  return TW_OK;
}

// --------------------------------------------------------------------------------------------
// client

int tw_connect(const tw_invitation* invitation, int64_t timeout_ns, tw_link** out,
               tw_status* status) {
  auto runtime = Runtime::get();
  if (!runtime) return report(status, runtime.status());
  link::Invitation in;
  in.address = invitation->address;
  std::memcpy(in.session.data(), invitation->session, in.session.size());
  in.secret = link::Secret(
      std::span<const uint8_t, link::Secret::kSize>(invitation->secret, link::Secret::kSize));
  std::memcpy(in.instance.data(), invitation->instance, in.instance.size());
  auto hello = wire::decode_hello(
      {static_cast<const std::byte*>(invitation->hello), invitation->hello_size});
  if (!hello) return report(status, hello.status());
  in.hello = *hello;
  auto connected = link::connect(**runtime, in, deadline_after(timeout_ns));
  if (!connected) return report(status, connected.status());
  const uint64_t limit = invitation->max_message < 0
                             ? (*runtime)->settings().max_message_bytes
                             : static_cast<uint64_t>(invitation->max_message);
  auto link = ClientLink::create(**runtime, std::move(connected->transport),
                                 std::move(connected->peer), limit);
  if (!link) return report(status, link.status());
  *out = reinterpret_cast<tw_link*>(link->leak());
  return TW_OK;
}

const char* tw_link_transport(const tw_link* link) { return of(link)->transport(); }
const char* tw_link_peer(const tw_link* link) { return of(link)->peer().address.c_str(); }
int tw_link_alive(const tw_link* link) { return of(link)->alive() && !of(link)->inherited(); }
void tw_link_death(const tw_link* link, tw_status* why) {
  if (of(link)->inherited())
    inherited(why, "link");
  else
    report(why, of(link)->death());
}
void tw_link_stats(tw_link* link, tw_visit_fact visit, void* context) {
  visit_stats(*of(link), of(link)->stats(), visit, context);
}
void tw_link_close(tw_link* link) {
  if (!of(link)->inherited()) of(link)->close({Code::kCancelled, "the channel was closed"});
}
void tw_link_release(tw_link* link) {
  if (of(link)->inherited()) return;
  of(link)->abandon();
  of(link)->release();
}

namespace {

// Makes the call and sends its beginning.
int start(ClientLink& link, std::string_view method, tw_pairs metadata, tw_payload payload,
          bool end, bool driving, const tw_wait* wait, Nanos deadline, Ref<ClientCall>& call,
          Ref<Outgoing>& outgoing, tw_status* status) {
  if (link.inherited()) return inherited(status, "channel");
  auto made = link.new_call(deadline);
  if (!made) return report(status, made.status());
  call = std::move(*made);
  const bool has_payload = payload.segments != nullptr;
  Outbox outbox(payload);
  int result = has_payload ? stage(*call, outbox, wait, deadline, status) : TW_OK;
  if (result == TW_OK) {
    auto begun = call->begin(method, Pairs(metadata).entries(), outbox.segments(), has_payload, end,
                             driving);
    if (begun)
      outgoing = std::move(*begun);
    else
      result = report(status, begun.status());
  }
  if (result != TW_OK)
    call->cancel(result == TW_INTERRUPTED ? Code::kCancelled : static_cast<Code>(result), "");
  return result;
}

}  // namespace

int tw_link_start(tw_link* link, const char* method, size_t method_size, tw_pairs metadata,
                  tw_payload payload, int end, const tw_wait* wait, tw_call** out,
                  tw_status* status) {
  const Nanos deadline = deadline_of(wait);
  Ref<ClientCall> call;
  Ref<Outgoing> outgoing;
  const int result = start(*of(link), {method, method_size}, metadata, payload, end != 0, false,
                           wait, deadline, call, outgoing, status);
  if (result != TW_OK) return result;
  switch (await_sent(*call, outgoing, wait, deadline)) {
    case Ended::kDone:
      break;
    case Ended::kTimeout:
      call->cancel(Code::kDeadlineExceeded, "Deadline Exceeded");
      break;
    case Ended::kInterrupted:
      call->cancel(Code::kCancelled, "interrupted");
      return TW_INTERRUPTED;
  }
  if (Status watched = call->watch_deadline(); !watched.ok()) {
    call->cancel(watched.code(), watched.details());
    return report(status, watched);
  }
  *out = handle(std::move(call));
  return TW_OK;
}

int tw_link_unary(tw_link* link, const char* method, size_t method_size, tw_pairs metadata,
                  tw_payload payload, const tw_wait* wait, tw_reply* reply, tw_status* status) {
  const Nanos deadline = deadline_of(wait);
  Ref<ClientCall> call;
  Ref<Outgoing> outgoing;
  const int result = start(*of(link), {method, method_size}, metadata, payload, true, true, wait,
                           deadline, call, outgoing, status);
  if (result != TW_OK) return result;
  const Ended ended =
      wait_through(wait, deadline, [&](Nanos slice) { return call->wait_ended(slice); });
  if (ended == Ended::kInterrupted) call->cancel(Code::kCancelled, "interrupted");
  if (ended == Ended::kTimeout) call->cancel(Code::kDeadlineExceeded, "Deadline Exceeded");
  let_go(*call, outgoing);
  if (ended == Ended::kInterrupted) return TW_INTERRUPTED;
  // Another thread may still be writing the outcome down.
  while (!call->ended()) (void)call->wait_ended(kForever);
  InMessage message;
  if (call->take(message)) reply->message = handle(std::move(message));
  reply->initial = handle(call->initial());
  const Outcome& outcome = call->outcome();
  reply->trailing = handle(outcome.trailing);
  if (outcome.code == Code::kOk && outcome.details.empty()) return TW_OK;
  return report(status, outcome.code, outcome.details);
}

// ---------------------------------------------------------------------------------------------
// calls

int tw_call_receive(tw_call* call, const tw_wait* wait, tw_message** out, tw_status* status) {
  *out = nullptr;
  if (of(call)->link().inherited()) return inherited(status, "call");
  InMessage message;
  // Without a wait while messages are there: a stream is read at full speed.
  if (!of(call)->take(message)) {
    switch (wait_through(wait, deadline_of(wait),
                         [&](Nanos slice) { return of(call)->wait_message(slice); })) {
      case Ended::kDone:
        break;
      case Ended::kTimeout:
        return report(status, Code::kDeadlineExceeded, "no message came in time");
      case Ended::kInterrupted:
        return TW_INTERRUPTED;
    }
    if (!of(call)->take(message)) return TW_OK;
  }
  *out = handle(std::move(message));
  return TW_OK;
}

int tw_call_take(tw_call* call, tw_message** out) {
  InMessage message;
  if (of(call)->link().inherited() || !of(call)->take(message)) return 0;
  *out = handle(std::move(message));
  return 1;
}

int tw_call_sendable(tw_call* call) {
  return !of(call)->link().inherited() && of(call)->sendable();
}

int tw_call_ended(const tw_call* call) { return of(call)->ended() || of(call)->link().inherited(); }
int64_t tw_call_time_left(const tw_call* call) {
  const Nanos deadline = of(call)->deadline();
  return deadline == kForever ? -1 : std::max<Nanos>(0, deadline - now());
}
void tw_call_notify(tw_call* call, tw_events* queue, uint64_t token) {
  of(call)->notify(Ref<EventQueue>::share(of(queue)), token);
}
void tw_call_release(tw_call* call) {
  if (!of(call)->link().inherited()) of(call)->release();
}

namespace {

// A message of a stream: credit, staging, sending, and the memory back.
template <class Send>
int send_in_stream(Call& call, tw_payload payload, const tw_wait* wait, tw_status* status,
                   Send&& send) {
  if (call.link().inherited()) return inherited(status, "call");
  const Nanos deadline = std::min(deadline_of(wait), call.deadline());
  const auto late = [&] { return report(status, Code::kDeadlineExceeded, "Deadline Exceeded"); };
  switch (wait_through(wait, deadline, [&](Nanos slice) { return call.wait_sendable(slice); })) {
    case Ended::kDone:
      break;
    case Ended::kTimeout:
      return late();
    case Ended::kInterrupted:
      return TW_INTERRUPTED;
  }
  if (call.ended()) return report(status, Code::kCancelled, "the call has ended");
  Outbox outbox(payload);
  if (const int result = stage(call, outbox, wait, deadline, status); result != TW_OK)
    return result;
  auto sent = send(outbox);
  if (!sent)
    return report(status, call.ended() ? Code::kCancelled : sent.status().code(),
                  sent.status().details());
  switch (await_sent(call, *sent, wait, deadline)) {
    case Ended::kDone:
      return TW_OK;
    case Ended::kTimeout:
      return late();
    case Ended::kInterrupted:
      return TW_INTERRUPTED;
  }
  return TW_OK;
}

constexpr size_t kDeferBytes = 1024;

}  // namespace

int tw_call_send(tw_call* call, tw_payload payload, int end, const tw_wait* wait,
                 tw_status* status) {
  return send_in_stream(*of(call), payload, wait, status, [&](Outbox& outbox) {
    const bool defer = outbox.bytes() <= kDeferBytes && of(call)->in_burst();
    return client(call)->send_message(outbox.segments(), end != 0, defer);
  });
}

int tw_call_end_send(tw_call* call, tw_status* status) {
  if (of(call)->link().inherited()) return inherited(status, "call");
  const Status ended = client(call)->end_send();
  return ended.ok() ? TW_OK : report(status, ended);
}

int tw_call_initial(tw_call* call, const tw_wait* wait, tw_metadata** out, tw_status* status) {
  *out = nullptr;
  if (of(call)->link().inherited()) return inherited(status, "call");
  switch (wait_through(wait, deadline_of(wait),
                       [&](Nanos slice) { return client(call)->wait_initial(slice); })) {
    case Ended::kDone:
      break;
    case Ended::kTimeout:
      return report(status, Code::kDeadlineExceeded, "no initial metadata came in time");
    case Ended::kInterrupted:
      return TW_INTERRUPTED;
  }
  *out = handle(client(call)->initial());
  return TW_OK;
}

int tw_call_outcome(tw_call* call, const tw_wait* wait, int32_t* code, tw_metadata** trailing,
                    tw_status* status) {
  *trailing = nullptr;
  if (of(call)->link().inherited()) return inherited(status, "call");
  if (!of(call)->ended()) {
    switch (wait_through(wait, deadline_of(wait),
                         [&](Nanos slice) { return of(call)->wait_ended(slice); })) {
      case Ended::kDone:
        break;
      case Ended::kTimeout:
        return report(status, Code::kDeadlineExceeded, "the call has not ended yet");
      case Ended::kInterrupted:
        return TW_INTERRUPTED;
    }
  }
  const Outcome& outcome = client(call)->outcome();
  *code = static_cast<int32_t>(outcome.code);
  *trailing = handle(outcome.trailing);
  report(status, outcome.code, outcome.details);
  return TW_OK;
}

int tw_call_cancel(tw_call* call, int32_t code, const char* details) {
  if (of(call)->link().inherited()) return 0;
  return client(call)->cancel(static_cast<Code>(code), details);
}

void tw_call_method(const tw_call* call, const char** method, size_t* size) {
  const std::string_view name = static_cast<const ServerCall*>(of(call))->method();
  *method = name.data();
  *size = name.size();
}
tw_metadata* tw_call_metadata(const tw_call* call) {
  return handle(static_cast<const ServerCall*>(of(call))->metadata());
}
const char* tw_call_peer(const tw_call* call) { return of(call)->link().peer().address.c_str(); }
const char* tw_call_transport(const tw_call* call) { return of(call)->link().transport(); }
int tw_call_active(const tw_call* call) {
  return static_cast<const ServerCall*>(of(call))->active() && !of(call)->link().inherited();
}
void tw_call_link_stats(tw_call* call, tw_visit_fact visit, void* context) {
  visit_stats(of(call)->link(), of(call)->link().stats(), visit, context);
}

int tw_call_send_initial(tw_call* call, tw_pairs metadata, tw_status* status) {
  if (of(call)->link().inherited()) return inherited(status, "call");
  const Status sent = server(call)->send_initial(Pairs(metadata).entries());
  return sent.ok() ? TW_OK : report(status, sent);
}

int tw_call_reply(tw_call* call, tw_payload payload, const tw_wait* wait, tw_status* status) {
  return send_in_stream(*of(call), payload, wait, status, [&](Outbox& outbox) {
    const bool defer = outbox.bytes() <= kDeferBytes && of(call)->in_burst();
    return server(call)->send_message(outbox.segments(), defer);
  });
}

int tw_call_finish(tw_call* call, int32_t code, const char* details, size_t details_size,
                   tw_pairs trailing, tw_payload payload, const tw_wait* wait, tw_call** next,
                   tw_status* status) {
  if (next) *next = nullptr;
  if (of(call)->link().inherited()) return inherited(status, "call");
  const bool has_payload = payload.segments != nullptr;
  Outbox outbox(payload);
  const Pairs pairs(trailing);
  std::span<OutSegment> segments = outbox.segments();
  std::string_view text(details, details_size);
  auto answer = static_cast<Code>(code);
  tw_status failure{};
  if (has_payload) {
    const Nanos deadline = std::min(deadline_of(wait), of(call)->deadline());
    const int staged = stage(*of(call), outbox, wait, deadline, &failure);
    if (staged != TW_OK) {
      answer = staged == TW_INTERRUPTED ? Code::kUnknown : static_cast<Code>(staged);
      text = failure.details;
      segments = {};
    }
  }
  const bool payload_left = has_payload && !segments.empty();
  Status checked = wire::check_metadata(pairs.entries());
  if (checked.ok()) checked = wire::check_details(text);
  auto entries = pairs.entries();
  if (!checked.ok()) {
    answer = checked.code();
    text = checked.details();
    entries = {};
  }
  const bool empty_payload = has_payload && outbox.segments().empty();
  const bool with_payload = checked.ok() && (payload_left || empty_payload);
  if (!with_payload) segments = {};
  bool finished;
  if (next) {
    Ref<ServerCall> following;
    finished =
        server(call)->finish_and_poll(answer, text, entries, segments, with_payload, following);
    if (following) *next = handle(std::move(following));
  } else {
    Ref<Outgoing> outgoing;
    finished = server(call)->finish(answer, text, entries, segments, with_payload, outgoing);
    if (finished) (void)await_sent(*of(call), outgoing, nullptr, kForever);
  }
  if (!finished) return report(status, Code::kCancelled, "the call has ended");
  return TW_OK;
}

// --------------------------------------------------------------------------------------------
// events

tw_events* tw_events_create() {
  return reinterpret_cast<tw_events*>(make_ref<EventQueue>().leak());
}
size_t tw_events_wait(tw_events* queue, const tw_wait* wait, uint64_t* tokens, size_t room,
                      int* closed) {
  *closed = 0;
  std::vector<uint64_t> taken;
  (void)wait_through(wait, deadline_of(wait), [&](Nanos slice) {
    switch (of(queue)->take(taken, room, slice)) {
      case EventQueue::Taken::kClosed:
        *closed = 1;
        return Waited::kDone;
      case EventQueue::Taken::kTokens:
        return Waited::kDone;
      case EventQueue::Taken::kTimeout:
        return Waited::kTimeout;
      case EventQueue::Taken::kSignal:
        return Waited::kSignal;
    }
    return Waited::kDone;
  });
  std::copy(taken.begin(), taken.end(), tokens);
  return taken.size();
}
void tw_events_close(tw_events* queue) { of(queue)->close(); }
void tw_events_release(tw_events* queue) { of(queue)->release(); }

// --------------------------------------------------------------------------------------------
// server

int tw_server_create(int64_t max_message, tw_server** out, tw_status* status) {
  auto runtime = Runtime::get();
  if (!runtime) return report(status, runtime.status());
  auto made = Server::create(max_message < 0 ? (*runtime)->settings().max_message_bytes
                                             : static_cast<uint64_t>(max_message));
  if (!made) return report(status, made.status());
  *out = reinterpret_cast<tw_server*>(made->leak());
  return TW_OK;
}

void tw_server_instance(const tw_server* server, uint8_t out[TW_INSTANCE_SIZE]) {
  std::memcpy(out, of(server)->instance().data(), TW_INSTANCE_SIZE);
}

int tw_server_listen_tcp(tw_server* server, const char* host, int port, int* bound,
                         tw_status* status) {
  if (of(server)->inherited()) return inherited(status, "server");
  auto opened = of(server)->listener().listen_tcp(host, port);
  if (!opened) return report(status, opened.status());
  *bound = *opened;
  return TW_OK;
}

int tw_server_listen_local(tw_server* server, char* path, size_t room, tw_status* status) {
  if (of(server)->inherited()) return inherited(status, "server");
  auto opened = of(server)->listener().listen_local();
  if (!opened) return report(status, opened.status());
  if (opened->size() >= room) return report(status, Code::kInternal, "no room for the path");
  std::memcpy(path, opened->c_str(), opened->size() + 1);
  return TW_OK;
}

int tw_server_admit(tw_server* server, const void* hello, size_t hello_size, int connections,
                    int64_t ttl_ns, uint8_t session[TW_SESSION_SIZE],
                    uint8_t secret[TW_SECRET_SIZE], tw_status* status) {
  if (of(server)->inherited()) return inherited(status, "server");
  auto theirs = wire::decode_hello({static_cast<const std::byte*>(hello), hello_size});
  if (!theirs) return report(status, theirs.status());
  auto ticket = of(server)->listener().admit(*theirs, connections, ttl_ns);
  if (!ticket) return report(status, ticket.status());
  std::memcpy(session, ticket->session.data(), TW_SESSION_SIZE);
  std::memcpy(secret, ticket->secret.bytes().data(), TW_SECRET_SIZE);
  return TW_OK;
}

int tw_server_next(tw_server* server, const tw_wait* wait, tw_call** calls, size_t room,
                   size_t* count, tw_status* status) {
  *count = 0;
  if (of(server)->inherited()) return inherited(status, "server");
  std::vector<Ref<ServerCall>> fresh;
  bool closed = false;
  const Ended ended = wait_through(wait, deadline_of(wait), [&](Nanos slice) {
    switch (of(server)->next(fresh, room, slice)) {
      case Server::Next::kClosed:
        closed = true;
        return Waited::kDone;
      case Server::Next::kCalls:
        return Waited::kDone;
      case Server::Next::kTimeout:
        return Waited::kTimeout;
      case Server::Next::kSignal:
        return Waited::kSignal;
    }
    return Waited::kDone;
  });
  if (ended == Ended::kInterrupted) return TW_INTERRUPTED;
  if (closed) return report(status, Code::kUnavailable, "the server is closed");
  for (auto& call : fresh) calls[(*count)++] = handle(std::move(call));
  return TW_OK;
}

void tw_server_refuse(tw_server* server) {
  if (!of(server)->inherited()) of(server)->refuse();
}
size_t tw_server_active(const tw_server* server) { return of(server)->active(); }
void tw_server_stats(tw_server* server, void (*begin)(void*), tw_visit_fact visit, void* context) {
  if (of(server)->inherited()) return;
  for (const auto& link : of(server)->links()) {
    begin(context);
    visit_stats(*link, link->stats(), visit, context);
  }
}
void tw_server_close(tw_server* server) {
  if (!of(server)->inherited()) of(server)->close();
}
void tw_server_release(tw_server* server) {
  if (of(server)->inherited()) return;
  of(server)->close();
  of(server)->release();
}

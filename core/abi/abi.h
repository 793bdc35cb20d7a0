// SPDX-License-Identifier: Apache-2.0
// What the files of the C ABI share: handles and conversions.
#pragma once

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <memory>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/few.h"
#include "base/shortage.h"
#include "call/blocking.h"
#include "tensorwire.h"
#include "wire/bytes.h"

// Handles are the objects themselves, with these in between where the runtime has values.
struct tw_buffer final : tw::RefCounted {
  std::byte* data = nullptr;
  size_t size = 0;
  bool readonly = true;
  tw::LeasedView* view = nullptr;
  tw::Ref<tw::Block> block;  // of this process's arena
  tw::Hold hold;             // received
};

struct tw_message final : tw::RefCounted {
  tw::InMessage message;
};

struct tw_metadata final : tw::RefCounted {
  tw::ReceivedMetadata metadata;
};

namespace tw::abi {

// Cut to fit, and terminated.
template <size_t kRoom>
void copy_text(char (&out)[kRoom], std::string_view text) {
  text = wire::cut_utf8(text, kRoom - 1);
  std::memcpy(out, text.data(), text.size());
  out[text.size()] = 0;
}

inline int report(tw_status* status, Code code, std::string_view details) {
  if (status) {
    status->code = static_cast<int32_t>(code);
    copy_text(status->details, details);
  }
  return static_cast<int>(code);
}

inline int report(tw_status* status, const Status& from) {
  return report(status, from.code(), from.details());
}

// What a caller gave as a status code: gRPC knows no others than these.
inline Code code_of(int32_t code) {
  return code >= 0 && code <= static_cast<int32_t>(wire::kHighestCode) ? static_cast<Code>(code)
                                                                       : Code::kUnknown;
}

// Nothing is thrown across the ABI: in the handler of whatever may allocate.
inline int no_memory(tw_status* status) {
  const Shortage shortage;
  return report(status, Code::kResourceExhausted, "this process has no memory left for it");
}

// Where the result can say no more than that nothing was done.
template <class Result>
Result none(Result nothing = {}) {
  const Shortage shortage;
  return nothing;
}

inline int inherited(tw_status* status, const char* what) {
  char text[128];
  std::snprintf(text, sizeof text,
                "this %s was made before fork() and belongs to the parent process: make a new one",
                what);
  return report(status, Code::kFailedPrecondition, text);
}

inline Wait wait_of(const tw_wait* wait) {
  if (!wait) return {};
  const auto deadline = [wait]() -> Nanos {
    if (wait->timeout_ns < 0) return kForever;
    return wait->timeout_ns == 0 ? 0 : deadline_after(wait->timeout_ns);  // 0: long past
  };
  return {deadline(), wait->interrupted, wait->context};
}

// Of the bytes of a message; negative: nobody has said.
inline std::optional<uint64_t> limit_of(int64_t max_message) {
  return max_message < 0 ? std::nullopt : std::optional(static_cast<uint64_t>(max_message));
}

// TW_OK: the wait is over. `late`: what did not happen in time.
inline int report(tw_status* status, Ended ended, std::string_view late) {
  if (ended == Ended::kInterrupted) return TW_INTERRUPTED;
  return ended == Ended::kTimeout ? report(status, Code::kDeadlineExceeded, late) : TW_OK;
}

// What a blocking call says: false for interrupted.
inline int report(tw_status* status, const Result<bool>& done) {
  if (!done) return report(status, done.status());
  return *done ? TW_OK : TW_INTERRUPTED;
}

// Tells the owner of lent memory, when the last reference goes.
class Owner : public RefCounted {
 public:
  explicit Owner(const tw_owner& owner) : owner_(owner) {}
  // Gives the context back, and tells nobody.
  void* disown() {
    owner_.release = nullptr;
    return owner_.context;
  }

 protected:
  ~Owner() override {
    if (owner_.release) owner_.release(owner_.context);
  }

 private:
  tw_owner owner_;
};

// The owner is told even when there is no memory for its message.
template <class Kind = Owner>
Hold lent_by(const tw_owner& owner) {
  try {
    return make_ref<Kind>(owner);
  } catch (const std::bad_alloc&) {
    owner.release(owner.context);
    throw;
  }
}

// The segments of a payload, without an allocation for the usual few. Make it before anything can
// fail: from then on lent memory finds its way home.
class Outbox {
 public:
  explicit Outbox(tw_payload payload) {
    if (const tw_keeper* const from = payload.keeper) {
      keeper_.how = from->keep ? Keeper::How::kHold : Keeper::How::kCopy;
      keeper_.context = const_cast<tw_keeper*>(from);
      keeper_.hold = [](void* context) {
        const auto* const asked = static_cast<const tw_keeper*>(context);
        return lent_by(asked->keep(asked->context));
      };
    }
    const size_t count = payload.segments ? payload.count : 0;
    size_t taken = 0;
    try {
      segments_.reserve(count);
      while (taken < count) {
        const size_t i = taken++;
        OutSegment& segment = segments_.emplace_back();
        segment.data = static_cast<const std::byte*>(payload.segments[i].data);
        segment.size = payload.segments[i].size;
        if (payload.owners && payload.owners[i].release) segment.hold = lent_by(payload.owners[i]);
      }
    } catch (const std::bad_alloc&) {
      for (; payload.owners && taken < count; ++taken)
        if (const tw_owner& owner = payload.owners[taken]; owner.release)
          owner.release(owner.context);
      throw;
    }
  }
  Outbox(const Outbox&) = delete;
  Outbox& operator=(const Outbox&) = delete;

  std::span<OutSegment> segments() { return segments_; }
  const Keeper& keeper() const { return keeper_; }

 private:
  Few<OutSegment, 8> segments_;
  Keeper keeper_;
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

inline Call* of(tw_call* call) { return reinterpret_cast<Call*>(call); }
inline const Call* of(const tw_call* call) { return reinterpret_cast<const Call*>(call); }
// A handle is the address of the Call, whatever its end.
inline const ClientCall* of(const tw_client_call* call) {
  return reinterpret_cast<const ClientCall*>(call);
}
inline ClientCall* of(tw_client_call* call) {
  return static_cast<ClientCall*>(reinterpret_cast<Call*>(call));
}
inline ServerCall* of(tw_server_call* call) {
  return static_cast<ServerCall*>(reinterpret_cast<Call*>(call));
}
inline const ServerCall* of(const tw_server_call* call) {
  return static_cast<const ServerCall*>(reinterpret_cast<const Call*>(call));
}
inline tw_client_call* handle(Ref<ClientCall> call) {
  return reinterpret_cast<tw_client_call*>(static_cast<Call*>(call.leak()));
}
inline tw_server_call* handle(Ref<ServerCall> call) {
  return reinterpret_cast<tw_server_call*>(static_cast<Call*>(call.leak()));
}
inline CallPort* of(tw_peer* peer) { return reinterpret_cast<CallPort*>(peer); }
inline const CallPort* of(const tw_peer* peer) { return reinterpret_cast<const CallPort*>(peer); }
inline tw_peer* handle(Ref<CallPort> port) { return reinterpret_cast<tw_peer*>(port.leak()); }
inline Server* of(tw_server* server) { return reinterpret_cast<Server*>(server); }
inline const Server* of(const tw_server* server) { return reinterpret_cast<const Server*>(server); }
inline SharedMemory* of(tw_shared* shared) { return reinterpret_cast<SharedMemory*>(shared); }
inline const SharedMemory* of(const tw_shared* shared) {
  return reinterpret_cast<const SharedMemory*>(shared);
}
inline Quota* of(tw_quota* quota) { return reinterpret_cast<Quota*>(quota); }
inline const Quota* of(const tw_quota* quota) { return reinterpret_cast<const Quota*>(quota); }
inline EventQueue* of(tw_events* queue) { return reinterpret_cast<EventQueue*>(queue); }
// No queue: nobody is told.
inline Notice notice_of(tw_events* queue, uint64_t token) {
  return queue ? Notice(Ref<EventQueue>::share(of(queue)), token) : Notice();
}

inline tw_metadata* handle(ReceivedMetadata metadata) {
  if (metadata.view.empty()) return nullptr;
  auto out = make_ref<tw_metadata>();
  out->metadata = std::move(metadata);
  return out.leak();
}

// The next message; null: none is there. std::bad_alloc leaves it where it is.
inline tw_message* take(Call& call) {
  if (!call.has_message()) return nullptr;
  auto out = make_ref<tw_message>();
  return call.take(out->message) ? out.leak() : nullptr;
}

inline void visit_trace(const Trace::Record& record, tw_visit_event visit, void* context) {
  for (const TraceEvent& event : record.events) {
    const tw_trace_event out{event.time,   name_of(event.step), event.sent,  event.segment,
                             event.stream, event.message,       event.bytes, event.id};
    visit(context, &out);
  }
}

}  // namespace tw::abi

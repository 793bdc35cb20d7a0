// SPDX-License-Identifier: Apache-2.0
// The client's end: starts calls on a link and learns how they end.
#pragma once

#include <string_view>

#include "base/mutex.h"
#include "call/call.h"

namespace tw {

// How a call ended, and the metadata that came with it.
struct Outcome {
  Code code = Code::kOk;
  std::string details;
  ReceivedMetadata trailing;
};

class ClientCall final : public Call {
 public:
  // Before begin(). Segments that come in chunks, of exactly these sizes, are received into these
  // buffers, each into that of its place in its message; null: anywhere. Whoever has made them
  // withdraws them.
  void land(std::span<const Ref<PostedBuffer>> places) {
    places_.assign(places.begin(), places.end());
  }
  // Sends the start of the call; `segments` are its first message if `payload`, `end` half-closes
  // it. Call it once, first.
  Result<Ref<Outgoing>> begin(std::string_view method,
                              std::span<const wire::MetadataEntry> metadata,
                              std::span<OutSegment> segments, bool payload, bool end, bool driving);
  // One more message of a stream. `defer` lets small messages gather until somebody waits or enough
  // has come together.
  Result<Ref<Outgoing>> send_message(std::span<OutSegment> segments, bool end, bool defer);
  Status end_send();

  // Until initial metadata has come, or never will.
  Waited wait_initial(Nanos deadline);
  // Good once it has; empty when the call ended without any.
  ReceivedMetadata initial();
  // Good once ended.
  const Outcome& outcome() const { return outcome_; }

  // Ends the call here and tells the server. False: it had ended.
  bool cancel(Code code, std::string details);
  // Ends the call at its deadline even if nobody waits for it.
  Status watch_deadline();

 private:
  friend class CallPort;
  ClientCall(Ref<CallPort> port, uint64_t stream, Nanos deadline, bool until_read);

  Status on_message(Ref<Parcel> message) override;
  void on_closing(const Status& why) override;
  void on_lost(const Status& why) override;
  Ref<PostedBuffer> place_for(size_t segment, size_t size) override;
  bool initial_known() const override { return initial_known_.load(std::memory_order_acquire); }
  void on_timer() override;
  void on_emptied() override;
  // The call ends so, at once or when what has come was taken.
  void conclude(Outcome outcome);
  void end_as_concluded();
  void end(Outcome outcome);
  void send_cancel(Code code);

  std::vector<Ref<PostedBuffer>> places_;  // written before begin()
  std::atomic<bool> cancelled_{false};
  std::atomic<bool> initial_known_{false};
  ReceivedMetadata initial_;  // written once, before initial_known()
  const bool until_read_;
  std::atomic<bool> concluded_{false};
  Outcome conclusion_;              // written by who has set concluded_, before peer_done()
  Outcome outcome_;                 // written once, before ended()
  std::atomic<bool> timed_{false};  // there is a timer, or going to be
  Mutex timer_mutex_;               // guards timer_
  std::optional<Poller::Timer> timer_ TW_GUARDED_BY(timer_mutex_);
};

}  // namespace tw

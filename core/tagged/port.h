// SPDX-License-Identifier: Apache-2.0
// Tagged messages on a link: either end sends, and the other one asks for them by their tag.
//
// Messages of one tag are received in the order in which they were sent; those of different tags
// have no order. What nobody has asked for waits, within one credit for all tags: a sender without
// credit waits until something was received.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <set>
#include <span>
#include <unordered_map>
#include <utility>

#include "base/mutex.h"
#include "engine/event_queue.h"
#include "link/link.h"
#include "link/window.h"

namespace tw {

class TaggedPort;

// One message that is asked for. It ends exactly once: with the message, or with a status. Dropping
// the last reference gives up what came and was not taken.
class TaggedReceive final : public RefCounted {
 public:
  bool ended() const { return ended_.load(std::memory_order_acquire); }
  // Good once it has ended. OUT_OF_RANGE: the message is larger than the memory for it, and was
  // dropped. CANCELLED, or why the link carries no messages any more: none came.
  // RESOURCE_EXHAUSTED: it could not be received here.
  const Status& status() const { return status_; }
  // After it has ended well: its segments. With memory of the caller's they are one, which lies
  // there. False: it was taken before. std::bad_alloc leaves it where it is.
  bool take(InMessage& message);

 private:
  friend class TaggedPort;
  TaggedReceive(Ref<TaggedPort> port, uint64_t stream, Ref<PostedBuffer> into, Notice told);
  // It ends under the port's lock, with the parcel, which stays if it is not good; and tells that
  // without it.
  void settle(Ref<Parcel>& parcel) noexcept;
  void settle(const Status& why) noexcept;
  template <class Make>
  void set_status(Make&& make, Code code) noexcept;
  void finish();

  const Ref<TaggedPort> port_;
  const uint64_t stream_;
  const Ref<PostedBuffer> into_;
  Event event_;
  std::atomic<bool> ended_{false};
  Status status_;       // written once, before ended()
  Ref<Parcel> parcel_;  // written before ended(), and then guarded by the port's mutex
  Notice told_;
  // The port's:
  Ref<TaggedReceive> next_;  // of those of its tag that wait
};

// A message that is on its way out of the caller's memory.
class TaggedSend {
 public:
  // The caller's memory is its own again.
  bool ended() const { return copied() || !outgoing_->borrowed(); }
  // It was when the message began, and the link looks after the rest.
  bool copied() const { return !outgoing_; }

 private:
  friend class TaggedPort;
  struct SendEnd final : RefCounted {
    Event event;
  };
  Ref<SendEnd> end_;
  Ref<Outgoing> outgoing_;  // null: all of it has been copied
  size_t bytes_ = 0;
};

// What a peer may have sent, and nobody asked for, of all tags together. Senders spend in the
// order in which they begin, and messages arrive in the order in which they are whole: so the
// largest one counts as the last, which a sender may begin with any credit above zero. What has
// only been announced counts as what is whole does.
class TaggedWindow {
 public:
  explicit TaggedWindow(size_t window)
      : window_(static_cast<int64_t>(window)), credit_(static_cast<int64_t>(window)) {}
  // A message is announced, whose bytes come later. False: no sender that kept to its credit can
  // have sent it.
  bool announce(size_t cost);
  // Its bytes have come; its sender has given it up.
  void complete(size_t cost);
  void give_up(size_t cost);
  // One has come at once. False: as announce().
  bool arrive(size_t cost);
  // The bytes to grant now, 0 while they are too few for a frame.
  uint64_t consume(size_t cost);

 private:
  bool fits() const;
  void end_announced(int64_t cost);

  const int64_t window_;
  int64_t credit_;
  std::multiset<int64_t> announced_;
  int64_t announced_sum_ = 0;
  int64_t largest_ = 0;  // of those that were whole, since all of them had been granted
  int64_t due_ = 0;
};

// Thread-safe.
class TaggedPort final : public MessagePort {
 public:
  explicit TaggedPort(Link& link);
  ~TaggedPort() override;

  // A reference to it is one to its link.
  void retain() const noexcept { link_.retain(); }
  void release() const noexcept { link_.release(); }
  Link& link() const { return link_; }

  static constexpr uint64_t kMaxTag = wire::kTaggedStreams - 1;

  // Sends a message once the peer has credit for it, and returns when the caller's memory is its
  // own again; what has an owner of its own is lent until that is told. False: interrupted.
  // INVALID_ARGUMENT: no tag, or more than a message can carry. UNIMPLEMENTED: the peer knows no
  // tagged messages. DEADLINE_EXCEEDED. RESOURCE_EXHAUSTED, also when the peer has yet to take too
  // many bytes, whatever credit it grants. With any of these, and when it is interrupted, the peer
  // will not see the message. Or why the link carries none any more: then it may have. What is only
  // lent when this end closes the link may be lost.
  Result<bool> send(uint64_t tag, std::span<OutSegment> segments, const Wait& wait);

  // The same in two steps. begin() waits for credit alone; until the send has ended, or was
  // withdrawn, the caller keeps its memory as it is. Nothing: interrupted.
  Result<std::optional<TaggedSend>> begin(uint64_t tag, std::span<OutSegment> segments,
                                          const Wait& wait);
  Ended wait(TaggedSend& send, const Wait& wait);
  // The caller's memory is its own again. True: the peer will not see the message.
  bool withdraw(TaggedSend& send);

  // Asks for the next message of a tag. `into`: memory that is large enough for all of it and that
  // nobody else touches until its owner is told; null: the message stays where it comes to lie.
  // `told`: once it has ended. INVALID_ARGUMENT: no tag.
  Result<Ref<TaggedReceive>> receive(uint64_t tag, Ref<PostedBuffer> into = nullptr,
                                     Notice told = {});
  Ended wait(TaggedReceive& receive, const Wait& wait);
  // Ends it as CANCELLED. False: it has ended(), with what its status says. Its memory is not
  // touched any more, but by take(); what had come there of a message is copied for the next
  // receive, which without memory for that ends as RESOURCE_EXHAUSTED.
  bool cancel(TaggedReceive& receive);

  // Messages that have come, and that nobody has asked for.
  size_t waiting() const;
  // Copies the first segment of the next one of a tag, which stays. False: there is none, or its
  // first segment has another size.
  bool peek(uint64_t tag, std::span<std::byte> into) const;

 private:
  // begin(), whose rest nobody sends unless somebody waits on the link.
  Result<std::optional<TaggedSend>> submit(uint64_t tag, std::span<OutSegment> segments,
                                           const Wait& wait);
  friend class TaggedReceive;
  // Receives that wait for messages, or messages that wait for receives.
  struct Tag {
    ParcelQueue messages;
    Ref<TaggedReceive> first;
    TaggedReceive* last = nullptr;

    bool empty() const { return messages.empty() && !first; }
    void push(Ref<TaggedReceive> receive);
    Ref<TaggedReceive> pop();
    Ref<TaggedReceive> remove(TaggedReceive& receive);
  };

  Streams streams() const override { return Streams::kTagged; }
  Status on_message(Ref<Parcel> message) override;
  Result<Receiver::Cost> on_wait(uint64_t stream, std::span<const std::byte> header,
                                 uint64_t payload_bytes, const Receiver::Cost& ahead) override;
  void on_given_up(const Parcel& message) override;
  Status on_credit(uint64_t stream, uint64_t bytes) override;
  Ref<PostedBuffer> on_land(const Parcel& message, size_t segment) override;
  // What the peer had sent can still be received.
  void on_peer_closed() override;
  void on_closed(const Status& why) override { end_all(status_of_loss(why), Left::kNothing); }
  void on_lost(const Status& why) override { end_all(status_of_loss(why), Left::kWhole); }

  static Status status_of_loss(const Status& why);
  Status usable() const;
  bool over() const { return link_.closed() || peer_closed_.load(std::memory_order_acquire); }
  bool sendable() const { return send_window_.open() || over(); }
  bool spend(size_t payload_bytes);
  void refund(size_t payload_bytes);
  void received(size_t payload_bytes);
  void give_back(PostedBuffer& into, bool keep) noexcept;
  // Which messages are still to be had when receives end: those that have come, and those that go
  // on coming.
  enum class Left : uint8_t { kNothing, kWhole, kAll };
  void end_all(const Status& why, Left left) noexcept;

  Link& link_;
  const bool supported_;
  Event credit_;            // the peer has granted some, or the link is closed
  SendWindow send_window_;  // spent under mutex_
  std::atomic<bool> peer_closed_{false};

  // Guards what follows. Inside, no other lock is taken but PostedBuffer::stores(), and its inner
  // ones.
  mutable Mutex mutex_;
  TaggedWindow receive_window_ TW_GUARDED_BY(mutex_);
  std::unordered_map<uint64_t, Tag> tags_ TW_GUARDED_BY(mutex_);  // by stream
  size_t waiting_ TW_GUARDED_BY(mutex_) = 0;
  std::optional<Status> closed_ TW_GUARDED_BY(mutex_);  // why nothing comes any more
  // This end has closed the link: leases go home at once.
  bool dropping_ TW_GUARDED_BY(mutex_) = false;
};

}  // namespace tw

// SPDX-License-Identifier: Apache-2.0
// The receiving half of the message machine: takes bytes, hands up messages. No I/O, no locks:
// whoever holds the link's baton calls it.
//
// buffers() says where the next bytes belong: straight into a segment's final memory when a chunk
// is under way, else into the staging area from which frames are parsed. Messages of one stream are
// handed up in the order in which they were announced.
#pragma once

#include <sys/uio.h>

#include <deque>
#include <memory>
#include <span>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/trace.h"
#include "memory/growing_buffer.h"
#include "memory/receive_memory.h"
#include "message/counters.h"
#include "message/message.h"
#include "message/parcel.h"
#include "wire/one_sided_frames.h"

namespace tw {

class Receiver {
 public:
  using Cost = MessageCost;

  // What the machine tells the link. A status that is not ok ends the link.
  class Sink {
   public:
    virtual Status on_message(Ref<Parcel> message) = 0;
    // A message was announced that has to wait, for bytes of its own or of those before it on its
    // stream. What it costs; `ahead` is the sum of those that wait there already.
    virtual Result<Cost> on_wait(uint64_t stream, std::span<const std::byte> header,
                                 uint64_t payload_bytes, const Cost& ahead) = 0;
    // Its sender has given up a message of which on_wait() was told.
    virtual void on_given_up(const Parcel&) {}
    // A segment of the next message to be handed up on its stream is about to come in chunks: the
    // memory it is wanted in, of at least its size; null: anywhere.
    virtual Ref<PostedBuffer> on_land(const Parcel&, size_t) { return nullptr; }
    virtual Status on_fin(std::span<const uint64_t> ids) = 0;
    // The peer cannot map what it has on this lease, which has ended.
    virtual Status on_unmappable(uint64_t lease) = 0;
    virtual Status on_credit(uint64_t stream, uint64_t bytes) = 0;
    virtual void on_go_away(Code code, std::string_view reason) = 0;
    // The peer's memory behind a MAP segment; letting go of the hold gives the lease back.
    // RESOURCE_EXHAUSTED: it cannot be mapped here now, and the lease has been given back; the
    // message is refused and the link goes on.
    virtual Result<InSegment> on_map(const wire::SegmentInfo& segment) = 0;
    // This end's memory behind a RETURN segment. RESOURCE_EXHAUSTED: the message is refused and the
    // link goes on.
    virtual Result<InSegment> on_return(const wire::SegmentInfo& segment) = 0;

    virtual Status on_region(const wire::Region& region) = 0;
    virtual Status on_region_gone(uint64_t region) = 0;
    // With the first bytes of what follows. Where the others belong; null: they are thrown away.
    virtual Result<std::byte*> on_operation(const wire::OperationFrame& operation,
                                            std::span<const std::byte> here) = 0;
    virtual Result<std::byte*> on_outcome(const wire::OutcomeFrame& outcome,
                                          std::span<const std::byte> here) = 0;
    // All has come of the OPERATION or OUTCOME that was announced last.
    virtual Status on_placed(wire::FrameType type) = 0;

   protected:
    ~Sink() = default;
  };

  // A one-sided read to be started: the chunk that the peer offers, and where its bytes belong.
  struct Read {
    RegionRef from;                    // in the peer's arena
    std::byte* destination = nullptr;  // null when the message is refused: nothing is to be read
    uint64_t rendezvous = 0;           // for the FIN
    uint64_t stream = 0, message = 0;
    uint32_t segment = 0;
    uint64_t offset = 0;  // in the segment
    Hold hold;  // the memory behind destination, which an ABORT must not free under the read
  };

  // fetched: for segments that are read one-sidedly; `pool` for the others. max_message: a larger
  // message is thrown away and handed up as RESOURCE_EXHAUSTED.
  Receiver(Pool& pool, ReceiveMemory& fetched, uint64_t max_message, Sink& sink,
           const wire::Limits& limits = {}, Trace* trace = nullptr);

  // At most two runs, never empty.
  size_t buffers(std::span<iovec, 2> room);
  // `bytes` of what buffers() offered have been filled. kInternal: the peer broke the protocol.
  Status received(size_t bytes);
  // True while a frame or a message has begun and not ended: more is surely on its way.
  bool midway() const { return staged_ != parsed_ || chunk_left_ != 0 || !unfinished_.empty(); }

  // Bytes are being stored where on_operation() or on_outcome() said.
  bool placing() const { return chunk_left_ != 0 && chunk_type_ != wire::FrameType::kData; }
  // Bytes are being stored in memory that was posted for them; null: they are not.
  Ref<PostedBuffer> posted() const { return chunk_left_ != 0 ? chunk_posted_ : nullptr; }
  // What is still to come of a chunk goes where posted memory was kept, under whose lock this is
  // called, or is thrown away with the message that it belongs to.
  void misplace();

  // kRead: reads to start now; read_done() for each, in any order, after which its FIN is due.
  bool offered_reads() const { return !reads_.empty(); }
  std::vector<Read> take_reads() { return std::exchange(reads_, {}); }
  Status read_done(const Read& read);
  // Whether the message of a read is still to be received.
  bool wants(const Read& read) const;
  // This end cannot take the message: it is handed up with `why`, and no bytes.
  void refuse(uint64_t message, Status why);

  const ReceiveCounters& counters() const { return counters_; }

 private:
  // Where the chunks of one kind have got to: they come in the order of the segments.
  struct Cursor {
    uint32_t segment = 0;
    uint64_t offered = 0;  // bytes of it whose chunks have begun
  };
  // A message with bytes to come.
  struct Incoming {
    Ref<Parcel> parcel;
    std::unique_ptr<uint8_t[]> kinds;
    uint64_t left = 0;  // bytes still to come
    Cursor pushed, read;
    wire::SegmentKind kind(size_t index) const {
      return static_cast<wire::SegmentKind>(kinds[index]);
    }
    uint32_t next_eager = 0;
    // Memory for inline and eager segments: what is used of the last run, and all that was taken.
    Hold small_hold;
    std::byte* small = nullptr;
    size_t small_used = 0, small_size = 0, small_taken = 0;
    uint64_t eager_left = 0;
    uint64_t eager_ahead = 0;  // of eager_left, what there is memory for already
    // Memory of the pushed segment under way.
    GrowingBuffer buffer;
    size_t huge_ahead = 0;  // of its first huge page
    size_t borrowed = 0;    // bytes of recycled memory that wait to be filled
    uint64_t unread = 0;  // bytes that segments to be read have memory for, and that have not come
  };
  struct Waiting {
    ParcelQueue parcels;
    Cost cost;  // of all of them

    void add(const Cost& one) {
      cost.credit += one.credit;
      cost.header_bytes += one.header_bytes;
    }
    void remove(const Cost& one) {
      cost.credit -= one.credit;
      cost.header_bytes -= one.header_bytes;
    }
  };

  void note(TraceStep step, const wire::FrameHeader& header, size_t segment, uint64_t bytes,
            uint64_t id = 0) {
    if (trace_)
      trace_->note(false, step, header.stream, header.message, static_cast<uint32_t>(segment),
                   bytes, id);
  }
  Status take(size_t bytes);
  Status parse();
  Status frame(const wire::FrameHeader& header, std::span<const std::byte> body);
  Status message_frame(const wire::FrameHeader& header, std::span<const std::byte> body);
  Ref<Parcel> packed(const wire::FrameHeader& header, const wire::MessageHead& head);
  Status announce(const wire::FrameHeader& header, const wire::MessageHead& head, bool all_inline);
  Status eager_frame(const wire::FrameHeader& header, std::span<const std::byte> body);
  Status rts_frame(const wire::FrameHeader& header, std::span<const std::byte> body);
  Status begin_chunk(const wire::FrameHeader& header);
  Status begin_placing(const wire::FrameHeader& header);
  void store(std::span<const std::byte> bytes);
  Status take_rest(std::byte* to, size_t here, size_t length);
  Status end_chunk();
  Status abort(const wire::FrameHeader& header);
  Status arrived(Incoming& incoming, uint64_t number, uint64_t bytes);
  Status deliver(Ref<Parcel> parcel);
  Status deliver_waiting(uint64_t stream);
  Status take_in(Incoming& incoming, const wire::MessageHead& head);
  Status take_small(Incoming& incoming);
  Status small_run(Incoming& incoming, size_t size);
  void place_small(Incoming& incoming, size_t index, const std::byte* from);
  bool land(Incoming& incoming, size_t index);
  std::byte* chunk_memory(Incoming& incoming, const wire::DataChunk& chunk, size_t here);
  void more_room();
  bool may_borrow(size_t bytes) const;
  void borrow(Incoming& incoming, size_t bytes);
  void let_go(Incoming& incoming);
  void refuse(Incoming& incoming, Status why);
  bool place_read(Incoming& incoming, Read& read);
  void resume_offers();
  Result<Incoming*> find(const wire::FrameHeader& header, std::string_view frame);
  Result<Incoming*> next_chunk(const wire::FrameHeader& header, wire::SegmentKind kind,
                               uint64_t offset, uint64_t length);

  Pool& pool_;
  ReceiveMemory& fetched_;
  const uint64_t max_message_;
  Sink& sink_;
  const wire::Limits limits_;
  Trace* const trace_;

  std::unique_ptr<std::byte[]> staging_;
  size_t staging_size_ = 0;
  size_t parsed_ = 0, staged_ = 0;  // [parsed_, staged_) waits to be parsed

  // The DATA, OPERATION or OUTCOME frame under way.
  wire::FrameType chunk_type_ = wire::FrameType::kData;
  uint64_t chunk_message_ = 0;
  uint32_t chunk_segment_ = 0;
  uint64_t chunk_offset_ = 0, chunk_length_ = 0;
  std::byte* chunk_to_ = nullptr;  // null: thrown away
  size_t chunk_room_ = 0;          // bytes that have room there
  size_t chunk_left_ = 0;
  Ref<PostedBuffer> chunk_posted_;  // behind chunk_to_, if it is one

  uint64_t last_message_ = 0;
  std::unordered_map<uint64_t, Incoming> unfinished_;  // by number
  // Streams with an unfinished message: it, and whatever was announced after it.
  std::unordered_map<uint64_t, Waiting> waiting_;
  std::vector<wire::SegmentInfo> infos_;  // scratch
  std::vector<Read> reads_;
  std::deque<Read> later_;  // offers for which there is no room yet
  // Of all unfinished messages: their eager_ahead, huge_ahead, borrowed and unread.
  uint64_t ahead_ = 0, huge_ahead_ = 0, borrowed_ = 0, unread_ = 0;
  size_t offers_ = 0;  // ready-to-sends of which read_done() has not heard
  ReceiveCounters counters_;
};

}  // namespace tw

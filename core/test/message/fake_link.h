// SPDX-License-Identifier: Apache-2.0
// Two ends joined by byte pipes that the test moves: how many bytes, in how many pieces, and when.
#pragma once

#include <algorithm>
#include <array>
#include <vector>

#include "test/message/end.h"
#include "wire/frame.h"

namespace tw::test {

inline constexpr size_t kAll = SIZE_MAX;

// A frame that has left an end, seen from outside. MESSAGE, EAGER: `bytes` is the body.
// DATA, RTS: the chunk. FIN: 8 for each id.
struct Frame {
  wire::FrameType type;
  uint64_t stream, message;
  uint32_t first_segment, segments;
  uint64_t offset, bytes;
};

inline std::vector<Frame> frames_in(const Bytes& log, const wire::Limits& limits = {}) {
  std::vector<Frame> frames;
  for (size_t at = 0; at + wire::kFrameHeaderSize <= log.size();) {
    const auto header = wire::decode_frame_header(
        std::span<const std::byte, wire::kFrameHeaderSize>(log.data() + at, wire::kFrameHeaderSize),
        limits);
    REQUIRE(header.ok());
    at += wire::kFrameHeaderSize;
    if (log.size() - at < header->body_length) break;  // the link was lost
    const auto body = std::span(log).subspan(at, header->body_length);
    at += body.size();
    Frame frame{header->type,
                header->stream,
                header->message,
                header->first_segment,
                header->segment_count,
                0,
                body.size()};
    if (frame.type == wire::FrameType::kData) {
      const auto chunk =
          wire::decode_data_prefix(*header, body.first<wire::kDataPrefixSize>(), limits);
      REQUIRE(chunk.ok());
      frame.offset = chunk->offset;
      frame.bytes = chunk->length;
    } else if (frame.type == wire::FrameType::kRts) {
      const auto offer = wire::decode_rts_body(*header, body, limits);
      REQUIRE(offer.ok());
      frame.offset = offer->segment_offset;
      frame.bytes = offer->length;
    }
    frames.push_back(frame);
  }
  return frames;
}

inline size_t count(const std::vector<Frame>& frames, wire::FrameType type) {
  return static_cast<size_t>(
      std::count_if(frames.begin(), frames.end(), [&](const Frame& f) { return f.type == type; }));
}

class FakeLink {
 public:
  explicit FakeLink(const EndOptions& options) : FakeLink(options, options) {}
  FakeLink(const EndOptions& for_a, const EndOptions& for_b,
           Ref<Arena> arena = make_ref<Arena>(size_t{256} << 20, size_t{16} << 20),
           Ref<Pool> pool = make_ref<Pool>(size_t{256} << 20))
      : a(for_a, arena, pool), b(for_b, arena, pool) {
    a.peer = &b;
    b.peer = &a;
  }

  // Takes at most `most` bytes from the end's sender, offered as at most `runs` pieces.
  size_t send(End& from, size_t most = kAll, size_t runs = 8) {
    std::array<iovec, 8> room;
    const size_t n = from.sender.gather(std::span(room).first(std::min(runs, room.size())));
    size_t taken = 0;
    Pipe& out = pipe_from(from);
    for (size_t i = 0; i < n && taken < most; ++i) {
      const size_t length = std::min(room[i].iov_len, most - taken);
      const auto* at = static_cast<const std::byte*>(room[i].iov_base);
      out.bytes.insert(out.bytes.end(), at, at + length);
      taken += length;
    }
    if (log) {
      out.log.insert(out.log.end(), out.bytes.end() - static_cast<std::ptrdiff_t>(taken),
                     out.bytes.end());
    }
    from.sender.sent(taken);
    from.reclaim();
    return taken;
  }

  // Hands the end's receiver at most `most` of the bytes on their way to it, as it asks for them.
  Status receive(End& to, size_t most = kAll) {
    Pipe& in = pipe_from(*to.peer);
    std::array<iovec, 2> room;
    const size_t runs = to.receiver.buffers(room);
    size_t moved = 0;
    for (size_t i = 0; i < runs; ++i) {
      if (room[i].iov_len == 0) return {Code::kUnknown, "the receiver offers an empty buffer"};
      const size_t length = std::min({room[i].iov_len, most - moved, in.bytes.size() - in.taken});
      if (length != 0) std::memcpy(room[i].iov_base, in.bytes.data() + in.taken, length);
      in.taken += length;
      moved += length;
    }
    if (in.taken == in.bytes.size()) {
      in.bytes.clear();
      in.taken = 0;
    }
    return to.receiver.received(moved);
  }

  size_t on_the_way_to(const End& end) const {
    const Pipe& in = &end == &a ? from_b_ : from_a_;
    return in.bytes.size() - in.taken;
  }

  // Moves everything until both ends are quiet, at most `piece` bytes at a time; reads complete
  // last first. Stops early once `budget` bytes and steps are spent; what it has spent is the
  // answer.
  size_t settle(size_t budget = kAll, size_t piece = kAll) {
    size_t spent = 0;
    const auto most = [&] { return std::min(piece, budget - spent); };
    for (size_t before = kAll; before != spent && spent < budget;) {
      before = spent;
      for (End* end : {&a, &b}) {
        if (!end->returns->ids.empty() && spent < budget) {
          end->return_leases();
          ++spent;
        }
        spent += send(*end, most());
        if (on_the_way_to(*end) != 0 && spent < budget) {
          const size_t waiting = on_the_way_to(*end);
          check(receive(*end, most()));
          spent += waiting - on_the_way_to(*end);
        }
        end->start_reads();
        if (!end->reads.empty() && spent < budget) {
          check(end->finish_read(end->reads.size() - 1));
          ++spent;
        }
      }
    }
    return spent;
  }

  // One small thing of all that could happen next, by the dice.
  void stir(Random& random, size_t most) {
    End& end = random.chance(50) ? a : b;
    switch (random.up_to(5)) {
      case 0:
      case 1:
        send(end, 1 + random.up_to(most - 1), 1 + random.up_to(7));
        break;
      case 2:
      case 3:
        check(receive(end, 1 + random.up_to(most - 1)));
        break;
      case 4:
        end.start_reads();
        if (!end.reads.empty()) check(end.finish_read(random.up_to(end.reads.size() - 1)));
        break;
      default:
        end.return_leases();
    }
  }

  // Both ends notice that they cannot send any more.
  void lose() {
    a.sender.drop();
    b.sender.drop();
    a.reclaim();
    b.reclaim();
  }

  Bytes& sent_by(End& end) { return pipe_from(end).log; }
  std::vector<Frame> frames_from(End& end) { return frames_in(sent_by(end)); }
  // Puts bytes on the way as if `from` had sent them.
  void forge(End& from, const Bytes& bytes) {
    Bytes& out = pipe_from(from).bytes;
    out.insert(out.end(), bytes.begin(), bytes.end());
  }

  static void check(const Status& status) {
    if (status.ok()) return;
    FAIL("the machine failed: " << status.details());
  }

  End a, b;
  bool log = true;  // keep all that was sent

 private:
  struct Pipe {
    Bytes bytes;
    size_t taken = 0;
    Bytes log;
  };
  Pipe& pipe_from(End& end) { return &end == &a ? from_a_ : from_b_; }
  Pipe from_a_, from_b_;
};

inline Received as_received(const Sample& sample) {
  Received out;
  out.stream = sample.stream;
  out.header = sample.header;
  for (const Part& part : sample.parts) {
    out.payload_bytes += part.bytes.size();
    out.segments.push_back(part.bytes);
  }
  return out;
}

// Bytewise the same message. (One check for all: samples may have millions of bytes.)
inline bool same(const Received& got, const Sample& sample) {
  const Received want = as_received(sample);
  return got.status.ok() && got.stream == want.stream && got.header == want.header &&
         got.payload_bytes == want.payload_bytes && got.segments == want.segments;
}

// Nothing is queued, lent, awaited or held any more.
inline void check_idle(End& end) {
  CHECK_FALSE(end.sender.pending());
  CHECK(end.sender.leases() == 0);
  CHECK(end.sender.leased_bytes() == 0);
  CHECK_FALSE(end.receiver.midway());
  CHECK(end.unfinished.empty());
  CHECK(end.held == 0);
}

}  // namespace tw::test

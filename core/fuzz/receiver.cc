// SPDX-License-Identifier: Apache-2.0
// The receiving half of the message machine: a peer's bytes, cut anywhere, get the same answer; no
// message takes more memory than its limit, and all of it comes back.
#include "message/receiver.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <string>

#include "base/text.h"
#include "fuzz/fuzz.h"
#include "wire/bytes.h"
#include "wire/one_sided_frames.h"

namespace tw {
namespace {

using fuzz::Bytes;
using fuzz::require;

constexpr uint64_t kWindow = 64 << 10;

// Everything the machine said, as text: two runs are compared by it.
class Record final : public Receiver::Sink {
 public:
  Status on_message(Ref<Parcel> parcel) override {
    const InMessage message = Parcel::open(std::move(parcel));
    note({"message", message.stream, message.payload_bytes, message.segments.size(),
          static_cast<uint64_t>(message.status.code())});
    content(message.header);
    if (message.status.ok()) {
      size_t bytes = 0;
      for (const InSegment& segment : message.segments) {
        require(segment.view() == nullptr, "nothing is mapped here");
        content({segment.data, segment.size});
        bytes += segment.size;
      }
      require(bytes == message.payload_bytes, "payload is the sum of its segments");
    } else {
      require(message.segments.empty(), "a refused message holds nothing");
      require(message.status.code() == Code::kResourceExhausted, "refused for its size");
      fuzz::require_sentence(message.status);
    }
    return {};
  }
  // A window so small that peers run into it.
  Result<Receiver::Cost> on_wait(uint64_t stream, std::span<const std::byte> header,
                                 uint64_t payload_bytes, const Receiver::Cost& ahead) override {
    note({"wait", stream, payload_bytes, ahead.credit, ahead.header_bytes});
    if (ahead.credit == 0 && ahead.header_bytes == 0) content(header);
    if (ahead.credit >= kWindow) return wire::protocol_error({"a message without credit"});
    return Receiver::Cost{payload_bytes + 1, header.size()};
  }
  Status on_fin(std::span<const uint64_t> ids) override {
    require(!ids.empty(), "a FIN has ids");
    for (const uint64_t id : ids) note({"fin", id});
    return {};
  }
  Status on_unmappable(uint64_t lease) override {
    note({"unmappable", lease});
    return {};
  }
  Status on_credit(uint64_t stream, uint64_t bytes) override {
    require(bytes != 0, "credit is not empty");
    note({"credit", stream, bytes});
    return {};
  }
  void on_go_away(Code code, std::string_view reason) override {
    note({"away", static_cast<uint64_t>(code)});
    content(std::as_bytes(std::span(reason)));
  }
  Result<InSegment> on_map(const wire::SegmentInfo&) override {
    return Status{Code::kInternal, "protocol error: there is no memory to map"};
  }
  Result<InSegment> on_return(const wire::SegmentInfo&) override {
    return Status{Code::kInternal, "protocol error: there is no such lease"};
  }

  Status on_region(const wire::Region& region) override {
    note({"region", region.id, region.length, region.rights});
    return {};
  }
  Status on_region_gone(uint64_t region) override {
    note({"region gone", region});
    return {};
  }
  Result<std::byte*> on_operation(const wire::OperationFrame& operation,
                                  std::span<const std::byte> here) override {
    note({"operation", operation.id, operation.region, operation.offset, operation.length});
    return place(wire::writes(operation.kind) ? operation.length : 0, here);
  }
  Result<std::byte*> on_outcome(const wire::OutcomeFrame& outcome,
                                std::span<const std::byte> here) override {
    note({"outcome", outcome.id, static_cast<uint64_t>(outcome.code)});
    return place(outcome.length, here);
  }
  Status on_placed(wire::FrameType type) override {
    note({"placed", static_cast<uint64_t>(type)});
    content(placed_);
    return {};
  }
  // Memory of exactly the size, so that a store past it is seen.
  std::byte* place(size_t length, std::span<const std::byte> here) {
    require(here.size() <= length, "no more comes than was announced");
    placed_.assign(length, std::byte{0});
    placed_.shrink_to_fit();
    std::copy(here.begin(), here.end(), placed_.begin());
    return placed_.data() + here.size();
  }

  void note(std::initializer_list<Piece> pieces) {
    for (const Piece& piece : pieces) {
      piece.append_to(text);
      text += ' ';
    }
    text += '\n';
  }
  void content(std::span<const std::byte> bytes) {
    text.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    text += '\n';
  }

  std::string text;

 private:
  Bytes placed_;
};

struct Run {
  std::string text;
  Status status;
};

// Reads end when there are no more bytes, in the order of their offers.
Run run(const Bytes& bytes, uint64_t max_message, fuzz::Input& pieces) {
  const auto pool = make_ref<Pool>(size_t{1} << 20);
  // No share of the arena, so that the pool's figures tell of all memory.
  const auto fetched = make_ref<ReceiveMemory>(make_ref<Arena>(0), pool, 0);
  Record record;
  Status status;
  {
    Receiver receiver(*pool, *fetched, max_message, record);
    size_t at = 0;
    while (status.ok() && at < bytes.size()) {
      std::array<iovec, 2> room;
      const size_t runs = receiver.buffers(room);
      require(runs >= 1 && runs <= 2, "one or two runs");
      size_t left = pieces.empty() ? SIZE_MAX : pieces.byte() + size_t{1};
      size_t moved = 0;
      for (size_t i = 0; i < runs; ++i) {
        require(room[i].iov_len != 0, "room is never empty");
        const size_t length = std::min({room[i].iov_len, left - moved, bytes.size() - at});
        std::memcpy(room[i].iov_base, bytes.data() + at, length);
        at += length;
        moved += length;
      }
      status = receiver.received(moved);
      // A MESSAGE frame has 32 bytes, and a segment 16 more, each at most its class above its size.
      require(
          pool->stats().used <= (at / 32 + 1) * Pool::class_size(Pool::class_of(max_message)) * 2,
          "memory in proportion to messages");
    }
    for (const Receiver::Read& read : receiver.take_reads()) {
      if (!status.ok()) break;
      require(read.from.length <= max_message || !read.destination, "nothing read for a refusal");
      if (read.destination) std::memset(read.destination, 7, read.from.length);
      status = receiver.read_done(read);
    }
  }
  require(pool->stats().used == 0, "all memory comes back");
  if (!status.ok()) {
    fuzz::require_sentence(status);
    require(status.code() == Code::kInternal, "the only error is a broken protocol");
    require(status.details().starts_with("protocol error: "), "and it says so");
  }
  return {std::move(record.text), std::move(status)};
}

template <class T>
void append(Bytes& out, const T& value) {
  const auto* at = reinterpret_cast<const std::byte*>(&value);
  out.insert(out.end(), at, at + sizeof value);
}

// A peer that mostly keeps to the protocol, and lies where the input says so. (Raw bytes seldom get
// past the first header.)
class Peer {
 public:
  explicit Peer(fuzz::Input& input) : input_(input) {}

  Bytes talk() {
    while (!input_.empty() && out_.size() < kEnough) {
      wire::FrameHeader header;
      Bytes body;
      const uint8_t what = input_.byte();
      if (what % 8 == 0 || begun_.empty()) {
        announce(header, body);
      } else if (what % 8 == 1) {
        control(header, body);
      } else {
        go_on(begun_[what / 8 % begun_.size()], header, body);
      }
      send(header, std::move(body));
    }
    return std::move(out_);
  }

 private:
  static constexpr size_t kEnough = size_t{8} << 20;
  struct Begun {
    uint64_t stream, message;
    std::vector<wire::SegmentInfo> segments;
    size_t segment = 0;
    uint64_t offset = 0;
  };

  uint64_t length() {
    const uint8_t shift = input_.byte() % 13;
    return uint64_t{input_.byte()} << shift;
  }

  void announce(wire::FrameHeader& header, Bytes& body) {
    Begun begun{1 + input_.byte() % 3u, ++number_, {}};
    uint64_t inlined = 0;
    const uint8_t segments = input_.byte() % 6;
    for (int i = 0; i < segments; ++i) {
      const uint8_t kind = input_.byte();
      wire::SegmentInfo info{length(), static_cast<wire::SegmentKind>(kind % 4), {}};
      if (kind == 255) info.kind = wire::SegmentKind::kMap;
      if (kind == 254) info.kind = wire::SegmentKind::kReturn;
      if (info.length == 0 && info.kind > wire::SegmentKind::kEager) info.length = 1;
      if (info.kind == wire::SegmentKind::kInline) inlined += info.length;
      begun.segments.push_back(info);
    }
    header.header_length = input_.byte() % 8;
    body.resize(wire::message_prefix_size(begun.segments));
    wire::encode_message_prefix(body.data(), begun.stream, begun.message, begun.segments,
                                header.header_length);
    body.erase(body.begin(), body.begin() + wire::kFrameHeaderSize);
    body.resize(body.size() + header.header_length + inlined, std::byte{3});
    header.type = wire::FrameType::kMessage;
    header.segment_count = segments;
    header.stream = begun.stream;
    header.message = begun.message;
    begun_.push_back(std::move(begun));
    advance(begun_.back());
  }

  // On to a segment that has bytes to come; forgets a message that is whole.
  void advance(Begun& begun) {
    const auto done = [](const wire::SegmentInfo& info) {
      return info.length == 0 || info.kind == wire::SegmentKind::kInline ||
             wire::described(info.kind);
    };
    while (begun.segment < begun.segments.size() && done(begun.segments[begun.segment]))
      ++begun.segment;
    if (begun.segment == begun.segments.size()) forget(begun);
  }

  void forget(Begun& begun) { begun_.erase(begun_.begin() + (&begun - begun_.data())); }

  void go_on(Begun& begun, wire::FrameHeader& header, Bytes& body) {
    header.stream = begun.stream;
    header.message = begun.message;
    const wire::SegmentInfo& info = begun.segments[begun.segment];
    header.first_segment = static_cast<uint32_t>(begun.segment);
    uint64_t bytes = std::min(std::max(length(), uint64_t{1}), info.length - begun.offset);
    if (info.kind == wire::SegmentKind::kEager) {
      header.type = wire::FrameType::kEager;
      header.segment_count = 1;
      body.resize(bytes = info.length, std::byte{4});
    } else if (info.kind == wire::SegmentKind::kPush) {
      header.type = wire::FrameType::kData;
      append(body, begun.offset);
      body.resize(body.size() + bytes, std::byte{5});
    } else {
      header.type = wire::FrameType::kRts;
      wire::ReadOffer offer;
      offer.length = bytes;
      offer.segment_offset = begun.offset;
      append(body, offer);
    }
    begun.offset += bytes;
    if (begun.offset != info.length) return;
    begun.offset = 0;
    ++begun.segment;
    advance(begun);
  }

  void control(wire::FrameHeader& header, Bytes& body) {
    switch (input_.byte() % 9) {
      case 4: {
        header.type = wire::FrameType::kRegion;
        append(body, wire::Region{input_.byte(), 1u + input_.byte(), 0, 0, input_.byte() % 8u});
        break;
      }
      case 5:
        header.type = wire::FrameType::kRegionGone;
        append(body, uint64_t{input_.byte()});
        break;
      case 6: {
        header.type = wire::FrameType::kOperation;
        wire::OperationFrame operation;
        operation.id = 1u + input_.byte();
        operation.kind = static_cast<wire::OperationKind>(input_.byte() % 5);
        operation.length = wire::updates(operation.kind) ? 8 : length();
        append(body, operation);
        if (wire::writes(operation.kind)) body.resize(body.size() + operation.length, std::byte{6});
        break;
      }
      case 7:
        header.type = wire::FrameType::kOutcome;
        append(body, uint64_t{input_.byte()});
        append(body, uint64_t{0});
        body.resize(body.size() + length(), std::byte{7});
        break;
      case 8:
        header.type = wire::FrameType::kUnmappable;
        append(body, uint64_t{input_.byte()});
        break;
      case 0:
        header.type = wire::FrameType::kFin;
        body = input_.take(8 * (1 + input_.byte() % 3u));
        break;
      case 1:
        header.type = wire::FrameType::kCredit;
        header.stream = input_.byte();
        append(body, uint64_t{input_.byte()});
        break;
      case 2:
        header.type = wire::FrameType::kGoAway;
        append(body, uint32_t{input_.byte()});
        break;
      default: {
        Begun& begun = begun_[input_.byte() % begun_.size()];
        header.type = wire::FrameType::kAbort;
        header.stream = begun.stream;
        header.message = begun.message;
        forget(begun);
      }
    }
  }

  void send(wire::FrameHeader header, Bytes body) {
    const uint8_t lie = input_.byte();
    const uint8_t by = lie >= 240 ? input_.byte() : 0;
    if (lie == 240) header.stream += by;
    if (lie == 241) header.message -= by;
    if (lie == 242) header.first_segment += by;
    if (lie == 243) header.segment_count = static_cast<uint16_t>(header.segment_count + by);
    if (lie == 244) header.type = static_cast<wire::FrameType>(by);
    if (lie == 245) body.resize(by);
    if (lie == 246 && !body.empty()) body[by % body.size()] ^= std::byte{1};
    header.body_length = static_cast<uint32_t>(body.size()) + (lie == 247 ? by : 0);
    append(out_, header);
    out_.insert(out_.end(), body.begin(), body.end());
  }

  fuzz::Input& input_;
  Bytes out_;
  uint64_t number_ = 0;
  std::vector<Begun> begun_;
};

void one(fuzz::Input input) {
  const uint64_t max_message = uint64_t{1} << input.byte() % 21;
  const bool raw = input.byte() % 4 == 0;
  const Bytes pieces = input.take(input.byte());
  const Bytes bytes = raw ? input.rest() : Peer(input).talk();

  fuzz::Input whole(nullptr, 0);
  fuzz::Input cut(reinterpret_cast<const uint8_t*>(pieces.data()), pieces.size());
  const Run first = run(bytes, max_message, whole);
  const Run second = run(bytes, max_message, cut);
  require(first.text == second.text, "the same events however the bytes are cut");
  require(first.status.details() == second.status.details(), "the same verdict, too");
}

}  // namespace
}  // namespace tw

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  tw::one({data, size});
  return 0;
}

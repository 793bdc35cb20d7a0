// SPDX-License-Identifier: Apache-2.0
// One-sided operations: whatever a peer sends about regions, nothing outside of what is exposed is
// touched, each operation gets one answer in its order, and each of ours ends once.
#include <algorithm>
#include <array>
#include <cstring>
#include <memory>

#include "access/initiator.h"
#include "access/target.h"
#include "fuzz/fuzz.h"
#include "memory/pool.h"
#include "message/receiver.h"
#include "wire/bytes.h"

namespace tw {
namespace {

using fuzz::Bytes;
using fuzz::require;

// Memory of exactly its size on the heap, so that an access outside of it is seen.
class Exposed final : public RefCounted {
 public:
  explicit Exposed(size_t bytes) : words_(new uint64_t[bytes / 8]()), size_(bytes) {}
  std::byte* data() { return reinterpret_cast<std::byte*>(words_.get()); }
  size_t size() const { return size_; }

 private:
  const std::unique_ptr<uint64_t[]> words_;
  const size_t size_;
};

class End final : public Receiver::Sink {
 public:
  End()
      : target_(out_), initiator_(out_, 64, false), receiver_(*pool_, *fetched_, 1 << 20, *this) {}

  void expose(size_t bytes, Rights rights) {
    auto memory = make_ref<Exposed>(bytes);
    wire::Region region;
    region.id = target_.next_region();
    region.length = bytes;
    region.rights = rights;
    target_.expose(make_ref<Grant>(region, memory->data(), memory));
  }
  void conceal(uint64_t region) {
    const bool inbound = target_.inbound() == region;
    const bool there = static_cast<bool>(target_.conceal(region));
    if (there && inbound && receiver_.placing()) receiver_.misplace();
  }
  void start(const AccessRequest& request) {
    auto memory = make_ref<Exposed>(aligned(request.length));
    AccessRequest wanted = request;
    wanted.local = memory->data();
    ++submitted_;
    auto started = initiator_.submit(wanted, memory, Notice(told_, 0));
    if (started) {
      initiator_.fill();
    } else {
      fuzz::require_sentence(started.status());
      --submitted_;
    }
  }
  // What has been asked of this end is answered in order; reads the frames that it sends.
  void drain(size_t most) {
    std::array<iovec, 8> runs;
    while (most != 0 && out_.pending()) {
      const size_t n = out_.gather(runs);
      require(n != 0, "what is pending can be gathered");
      size_t taken = 0;
      for (size_t i = 0; i < n && taken < most; ++i) {
        const size_t length = std::min(runs[i].iov_len, most - taken);
        const auto* at = static_cast<const std::byte*>(runs[i].iov_base);
        sent_.insert(sent_.end(), at, at + length);
        taken += length;
      }
      out_.sent(taken);
      most -= taken;
    }
  }
  Status receive(const Bytes& bytes, fuzz::Input& pieces) {
    for (size_t at = 0; at < bytes.size();) {
      std::array<iovec, 2> room;
      const size_t runs = receiver_.buffers(room);
      const size_t most = pieces.empty() ? SIZE_MAX : pieces.byte() + size_t{1};
      size_t moved = 0;
      for (size_t i = 0; i < runs; ++i) {
        const size_t length = std::min({room[i].iov_len, most - moved, bytes.size() - at});
        std::memcpy(room[i].iov_base, bytes.data() + at, length);
        at += length;
        moved += length;
      }
      if (Status status = receiver_.received(moved); !status.ok()) return status;
    }
    return {};
  }
  // Every frame this end has sent is one, and answers what was asked in its order.
  void finish() {
    drain(SIZE_MAX);
    size_t answers = 0;
    for (size_t at = 0; at != sent_.size();) {
      require(sent_.size() - at >= wire::kFrameHeaderSize, "whole frames");
      const auto header =
          wire::decode_frame_header(std::span<const std::byte, wire::kFrameHeaderSize>(
                                        sent_.data() + at, wire::kFrameHeaderSize),
                                    {});
      require(header.ok(), "good frames");
      at += wire::kFrameHeaderSize;
      require(sent_.size() - at >= header->body_length, "whole bodies");
      if (header->type == wire::FrameType::kOutcome) {
        const auto outcome =
            wire::decode_outcome_prefix(*header,
                                        std::span<const std::byte, wire::kOutcomePrefixSize>(
                                            sent_.data() + at, wire::kOutcomePrefixSize),
                                        {});
        require(outcome.ok(), "a good outcome");
        require(answers < asked_.size() && outcome->id == asked_[answers], "in order");
        ++answers;
      }
      at += header->body_length;
    }
    require(answers == asked_.size(), "one answer for each");
    initiator_.drop({Code::kUnavailable, "over"});
    auto ended = initiator_.take_ended();
    while (const auto access = ended.pop()) access->finish();
    std::vector<uint64_t> told(submitted_ + 1);
    size_t count = 0;
    (void)told_->take(told, count, 0);
    require(count == submitted_, "each of ours ended once");
    (void)target_.drop();
  }

  Status on_region(const wire::Region& region) override { return initiator_.on_region(region); }
  Status on_region_gone(uint64_t region) override { return initiator_.on_region_gone(region); }
  Result<std::byte*> on_operation(const wire::OperationFrame& operation,
                                  std::span<const std::byte> here) override {
    asking_ = operation.id;
    return target_.on_operation(operation, here);
  }
  Result<std::byte*> on_outcome(const wire::OutcomeFrame& outcome,
                                std::span<const std::byte> here) override {
    return initiator_.on_outcome(outcome, here);
  }
  Status on_placed(wire::FrameType type) override {
    if (type == wire::FrameType::kOutcome) return initiator_.outcome_arrived();
    asked_.push_back(asking_);
    target_.operation_arrived();
    return {};
  }
  static Status stray() { return wire::protocol_error({"a stray frame"}); }
  Status on_message(Ref<Parcel>) override { return stray(); }
  Result<Receiver::Cost> on_wait(uint64_t, std::span<const std::byte>, uint64_t,
                                 const Receiver::Cost&) override {
    return stray();
  }
  Status on_fin(std::span<const uint64_t>) override { return stray(); }
  Status on_unmappable(uint64_t) override { return stray(); }
  Status on_credit(uint64_t, uint64_t) override { return stray(); }
  void on_go_away(Code, std::string_view) override {}
  Result<InSegment> on_map(const wire::SegmentInfo&) override { return stray(); }
  Result<InSegment> on_return(const wire::SegmentInfo&) override { return stray(); }

 private:
  static size_t aligned(uint64_t length) { return (std::min<uint64_t>(length, 4096) + 15) / 8 * 8; }

  FrameQueue out_;
  Target target_;
  Initiator initiator_;
  const Ref<Pool> pool_ = make_ref<Pool>(size_t{1} << 20);
  const Ref<ReceiveMemory> fetched_ = make_ref<ReceiveMemory>(make_ref<Arena>(0), pool_, 0);
  Receiver receiver_;
  Bytes sent_;
  uint64_t asking_ = 0;
  std::vector<uint64_t> asked_;
  size_t submitted_ = 0;
  const Ref<EventQueue> told_ = make_ref<EventQueue>();
};

template <class T>
void append(Bytes& out, const T& value) {
  const auto* at = reinterpret_cast<const std::byte*>(&value);
  out.insert(out.end(), at, at + sizeof value);
}

uint64_t number(fuzz::Input& input) {
  const uint8_t what = input.byte();
  const uint64_t small = input.byte();
  if (what == 255) return UINT64_MAX - small;
  return what >= 250 ? small << 56 : small;
}

// A frame about regions, mostly of the right form.
Bytes frame(fuzz::Input& input) {
  wire::FrameHeader header;
  Bytes body;
  switch (input.byte() % 5) {
    case 0:
      header.type = wire::FrameType::kRegion;
      append(body, wire::Region{input.byte() % 4u, 1 + number(input), 0, 0, input.byte() % 8u});
      break;
    case 1:
      header.type = wire::FrameType::kRegionGone;
      append(body, uint64_t{input.byte() % 4u});
      break;
    case 2:
      header.type = wire::FrameType::kOutcome;
      append(body, uint64_t{input.byte() % 16u});
      append(body, uint64_t{input.byte() % 3u});
      body.resize(body.size() + input.byte(), std::byte{'x'});
      break;
    default: {
      header.type = wire::FrameType::kOperation;
      wire::OperationFrame operation;
      operation.id = 1u + input.byte();
      operation.region = input.byte() % 5u;
      operation.offset = number(input);
      operation.kind = static_cast<wire::OperationKind>(input.byte() % 5);
      operation.length = wire::updates(operation.kind) ? 8 : input.byte();
      if (wire::updates(operation.kind)) operation.operand = number(input);
      append(body, operation);
      if (wire::writes(operation.kind)) body.resize(body.size() + operation.length, std::byte{6});
    }
  }
  if (const uint8_t lie = input.byte(); lie >= 250 && !body.empty())
    body[lie % body.size()] ^= std::byte{1};
  header.body_length = static_cast<uint32_t>(body.size());
  Bytes out;
  append(out, header);
  out.insert(out.end(), body.begin(), body.end());
  return out;
}

void one(fuzz::Input input) {
  End end;
  for (Rights rights = 0; rights < 8; rights += 3) end.expose(8 * (1 + input.byte() % 16u), rights);
  const Bytes cuts = input.take(input.byte());
  fuzz::Input pieces(reinterpret_cast<const uint8_t*>(cuts.data()), cuts.size());
  while (!input.empty()) {
    switch (input.byte() % 8) {
      case 0:
        end.conceal(1 + input.byte() % 4u);
        break;
      case 1:
        end.drain(input.byte());
        break;
      case 2: {
        AccessRequest request;
        request.kind = static_cast<wire::OperationKind>(input.byte() % 5);
        request.region = input.byte() % 4u;
        request.offset = number(input);
        request.length = input.byte() * uint64_t{2};
        end.start(request);
        break;
      }
      default:
        if (const Status status = end.receive(frame(input), pieces); !status.ok()) {
          fuzz::require_sentence(status);
          require(status.code() == Code::kInternal, "the only error is a broken protocol");
          return;
        }
    }
  }
  end.finish();
}

}  // namespace
}  // namespace tw

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  tw::one({data, size});
  return 0;
}

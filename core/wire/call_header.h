// SPDX-License-Identifier: Apache-2.0
// The header of a message that belongs to a call: what the call layer says beside the segments.
// Most messages of a stream need the fixed part only.
//
//   CallFixed | method | details | initial metadata if INITIAL | trailing metadata if TRAILING
//   metadata: u32 count, then count times { u32 key length, u32 value length, key, value }
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <span>
#include <string_view>

#include "base/status.h"

namespace tw::wire {

namespace call_flag {
inline constexpr uint8_t kStart = 1;      // begins a call: a method is present
inline constexpr uint8_t kPayload = 2;    // the message's segments are a message of the user
inline constexpr uint8_t kEnd = 4;        // half-close by the client, status by the server
inline constexpr uint8_t kCancel = 8;     // the sender ends the call early; stands alone
inline constexpr uint8_t kInitial = 16;   // initial metadata is present
inline constexpr uint8_t kTrailing = 32;  // trailing metadata is present; only with END
inline constexpr uint8_t kAll = 63;
}  // namespace call_flag

inline constexpr size_t kCallFixedSize = 16;
inline constexpr size_t kMaxMethodLength = 4095;
inline constexpr size_t kMaxDetailsLength = 64 << 10;
inline constexpr size_t kMetadataEntryOverhead = 32;  // counted for each entry, as HTTP/2 does

struct CallLimits {
  // Keys, values and kMetadataEntryOverhead for each entry of one block.
  size_t max_metadata_bytes = 64 << 10;
};

struct MetadataEntry {
  std::string_view key;
  std::string_view value;

  bool operator==(const MetadataEntry&) const = default;
};

// A decoded metadata block: already validated, read in place.
class MetadataView {
 public:
  class Iterator {
   public:
    using iterator_category = std::input_iterator_tag;
    using value_type = MetadataEntry;
    using difference_type = std::ptrdiff_t;
    using pointer = const MetadataEntry*;
    using reference = MetadataEntry;

    Iterator() = default;
    explicit Iterator(const std::byte* at) : at_(at) {}
    MetadataEntry operator*() const;
    Iterator& operator++();
    Iterator operator++(int) {
      Iterator before = *this;
      ++*this;
      return before;
    }
    bool operator==(const Iterator&) const = default;

   private:
    const std::byte* at_ = nullptr;
  };

  MetadataView() = default;
  // `entries` are count well-formed entries, without the count before them.
  MetadataView(std::span<const std::byte> entries, uint32_t count)
      : entries_(entries), count_(count) {}

  size_t size() const { return count_; }
  bool empty() const { return count_ == 0; }
  Iterator begin() const { return Iterator(entries_.data()); }
  Iterator end() const { return Iterator(entries_.data() + entries_.size()); }

 private:
  std::span<const std::byte> entries_;
  uint32_t count_ = 0;
};

// The part that is the same for what is sent and what was received.
struct CallFields {
  uint8_t flags = 0;         // call_flag
  Code code = Code::kOk;     // with END (from the server) or CANCEL
  uint64_t timeout_ns = 0;   // with START: time that remains, 0 for no limit
  std::string_view method;   // with START: "/package.Service/Method"
  std::string_view details;  // with END or CANCEL; UTF-8

  bool has(uint8_t flag) const { return (flags & flag) != 0; }
};

struct CallHeader : CallFields {
  std::span<const MetadataEntry> initial;   // ignored unless INITIAL is set
  std::span<const MetadataEntry> trailing;  // ignored unless TRAILING is set
};

// Points into the bytes that were decoded.
struct CallHeaderView : CallFields {
  MetadataView initial;
  MetadataView trailing;
};

size_t call_header_size(const CallHeader& header);
// Writes call_header_size(header) bytes and returns the byte after them. The caller has checked
// what the user chose with check_method, check_details and check_metadata.
std::byte* encode_call_header(std::byte* out, const CallHeader& header);

// INTERNAL, "protocol error: ...", names the field. `bytes` is the whole message header.
Result<CallHeaderView> decode_call_header(std::span<const std::byte> bytes,
                                          const CallLimits& limits = {});

// The flags alone, of a message that is not all there yet: the rest of its header is decoded once
// it is handed up. INTERNAL as above, for the fixed part.
Result<uint8_t> decode_call_flags(std::span<const std::byte> bytes);

// The same rules for what a local user chose; INVALID_ARGUMENT. Metadata above the limit is
// RESOURCE_EXHAUSTED, as it is in gRPC.
Status check_method(std::string_view method);
Status check_details(std::string_view details);
Status check_metadata(std::span<const MetadataEntry> entries, const CallLimits& limits = {});

}  // namespace tw::wire

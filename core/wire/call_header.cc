// SPDX-License-Identifier: Apache-2.0
#include "wire/call_header.h"

#include <array>
#include <cassert>
#include <limits>

#include "wire/bytes.h"

namespace tw::wire {
namespace {

struct CallFixed {
  uint8_t flags;
  uint8_t code;
  uint16_t method_length;
  uint32_t details_length;
  uint64_t timeout_ns;
};
static_assert(sizeof(CallFixed) == kCallFixedSize && alignof(CallFixed) == 8);
static_assert(offsetof(CallFixed, flags) == 0);
static_assert(offsetof(CallFixed, code) == 1);
static_assert(offsetof(CallFixed, method_length) == 2);
static_assert(offsetof(CallFixed, details_length) == 4);
static_assert(offsetof(CallFixed, timeout_ns) == 8);

struct EntryLengths {
  uint32_t key;
  uint32_t value;
};
static_assert(sizeof(EntryLengths) == 8);

std::string_view as_text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

template <class... F>
[[gnu::cold, gnu::noinline]] Status bad(F&&... sentence) {
  return protocol_error({"call header: ", std::forward<F>(sentence)...});
}

// ---- rules for both ends: why not, or an empty string ----

constexpr std::array<bool, 256> key_characters() {
  std::array<bool, 256> legal{};
  for (const char c : std::string_view("abcdefghijklmnopqrstuvwxyz0123456789-_.")) {
    legal[static_cast<unsigned char>(c)] = true;
  }
  return legal;
}
constexpr std::array<bool, 256> kKeyCharacters = key_characters();

std::string_view key_fault(std::string_view key) {
  if (key.empty()) return "is empty";
  if (key.front() == ':') return "begins with ':', which is reserved";
  for (const char c : key) {
    if (!kKeyCharacters[static_cast<unsigned char>(c)]) {
      return "may hold lower-case letters, digits, '-', '_' and '.' only";
    }
  }
  return {};
}

std::string_view value_fault(std::string_view key, std::string_view value) {
  if (key.ends_with("-bin")) return {};
  for (const char c : value) {
    if (c < 0x20 || c > 0x7e)
      return "is not printable ASCII, which needs a key that ends in '-bin'";
  }
  return {};
}

std::string_view method_fault(std::string_view method) {
  if (method.size() > kMaxMethodLength) return "is longer than 4095 bytes";
  if (method.empty()) return "is empty";
  if (!is_utf8(method)) return "is not UTF-8";
  return {};
}

std::string_view details_fault(std::string_view details) {
  if (details.size() > kMaxDetailsLength) return "are longer than 65536 bytes";
  if (!is_utf8(details)) return "are not UTF-8";
  return {};
}

// ---- decoding ----

// Takes pieces off the front of the header. Never reads past its end.
class Cursor {
 public:
  explicit Cursor(std::span<const std::byte> bytes) : rest_(bytes) {}
  size_t left() const { return rest_.size(); }
  const std::byte* at() const { return rest_.data(); }
  bool take(size_t length, std::span<const std::byte>& out) {
    if (length > rest_.size()) return false;
    out = rest_.first(length);
    rest_ = rest_.subspan(length);
    return true;
  }

 private:
  std::span<const std::byte> rest_;
};

Status check_flags(const CallFixed& f) {
  using namespace call_flag;
  const auto has = [&](uint8_t flag) { return (f.flags & flag) != 0; };
  if ((f.flags & ~kAll) != 0) return bad("flags are ", f.flags, ", with bits that are not defined");
  if (f.flags == 0) return bad("flags are 0: it says nothing");
  if (has(kCancel) && f.flags != kCancel)
    return bad("flags are ", f.flags, ": CANCEL stands alone");
  if (has(kTrailing) && !has(kEnd)) return bad("flags are ", f.flags, ": TRAILING without END");
  const bool ends = has(kEnd) || has(kCancel);
  if (f.code > kHighestCode) return bad("code is ", f.code, ", no gRPC status code");
  if (f.code != 0 && !ends) return bad("code is ", f.code, " without END or CANCEL");
  if (f.details_length != 0 && !ends) {
    return bad("details_length is ", f.details_length, " without END or CANCEL");
  }
  if ((f.method_length != 0) != has(kStart)) {
    return bad("method_length is ", f.method_length,
               has(kStart) ? " with START" : " without START");
  }
  if (f.timeout_ns != 0 && !has(kStart))
    return bad("timeout_ns is ", f.timeout_ns, " without START");
  if (f.timeout_ns > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
    return bad("timeout_ns is ", f.timeout_ns, ", above 2^63 - 1");
  }
  return {};
}

Status take_fixed(Cursor& from, CallFixed& out) {
  const size_t length = from.left();
  std::span<const std::byte> piece;
  if (!from.take(kCallFixedSize, piece))
    return bad("length is ", length, ", below ", kCallFixedSize);
  out = load<CallFixed>(piece.data());
  return check_flags(out);
}

Status take_metadata(Cursor& from, std::string_view which, const CallLimits& limits,
                     MetadataView& out) {
  std::span<const std::byte> piece;
  if (!from.take(sizeof(uint32_t), piece)) return bad(which, " metadata: the count is cut off");
  const auto count = load<uint32_t>(piece.data());
  const std::byte* const first = from.at();
  uint64_t spent = 0;
  for (uint32_t i = 0; i < count; ++i) {
    if (!from.take(sizeof(EntryLengths), piece)) {
      return bad(which, " metadata: count is ", count, ", but entry ", i, " is cut off");
    }
    const auto lengths = load<EntryLengths>(piece.data());
    const uint64_t cost = uint64_t{lengths.key} + lengths.value + kMetadataEntryOverhead;
    if (!add_within(spent, cost, limits.max_metadata_bytes)) {
      return bad(which, " metadata: entry ", i, " with key_length ", lengths.key,
                 " and value_length ", lengths.value, " exceeds the limit of ",
                 limits.max_metadata_bytes, " bytes");
    }
    if (!from.take(lengths.key, piece)) {
      return bad(which, " metadata: entry ", i, ": key_length is ", lengths.key, ", but ",
                 from.left(), " bytes are left");
    }
    const std::string_view key = as_text(piece);
    if (!from.take(lengths.value, piece)) {
      return bad(which, " metadata: entry ", i, ": value_length is ", lengths.value, ", but ",
                 from.left(), " bytes are left");
    }
    if (const auto fault = key_fault(key); !fault.empty()) {
      return bad(which, " metadata: key ", quoted(key), " ", fault);
    }
    if (const auto fault = value_fault(key, as_text(piece)); !fault.empty()) {
      return bad(which, " metadata: the value of ", quoted(key), " ", fault);
    }
  }
  out = MetadataView({first, static_cast<size_t>(from.at() - first)}, count);
  return {};
}

Status take_text(Cursor& from, std::string_view field, size_t length,
                 std::string_view (*fault_of)(std::string_view), std::string_view& out) {
  std::span<const std::byte> piece;
  if (!from.take(length, piece)) {
    return bad(field, "_length is ", length, ", but ", from.left(), " bytes are left");
  }
  out = as_text(piece);
  if (const auto fault = fault_of(out); !fault.empty()) {
    return bad(field, " ", quoted(out), " ", fault);
  }
  return {};
}

// ---- encoding ----

size_t metadata_size(std::span<const MetadataEntry> entries) {
  size_t size = sizeof(uint32_t);
  for (const auto& [key, value] : entries) size += sizeof(EntryLengths) + key.size() + value.size();
  return size;
}

std::byte* store_text(std::byte* out, std::string_view text) {
  return store_bytes(out, text.data(), text.size());
}

std::byte* store_metadata(std::byte* out, std::span<const MetadataEntry> entries) {
  out = store(out, static_cast<uint32_t>(entries.size()));
  for (const auto& [key, value] : entries) {
    out = store(
        out, EntryLengths{static_cast<uint32_t>(key.size()), static_cast<uint32_t>(value.size())});
    out = store_text(store_text(out, key), value);
  }
  return out;
}

}  // namespace

MetadataEntry MetadataView::Iterator::operator*() const {
  const auto lengths = load<EntryLengths>(at_);
  const auto* key = reinterpret_cast<const char*>(at_ + sizeof lengths);
  return {{key, lengths.key}, {key + lengths.key, lengths.value}};
}

MetadataView::Iterator& MetadataView::Iterator::operator++() {
  const auto lengths = load<EntryLengths>(at_);
  at_ += sizeof lengths + lengths.key + lengths.value;
  return *this;
}

size_t call_header_size(const CallHeader& header) {
  size_t size = kCallFixedSize + header.method.size() + header.details.size();
  if (header.has(call_flag::kInitial)) size += metadata_size(header.initial);
  if (header.has(call_flag::kTrailing)) size += metadata_size(header.trailing);
  return size;
}

std::byte* encode_call_header(std::byte* out, const CallHeader& header) {
  assert(header.method.size() <= kMaxMethodLength && header.details.size() <= kMaxDetailsLength);
  out = store(out, CallFixed{header.flags, static_cast<uint8_t>(header.code),
                             static_cast<uint16_t>(header.method.size()),
                             static_cast<uint32_t>(header.details.size()), header.timeout_ns});
  out = store_text(store_text(out, header.method), header.details);
  if (header.has(call_flag::kInitial)) out = store_metadata(out, header.initial);
  if (header.has(call_flag::kTrailing)) out = store_metadata(out, header.trailing);
  return out;
}

Result<CallHeaderView> decode_call_header(std::span<const std::byte> bytes,
                                          const CallLimits& limits) {
  Cursor from(bytes);
  CallFixed fixed;
  if (Status s = take_fixed(from, fixed); !s.ok()) return s;
  CallHeaderView view;
  view.flags = fixed.flags;
  view.code = static_cast<Code>(fixed.code);
  view.timeout_ns = fixed.timeout_ns;
  if (fixed.method_length != 0) {
    Status s = take_text(from, "method", fixed.method_length, method_fault, view.method);
    if (!s.ok()) return s;
  }
  if (fixed.details_length != 0) {
    Status s = take_text(from, "details", fixed.details_length, details_fault, view.details);
    if (!s.ok()) return s;
  }
  if (view.has(call_flag::kInitial)) {
    Status s = take_metadata(from, "initial", limits, view.initial);
    if (!s.ok()) return s;
  }
  if (view.has(call_flag::kTrailing)) {
    Status s = take_metadata(from, "trailing", limits, view.trailing);
    if (!s.ok()) return s;
  }
  if (from.left() != 0)
    return bad("length is ", bytes.size(), ", ", from.left(), " bytes too long");
  return view;
}

Result<uint8_t> decode_call_flags(std::span<const std::byte> bytes) {
  Cursor from(bytes);
  CallFixed fixed;
  if (Status s = take_fixed(from, fixed); !s.ok()) return s;
  return fixed.flags;
}

Status check_method(std::string_view method) {
  const auto fault = method_fault(method);
  if (fault.empty()) return {};
  return {Code::kInvalidArgument, text({"the method ", quoted(method), " ", fault})};
}

Status check_details(std::string_view details) {
  const auto fault = details_fault(details);
  if (fault.empty()) return {};
  return {Code::kInvalidArgument, text({"the details of the status ", fault})};
}

Status check_metadata(std::span<const MetadataEntry> entries, const CallLimits& limits) {
  uint64_t spent = 0;
  for (const auto& [key, value] : entries) {
    if (const auto fault = key_fault(key); !fault.empty()) {
      return {Code::kInvalidArgument, text({"the metadata key ", quoted(key), " ", fault})};
    }
    if (const auto fault = value_fault(key, value); !fault.empty()) {
      return {Code::kInvalidArgument, text({"the metadata value of ", quoted(key), " ", fault})};
    }
    if (!add_within(spent, key.size(), limits.max_metadata_bytes) ||
        !add_within(spent, value.size(), limits.max_metadata_bytes) ||
        !add_within(spent, kMetadataEntryOverhead, limits.max_metadata_bytes)) {
      return {Code::kResourceExhausted,
              text({"the metadata exceed the limit of ", limits.max_metadata_bytes, " bytes at ",
                    quoted(key)})};
    }
  }
  return {};
}

}  // namespace tw::wire

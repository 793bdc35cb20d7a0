// SPDX-License-Identifier: Apache-2.0
// Call headers: what decodes is within the limits, passes the sender's checks, and encodes to the
// same bytes again.
#include "wire/call_header.h"

#include "fuzz/fuzz.h"

namespace tw::wire {
namespace {

using fuzz::Bytes;
using fuzz::require;

std::vector<MetadataEntry> list(const MetadataView& view, const CallLimits& limits) {
  std::vector<MetadataEntry> out(view.begin(), view.end());
  size_t spent = 0;
  require(out.size() == view.size(), "as many entries as were counted");
  for (const auto& [key, value] : out) spent += key.size() + value.size() + kMetadataEntryOverhead;
  require(spent <= limits.max_metadata_bytes, "metadata within the limit");
  require(check_metadata(out, limits).ok(), "both ends judge metadata alike");
  return out;
}

void one(fuzz::Input input) {
  CallLimits limits;
  if ((input.byte() & 1) != 0) limits.max_metadata_bytes = input.byte();
  const Bytes bytes = input.rest();
  const auto view = decode_call_header(bytes, limits);
  const auto flags = decode_call_flags(bytes);
  if (!flags.ok()) {
    require(!view.ok(), "a header is no better than its fixed part");
    fuzz::require_sentence(flags.status());
  }
  if (!view.ok()) return fuzz::require_sentence(view.status());
  require(*flags == view->flags, "the flags alone are those of the header");

  const auto initial = list(view->initial, limits);
  const auto trailing = list(view->trailing, limits);
  if (view->has(call_flag::kStart)) {
    require(check_method(view->method).ok(), "both ends judge methods alike");
  }
  require(check_details(view->details).ok(), "both ends judge details alike");

  CallHeader header{static_cast<const CallFields&>(*view), initial, trailing};
  Bytes out(call_header_size(header));
  require(encode_call_header(out.data(), header) == out.data() + out.size(), "size as promised");
  require(out == bytes, "what was decoded encodes to the same bytes");
}

}  // namespace
}  // namespace tw::wire

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  tw::wire::one({data, size});
  return 0;
}

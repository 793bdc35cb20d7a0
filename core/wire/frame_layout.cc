// SPDX-License-Identifier: Apache-2.0
#include "wire/frame_layout.h"

namespace tw::wire {
namespace {

std::string_view name(FrameType type) {
  switch (type) {
    case FrameType::kMessage:
      return "MESSAGE";
    case FrameType::kEager:
      return "EAGER";
    case FrameType::kData:
      return "DATA";
    case FrameType::kRts:
      return "RTS";
    case FrameType::kFin:
      return "FIN";
    case FrameType::kCredit:
      return "CREDIT";
    case FrameType::kAbort:
      return "ABORT";
    case FrameType::kGoAway:
      return "GOAWAY";
    case FrameType::kRegion:
      return "REGION";
    case FrameType::kRegionGone:
      return "REGION_GONE";
    case FrameType::kOperation:
      return "OPERATION";
    case FrameType::kOutcome:
      return "OUTCOME";
    case FrameType::kUnmappable:
      return "UNMAPPABLE";
  }
  return "";
}

}  // namespace

Status bad(FrameType type, std::string_view field, uint64_t value,
           std::initializer_list<Piece> why) {
  return protocol_error({name(type), " frame: ", field, " is ", value, ", ", text(why)});
}

Status check_size(const FrameHeader& h, FrameType type, size_t size) {
  if (h.type == type && h.body_length == size) return {};
  return {Code::kInternal, text({"local error: ", size, " bytes given as the body of a ",
                                 name(h.type), " frame of ", h.body_length})};
}

}  // namespace tw::wire

// SPDX-License-Identifier: Apache-2.0
#include "wire.h"

#include <cstring>

namespace tensorwire {
namespace wire {
namespace {

constexpr uint64_t kLengthDelimited = 2;
constexpr uint64_t tag_of(Field field) {
  return static_cast<uint64_t>(field) << 3 | kLengthDelimited;
}

void put_varint(std::string* out, uint64_t value) {
  for (; value > 127; value >>= 7) out->push_back(static_cast<char>(value | 128));
  out->push_back(static_cast<char>(value));
}

bool take_varint(std::string_view* bytes, uint64_t* value) {
  *value = 0;
  for (int shift = 0; shift < 64 && !bytes->empty(); shift += 7) {
    const auto byte = static_cast<uint8_t>(bytes->front());
    bytes->remove_prefix(1);
    *value |= uint64_t{byte & 127u} << shift;
    if (byte < 128) return true;
  }
  return false;
}

// The structs of this file are copied to and from the wire as they are.
static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the wire is little-endian");

template <class Struct>
std::string_view bytes_of(const Struct& from) {
  return {reinterpret_cast<const char*>(&from), sizeof from};
}

template <class Struct>
bool take(std::string_view* bytes, Struct* out) {
  if (bytes->size() < sizeof *out) return false;
  std::memcpy(out, bytes->data(), sizeof *out);
  bytes->remove_prefix(sizeof *out);
  return true;
}

struct RequestPrefix {
  int64_t step;
  uint64_t incarnation;
  uint32_t key_size;
  uint32_t device_size;
};
static_assert(sizeof(RequestPrefix) == 24);

struct MeetingPrefix {
  uint32_t kind;
  uint32_t rank;
  uint32_t size;
  uint32_t key_size;
  uint32_t value_size;
  uint32_t zero;
  uint64_t session;
};
static_assert(sizeof(MeetingPrefix) == 32);

struct TurnFrame {
  uint32_t kind;
  uint32_t zero;
  uint64_t ticket;
  uint64_t key[2];
};
static_assert(sizeof(TurnFrame) == kTurnSize);

struct HeadPrefix {
  uint32_t dtype;
  uint8_t form;
  uint8_t dead;
  uint16_t rank;
};
static_assert(sizeof(HeadPrefix) == 8);

struct PlanPrefix {
  uint32_t kind;
  uint32_t edge;
  int64_t step;
  uint64_t size;
};
static_assert(sizeof(PlanPrefix) == kPlanPrefix);

}  // namespace

std::string encode_field(Field field, std::string_view value) {
  std::string out;
  put_varint(&out, tag_of(field));
  put_varint(&out, value.size());
  return out.append(value);
}

bool decode_field(Field field, std::string_view message, std::string_view* value) {
  bool found = false;
  uint64_t tag, size;
  while (take_varint(&message, &tag)) {
    switch (tag & 7) {
      case 0:
        if (!take_varint(&message, &size)) return found;
        continue;
      case 1:
        size = 8;
        break;
      case 5:
        size = 4;
        break;
      case kLengthDelimited:
        if (!take_varint(&message, &size)) return found;
        break;
      default:  // groups: TensorFlow has none
        return found;
    }
    if (size > message.size()) return found;
    if (tag == tag_of(field)) {
      *value = message.substr(0, size);
      found = true;
    }
    message.remove_prefix(size);
  }
  return found;
}

std::string encode_request(const Request& request) {
  const RequestPrefix prefix{request.step, request.incarnation,
                             static_cast<uint32_t>(request.key.size()),
                             static_cast<uint32_t>(request.device.size())};
  return std::string(bytes_of(prefix)).append(request.key).append(request.device);
}

std::string decode_request(std::string_view bytes, Request* out) {
  RequestPrefix prefix;
  if (bytes.size() > kMaxRequest) return "a request of " + std::to_string(bytes.size()) + " bytes";
  if (!take(&bytes, &prefix)) return "the request is cut short";
  if (prefix.key_size > bytes.size() || bytes.size() - prefix.key_size != prefix.device_size)
    return "the request's names do not fill it";
  out->step = prefix.step;
  out->incarnation = prefix.incarnation;
  out->key = bytes.substr(0, prefix.key_size);
  out->device = bytes.substr(prefix.key_size);
  return {};
}

std::string encode_meeting_request(const MeetingRequest& request) {
  const MeetingPrefix prefix{static_cast<uint32_t>(request.kind),
                             request.rank,
                             request.size,
                             static_cast<uint32_t>(request.key.size()),
                             static_cast<uint32_t>(request.value.size()),
                             0,
                             request.session};
  return std::string(bytes_of(prefix)).append(request.key).append(request.value);
}

std::string decode_meeting_request(std::string_view bytes, MeetingRequest* out) {
  MeetingPrefix prefix;
  if (bytes.size() > kMaxRequest) return "a request of " + std::to_string(bytes.size()) + " bytes";
  if (!take(&bytes, &prefix)) return "the request is cut short";
  if (prefix.kind > static_cast<uint32_t>(Meeting::kJoined))
    return "a request of kind " + std::to_string(prefix.kind);
  if (prefix.rank >= prefix.size || prefix.zero != 0)
    return "rank " + std::to_string(prefix.rank) + " of " + std::to_string(prefix.size);
  if (prefix.key_size > bytes.size() || bytes.size() - prefix.key_size != prefix.value_size)
    return "the request's key and value do not fill it";
  out->kind = static_cast<Meeting>(prefix.kind);
  out->rank = prefix.rank;
  out->size = prefix.size;
  out->session = prefix.session;
  out->key = bytes.substr(0, prefix.key_size);
  out->value = bytes.substr(prefix.key_size);
  return {};
}

std::string encode_session(uint64_t session) { return std::string(bytes_of(session)); }

std::string decode_session(std::string_view bytes, uint64_t* out) {
  if (bytes.size() != sizeof *out) return "a session of " + std::to_string(bytes.size()) + " bytes";
  take(&bytes, out);
  return {};
}

std::array<char, kTurnSize> encode_turn(const Turn& turn) {
  const TurnFrame frame{
      static_cast<uint32_t>(turn.kind), 0, turn.ticket, {turn.key[0], turn.key[1]}};
  std::array<char, kTurnSize> out;
  std::memcpy(out.data(), &frame, sizeof frame);
  return out;
}

std::string decode_turn(std::string_view bytes, Turn* out) {
  TurnFrame frame;
  if (bytes.size() != sizeof frame) return "a turn of " + std::to_string(bytes.size()) + " bytes";
  take(&bytes, &frame);
  if (frame.kind > static_cast<uint32_t>(TurnKind::kRun) || frame.zero != 0)
    return "a turn of kind " + std::to_string(frame.kind);
  out->kind = static_cast<TurnKind>(frame.kind);
  out->ticket = frame.ticket;
  out->key = {frame.key[0], frame.key[1]};
  return {};
}

std::string encode_head(const Head& head) {
  const HeadPrefix prefix{head.dtype, static_cast<uint8_t>(head.form), head.dead, head.rank};
  std::string out(bytes_of(prefix));
  return out.append(reinterpret_cast<const char*>(head.sizes.data()), head.rank * sizeof(int64_t));
}

std::string decode_head(std::string_view bytes, Head* out) {
  HeadPrefix prefix;
  if (!take(&bytes, &prefix)) return "its head is cut short";
  if (prefix.form > static_cast<uint8_t>(Form::kPushed))
    return "form " + std::to_string(prefix.form) + " is unknown";
  if (prefix.dead > 1) return "dead is " + std::to_string(prefix.dead);
  if (prefix.rank > kMaxRank) return "rank " + std::to_string(prefix.rank);
  if (bytes.size() != prefix.rank * sizeof(int64_t)) return "its rank is not that of its shape";
  out->form = static_cast<Form>(prefix.form);
  out->dead = prefix.dead != 0;
  out->dtype = prefix.dtype;
  out->rank = prefix.rank;
  out->elements = 1;
  if (out->form != Form::kRaw && (prefix.dtype != 0 || prefix.rank != 0))
    return "a tensor of form " + std::to_string(prefix.form) + " with a type or a shape";
  if (!bytes.empty()) std::memcpy(out->sizes.data(), bytes.data(), bytes.size());
  for (size_t i = 0; i < prefix.rank; ++i) {
    const int64_t size = out->sizes[i];
    if (size < 0) return "a dimension of " + std::to_string(size);
    int64_t product;
    if (__builtin_mul_overflow(static_cast<int64_t>(out->elements), size, &product))
      return "a shape of 2^63 elements or more";
    out->elements = static_cast<uint64_t>(product);
  }
  return {};
}

std::array<char, kPlanPrefix> encode_plan_prefix(const PlanRecord& record) {
  const PlanPrefix prefix{static_cast<uint32_t>(record.kind), record.edge, record.step,
                          record.payload.size()};
  std::array<char, kPlanPrefix> out;
  std::memcpy(out.data(), &prefix, sizeof prefix);
  return out;
}

std::string decode_plan_record(std::string_view* bytes, PlanRecord* out) {
  PlanPrefix prefix;
  if (!take(bytes, &prefix)) return "a record of the plan is cut short";
  if (prefix.kind > static_cast<uint32_t>(PlanKind::kDead))
    return "a record of kind " + std::to_string(prefix.kind);
  out->kind = static_cast<PlanKind>(prefix.kind);
  if (prefix.size != 0 && out->kind != PlanKind::kWant && out->kind != PlanKind::kTensor)
    return "a record of kind " + std::to_string(prefix.kind) + " with a payload";
  if (prefix.size > bytes->size()) return "a record's payload is cut short";
  out->edge = prefix.edge;
  out->step = prefix.step;
  out->payload = bytes->substr(0, prefix.size);
  bytes->remove_prefix(prefix.size);
  return {};
}

std::string encode_edge(const Edge& edge) { return encode_head(edge.head).append(edge.key); }

std::string decode_edge(std::string_view bytes, Edge* out) {
  HeadPrefix prefix;
  std::string_view rest = bytes;
  if (!take(&rest, &prefix)) return "an edge is cut short";
  const size_t head = sizeof prefix + prefix.rank * sizeof(int64_t);
  if (prefix.rank > kMaxRank || head >= bytes.size()) return "an edge without a key";
  if (std::string why = decode_head(bytes.substr(0, head), &out->head); !why.empty()) return why;
  if (out->head.form != Form::kRaw || out->head.dead) return "an edge of tensors without bytes";
  out->key = bytes.substr(head);
  return {};
}

namespace {

constexpr size_t kMostDetails = 4000;

// Bytes of the character that the text begins with; 0: it is none.
size_t character(std::string_view text) {
  const auto at = [text](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = at(0);
  if (lead < 0x80) return 1;
  if (lead < 0xc2 || lead > 0xf4) return 0;
  const size_t size = lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
  if (text.size() < size) return 0;
  for (size_t i = 1; i < size; ++i)
    if ((at(i) & 0xc0) != 0x80) return 0;
  // Overlong, a surrogate, or beyond U+10FFFF.
  const bool wrong = (lead == 0xe0 && at(1) < 0xa0) || (lead == 0xed && at(1) > 0x9f) ||
                     (lead == 0xf0 && at(1) < 0x90) || (lead == 0xf4 && at(1) > 0x8f);
  return wrong ? 0 : size;
}

}  // namespace

std::string encode_details(std::string_view details) {
  std::string encoded;
  encoded.reserve(std::min(details.size(), kMostDetails));
  while (!details.empty()) {
    const size_t size = character(details);
    if (encoded.size() + std::max<size_t>(size, 1) > kMostDetails) break;
    if (size == 0)
      encoded += '?';
    else
      encoded.append(details.substr(0, size));
    details.remove_prefix(std::max<size_t>(size, 1));
  }
  return encoded;
}

std::string encode_error_payload(std::string_view type, std::string_view value) {
  return std::string(type).append(1, '\0').append(value);
}

bool decode_error_payload(std::string_view bytes, std::string_view* type, std::string_view* value) {
  const size_t end = bytes.find('\0');
  if (end == bytes.npos) return false;
  *type = bytes.substr(0, end);
  *value = bytes.substr(end + 1);
  return true;
}

}  // namespace wire
}  // namespace tensorwire

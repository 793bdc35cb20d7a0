// SPDX-License-Identifier: Apache-2.0
// What workers with the plugin say to each other inside TensorFlow's messages and in calls of the
// runtime, as bytes. The plugin decodes nothing that a peer chose but here; needs no TensorFlow.
//
// Who decodes says why the bytes are none, in a sentence; empty: they are good.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace tensorwire {
namespace wire {

// ---- a field of ours in a serialised protobuf message that does not know it ----

// Far from what TensorFlow numbers. They are part of the protocol.
enum class Field : uint32_t {
  kPeer = 29783,   // who a worker is, and what it offers
  kGroup = 29784,  // groups of collectives
};
std::string encode_field(Field field, std::string_view value);
// The last one, as protobuf takes it; a view of `message`. False: there is none.
bool decode_field(Field field, std::string_view message, std::string_view* value);

// ---- requests ----

struct Request {
  int64_t step = 0;
  uint64_t incarnation = 0;  // of the device, for a buffer only
  std::string key;
  std::string device;  // for a buffer only
};

// A longer one is refused.
inline constexpr size_t kMaxRequest = 1 << 20;
std::string encode_request(const Request& request);
std::string decode_request(std::string_view bytes, Request* out);

// ---- how the members of a group of collectives meet ----

enum class Meeting : uint32_t {
  kEnter = 0,   // key: the group's identity; value: the tasks of its members, a line each
  kSet = 1,     // what one member has for another one
  kGet = 2,     // waits for it
  kJoined = 3,  // value: why the member could not join; empty: it has
};

struct MeetingRequest {
  Meeting kind = Meeting::kEnter;
  uint32_t rank = 0;  // of who asks
  uint32_t size = 0;  // of the group; more than the rank
  uint64_t session = 0;
  std::string key;
  std::string value;
};

std::string encode_meeting_request(const MeetingRequest& request);
std::string decode_meeting_request(std::string_view bytes, MeetingRequest* out);

// What kEnter and kJoined are answered with. 0: the members leave the group's operations to
// TensorFlow's own algorithms.
std::string encode_session(uint64_t session);
std::string decode_session(std::string_view bytes, uint64_t* out);

// ---- in which order a group runs operations, by messages of one size ----

enum class TurnKind : uint32_t {
  kReady = 0,  // to the first member: an operation waits for its turn
  kRun = 1,    // from it: it is the operation's turn
};

struct Turn {
  TurnKind kind = TurnKind::kReady;
  uint64_t ticket = 0;            // numbers the operations of the member
  std::array<uint64_t, 2> key{};  // kReady only: what all members call the operation
};

inline constexpr size_t kTurnSize = 32;
std::array<char, kTurnSize> encode_turn(const Turn& turn);
std::string decode_turn(std::string_view bytes, Turn* out);

// ---- descriptions of tensors ----

// How the bytes of a tensor travel.
enum class Form : uint8_t {
  kRaw = 0,     // as they lie in memory
  kProto = 1,   // a serialised TensorProto: strings, variants, resources
  kPushed = 2,  // not here: on the stream of the plan
};

inline constexpr size_t kMaxRank = 254;  // TensorFlow's
inline constexpr size_t kMaxHead = 8 + kMaxRank * sizeof(int64_t);

struct Head {
  Form form = Form::kRaw;
  bool dead = false;
  // kRaw only:
  uint32_t dtype = 0;  // by TensorFlow's numbers, any
  uint16_t rank = 0;
  uint64_t elements = 1;                // the product of all sizes; decode_head sets it
  std::array<int64_t, kMaxRank> sizes;  // `rank` of them, none negative; the others are not set
};

std::string encode_head(const Head& head);
std::string decode_head(std::string_view bytes, Head* out);

// ---- what the ends of a plan's stream say to each other ----

enum class PlanKind : uint32_t {
  // The receiver of tensors says:
  kWant = 0,    // edge: from now on the name of what the payload, an edge, describes
  kUnwant = 1,  // edge
  kAbort = 2,   // step: nobody waits for its tensors any more
  // Their sender says:
  kAgreed = 3,     // edge: pushed from now on, in all steps that are not excluded
  kWithdrawn = 4,  // edge: never pushed again; its name is free
  kExcluded = 5,   // step: nothing of it is pushed from now on, all is asked for
  kEnded = 6,      // step: it is over
  kTensor = 7,     // edge, step; payload: the tensor's bytes
  kSegment = 8,    // edge, step; the bytes are the next segment of the message
  kDead = 9,       // edge, step
};

// The first segment of a message is records, one after the other.
struct PlanRecord {
  PlanKind kind = PlanKind::kWant;
  uint32_t edge = 0;
  int64_t step = 0;
  std::string_view payload;
};

inline constexpr size_t kPlanPrefix = 24;
// What goes ahead of the payload.
std::array<char, kPlanPrefix> encode_plan_prefix(const PlanRecord& record);
// Takes the first record off `bytes`, which are not empty. All but the payload is read once, so
// that `bytes` may be memory that the peer goes on to write.
std::string decode_plan_record(std::string_view* bytes, PlanRecord* out);

struct Edge {
  Head head;  // kRaw
  std::string key;
};
std::string encode_edge(const Edge& edge);
std::string decode_edge(std::string_view bytes, Edge* out);

// ---- errors ----

// Details of an error as the runtime takes them: not too long, and UTF-8. TensorFlow quotes its
// input, whatever bytes that has: what is no UTF-8 becomes a question mark, byte for byte.
std::string encode_details(std::string_view details);

// What an error carries beside its code and details.
std::string encode_error_payload(std::string_view type, std::string_view value);
// Views of `bytes`. False: it is none.
bool decode_error_payload(std::string_view bytes, std::string_view* type, std::string_view* value);

}  // namespace wire
}  // namespace tensorwire

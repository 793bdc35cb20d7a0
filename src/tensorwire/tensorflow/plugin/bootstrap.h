// SPDX-License-Identifier: Apache-2.0
// How two workers learn of each other's plugin: by fields that TensorFlow's GetStatus messages do
// not know, and that a worker without the plugin leaves unanswered. kPeer is a hello of the
// runtime, answered by a welcome; kGroup is empty, and its answer says that the worker joins
// groups.
//
// TensorFlow's gRPC is unauthenticated: whoever reaches a worker's port may run graphs on it, and
// may as well ask for an invitation here. The data plane adds no more trust and takes no less: an
// invitation admits one connection for half a minute, the listener for shared memory takes
// processes of the same user only, and nobody without an invitation gets past the handshake of the
// one for tcp.
#pragma once

#include <cstdint>
#include <string>

#include "wire.h"

namespace google {
namespace protobuf {
class MessageLite;
}
}  // namespace google

namespace tensorwire {

// For the answer to a GetStatus.
inline constexpr int64_t kGetStatusMs = 5000;

// Adds `value` as a field of ours to a message, or finds it there.
void add_field(google::protobuf::MessageLite* message, wire::Field field, const std::string& value);
bool find_field(const google::protobuf::MessageLite& message, wire::Field field,
                std::string* value);

}  // namespace tensorwire

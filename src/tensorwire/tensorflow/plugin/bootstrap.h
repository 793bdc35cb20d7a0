// SPDX-License-Identifier: Apache-2.0
// How two workers learn of each other's plugin: by a field that TensorFlow's GetStatus messages do
// not know, and that a worker without the plugin leaves unanswered. The request's field is a hello
// of the runtime, the answer's a welcome.
//
// TensorFlow's gRPC is unauthenticated: whoever reaches a worker's port may run graphs on it, and
// may as well ask for an invitation here. The data plane adds no more trust and takes no less: an
// invitation admits one connection for half a minute, the shared-memory door opens to processes of
// the same user only, and nobody without an invitation gets past the handshake of the tcp door.
#pragma once

#include <string>

namespace google {
namespace protobuf {
class MessageLite;
}
}  // namespace google

namespace tensorwire {

// Adds `value` as the field to a message, or finds it there.
void add_field(google::protobuf::MessageLite* message, const std::string& value);
bool find_field(const google::protobuf::MessageLite& message, std::string* value);

}  // namespace tensorwire

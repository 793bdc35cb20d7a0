// SPDX-License-Identifier: Apache-2.0
#include "bootstrap.h"

#include "google/protobuf/message_lite.h"

namespace tensorwire {

// Serialised bytes are written and read, because protobuf's own class for unknown fields cannot be
// linked to: its symbols are mangled differently by the compilers of TensorFlow and of the plugin.
void add_field(google::protobuf::MessageLite* message, wire::Field field,
               const std::string& value) {
  message->MergeFromString(wire::encode_field(field, value));
}

bool find_field(const google::protobuf::MessageLite& message, wire::Field field,
                std::string* value) {
  const std::string serialized = message.SerializeAsString();
  std::string_view found;
  if (!wire::decode_field(field, serialized, &found)) return false;
  *value = std::string(found);
  return true;
}

}  // namespace tensorwire

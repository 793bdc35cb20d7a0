// SPDX-License-Identifier: Apache-2.0
#include "bootstrap.h"

#include "absl/strings/str_cat.h"
#include "google/protobuf/message_lite.h"

namespace tensorwire {
namespace {

// Far from what TensorFlow numbers. It is part of the protocol, like the version in its value.
constexpr uint64_t kField = 29783;
constexpr uint64_t kLengthDelimited = 2;
constexpr char kVersion = 1;
constexpr size_t kMaxAddress = 512;
constexpr size_t kMaxAddresses = 32;

void put_varint(std::string* out, uint64_t value) {
  for (; value > 127; value >>= 7) out->push_back(static_cast<char>(value | 128));
  out->push_back(static_cast<char>(value));
}

bool take_varint(absl::string_view* bytes, uint64_t* value) {
  *value = 0;
  for (int shift = 0; shift < 64 && !bytes->empty(); shift += 7) {
    const auto byte = static_cast<uint8_t>(bytes->front());
    bytes->remove_prefix(1);
    *value |= uint64_t{byte & 127u} << shift;
    if (byte < 128) return true;
  }
  return false;
}

bool take(absl::string_view* bytes, size_t size, std::string* out) {
  if (bytes->size() < size) return false;
  *out = std::string(bytes->substr(0, size));
  bytes->remove_prefix(size);
  return true;
}

absl::Status wrong_version() {
  return absl::FailedPreconditionError(
      "the peer's tensorwire speaks another version of the bootstrap: install the same version "
      "of tensorwire everywhere");
}

}  // namespace

// Wire bytes are written and read here, because protobuf's own class for unknown fields cannot be
// linked to: its symbols are mangled differently by the compilers of TensorFlow and of the plugin.
void add_field(google::protobuf::MessageLite* message, const std::string& value) {
  std::string bytes;
  put_varint(&bytes, kField << 3 | kLengthDelimited);
  put_varint(&bytes, value.size());
  bytes += value;
  message->MergeFromString(bytes);
}

bool find_field(const google::protobuf::MessageLite& message, std::string* value) {
  const std::string serialized = message.SerializeAsString();
  absl::string_view bytes = serialized;
  bool found = false;
  uint64_t tag, size;
  while (take_varint(&bytes, &tag)) {
    switch (tag & 7) {
      case 0:
        if (!take_varint(&bytes, &size)) return found;
        continue;
      case 1:
        size = 8;
        break;
      case 5:
        size = 4;
        break;
      case kLengthDelimited:
        if (!take_varint(&bytes, &size)) return found;
        break;
      default:  // groups: TensorFlow has none
        return found;
    }
    if (size > bytes.size()) return found;
    if (tag == (kField << 3 | kLengthDelimited)) {
      *value = std::string(bytes.substr(0, size));
      found = true;
    }
    bytes.remove_prefix(size);
  }
  return found;
}

absl::Status make_greeting(std::string* out) {
  uint8_t hello[TW_HELLO_SIZE];
  tw_status status{};
  if (core().hello(hello, &status) != TW_OK) return status_of(status);
  *out = absl::StrCat(absl::string_view(&kVersion, 1),
                      absl::string_view(reinterpret_cast<const char*>(hello), sizeof hello));
  return absl::OkStatus();
}

absl::Status read_greeting(const std::string& greeting, std::string* hello) {
  if (greeting.empty() || greeting[0] != kVersion) return wrong_version();
  if (greeting.size() != 1 + TW_HELLO_SIZE)
    return absl::InvalidArgumentError("the greeting is of the wrong size");
  *hello = greeting.substr(1);
  return absl::OkStatus();
}

std::string encode_welcome(const Welcome& welcome) {
  std::string out = absl::StrCat(absl::string_view(&kVersion, 1), welcome.session, welcome.secret,
                                 welcome.instance, welcome.hello);
  for (const std::string& address : welcome.addresses) {
    put_varint(&out, address.size());
    out += address;
  }
  return out;
}

absl::Status decode_welcome(const std::string& from, Welcome* out) {
  absl::string_view bytes = from;
  if (bytes.empty() || bytes.front() != kVersion) return wrong_version();
  bytes.remove_prefix(1);
  const absl::Status short_one = absl::InvalidArgumentError("the peer's welcome is cut short");
  if (!take(&bytes, TW_SESSION_SIZE, &out->session) ||
      !take(&bytes, TW_SECRET_SIZE, &out->secret) ||
      !take(&bytes, TW_INSTANCE_SIZE, &out->instance) || !take(&bytes, TW_HELLO_SIZE, &out->hello))
    return short_one;
  while (!bytes.empty()) {
    uint64_t size;
    std::string address;
    if (!take_varint(&bytes, &size) || size > kMaxAddress || !take(&bytes, size, &address))
      return short_one;
    if (out->addresses.size() == kMaxAddresses)
      return absl::InvalidArgumentError("the peer's welcome has too many addresses");
    out->addresses.push_back(std::move(address));
  }
  return absl::OkStatus();
}

}  // namespace tensorwire

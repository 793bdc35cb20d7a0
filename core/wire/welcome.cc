// SPDX-License-Identifier: Apache-2.0
#include "wire/welcome.h"

#include "wire/bytes.h"

namespace tw::wire {
namespace {

struct WelcomeFixed {
  uint16_t version = kWelcomeVersion;
  uint16_t addresses = 0;
  uint32_t zero = 0;
  Hello hello;
  InstanceId instance{};
  SessionId session{};
  std::array<uint8_t, kSecretSize> secret{};
};
static_assert(sizeof(WelcomeFixed) == kWelcomeFixedSize && alignof(WelcomeFixed) == 8);
static_assert(offsetof(WelcomeFixed, addresses) == 2);
static_assert(offsetof(WelcomeFixed, zero) == 4);
static_assert(offsetof(WelcomeFixed, hello) == 8);
static_assert(offsetof(WelcomeFixed, instance) == 104);
static_assert(offsetof(WelcomeFixed, session) == 120);
static_assert(offsetof(WelcomeFixed, secret) == 136);

Status no_welcome(std::initializer_list<Piece> why) {
  return {Code::kInvalidArgument, "not a welcome: " + text(why)};
}

Status cut_short(size_t size) { return no_welcome({"it is cut short after ", size, " bytes"}); }

}  // namespace

Status check_addresses(std::span<const std::string_view> addresses) {
  if (addresses.size() > kMaxAddresses) {
    return no_welcome({addresses.size(), " addresses, more than ", kMaxAddresses});
  }
  for (const std::string_view address : addresses) {
    if (address.empty()) return no_welcome({"an address is empty"});
    if (address.size() > kMaxAddressLength) {
      return no_welcome(
          {"an address of ", address.size(), " bytes, more than ", kMaxAddressLength});
    }
    for (const char c : address) {
      if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
        return no_welcome({"a control character in the address ", quoted(address)});
      }
    }
  }
  return {};
}

size_t welcome_size(const Welcome& welcome) {
  size_t size = kWelcomeFixedSize;
  for (const std::string_view address : welcome.addresses) {
    size += sizeof(uint16_t) + address.size();
  }
  return size;
}

std::byte* encode_welcome(std::byte* out, const Welcome& welcome) {
  WelcomeFixed fixed;
  fixed.addresses = static_cast<uint16_t>(welcome.addresses.size());
  fixed.hello = welcome.hello;
  fixed.instance = welcome.instance;
  fixed.session = welcome.session;
  fixed.secret = welcome.secret;
  out = store(out, fixed);
  for (const std::string_view address : welcome.addresses) {
    out = store(out, static_cast<uint16_t>(address.size()));
    out = store_bytes(out, address.data(), address.size());
  }
  return out;
}

Result<Welcome> decode_welcome(std::span<const std::byte> bytes) {
  // The version comes first: what follows it is another version's own affair.
  if (bytes.size() < sizeof(uint16_t)) return cut_short(bytes.size());
  if (const auto version = load<uint16_t>(bytes.data()); version != kWelcomeVersion) {
    return Status(Code::kFailedPrecondition,
                  text({"the peer's tensorwire speaks version ", version,
                        " of the bootstrap, this process version ", kWelcomeVersion,
                        ": install the same version of tensorwire everywhere"}));
  }
  if (bytes.size() < kWelcomeFixedSize) return cut_short(bytes.size());
  const auto fixed = load<WelcomeFixed>(bytes.data());
  if (fixed.zero != 0) return no_welcome({"zero is ", fixed.zero});
  auto hello = decode_hello(bytes.subspan(offsetof(WelcomeFixed, hello), kHelloSize));
  if (!hello) return hello.status();
  if (fixed.addresses > kMaxAddresses) {
    return no_welcome({fixed.addresses, " addresses, more than ", kMaxAddresses});
  }

  Welcome welcome{*hello, fixed.instance, fixed.session, fixed.secret, {}};
  auto rest = bytes.subspan(kWelcomeFixedSize);
  for (size_t i = 0; i < fixed.addresses; ++i) {
    if (rest.size() < sizeof(uint16_t)) return cut_short(bytes.size());
    const auto length = load<uint16_t>(rest.data());
    rest = rest.subspan(sizeof length);
    if (rest.size() < length) return cut_short(bytes.size());
    welcome.addresses.emplace_back(reinterpret_cast<const char*>(rest.data()), length);
    rest = rest.subspan(length);
  }
  if (!rest.empty()) return no_welcome({rest.size(), " bytes too many"});
  if (Status good = check_addresses(welcome.addresses); !good.ok()) return good;
  return welcome;
}

}  // namespace tw::wire

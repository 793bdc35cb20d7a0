// SPDX-License-Identifier: Apache-2.0
#include "meet/secret.h"

#include <string.h>

#include <algorithm>

#include "base/random.h"
#include "base/sha256.h"
#include "wire/bytes.h"

namespace tw::meet {

Secret::Secret(std::span<const uint8_t, kSize> bytes) {
  std::copy(bytes.begin(), bytes.end(), bytes_.begin());
}

Secret::Secret(Secret&& other) noexcept : bytes_(other.bytes_) { other.wipe(); }

Secret& Secret::operator=(Secret&& other) noexcept {
  if (this != &other) {
    bytes_ = other.bytes_;
    other.wipe();
  }
  return *this;
}

Result<Secret> Secret::random() {
  Secret secret;
  if (Status s = fill_random(secret.bytes_); !s.ok()) return s;
  return secret;
}

void Secret::wipe() { explicit_bzero(bytes_.data(), bytes_.size()); }

wire::Proof prove(const Secret& secret, std::string_view label, const Transcript& about) {
  static_assert(kServerLabel.size() == kClientLabel.size(), "one length keeps the fields apart");
  constexpr size_t kSize = kServerLabel.size() + sizeof about.version + sizeof about.transport +
                           sizeof about.session + sizeof about.instance +
                           sizeof about.client_nonce + sizeof about.server_nonce;
  std::array<uint8_t, kSize> said;
  std::byte* end = wire::store_bytes(std::as_writable_bytes(std::span(said)).data(), label.data(),
                                     kServerLabel.size());
  end = wire::store(end, about.version);
  end = wire::store(end, about.transport);
  end = wire::store(end, about.session);
  end = wire::store(end, about.instance);
  end = wire::store(end, about.client_nonce);
  wire::store(end, about.server_nonce);
  return hmac_sha256(secret.bytes(), said);
}

}  // namespace tw::meet

// SPDX-License-Identifier: Apache-2.0
#include "process/permitted_host.h"

#include <arpa/inet.h>

#include <charconv>
#include <string>

namespace tw {
namespace {

constexpr std::string_view kOfLabels =
    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_0123456789-";
constexpr std::string_view kOfNumbers = kOfLabels.substr(53);

bool name(std::string_view entry) {
  if (entry.ends_with('.')) entry.remove_suffix(1);
  for (;;) {
    const size_t dot = entry.find('.');
    const std::string_view label = entry.substr(0, dot);
    if (label.empty() || label.find_first_not_of(kOfLabels) != std::string_view::npos) return false;
    if (dot == std::string_view::npos)
      return label.find_first_not_of(kOfNumbers) != std::string_view::npos;
    entry.remove_prefix(dot + 1);
  }
}

// Bits of an address like this; 0: it is none.
unsigned address_bits(const std::string& address) {
  in6_addr bytes;
  if (inet_pton(AF_INET, address.c_str(), &bytes) == 1) return 32;
  return inet_pton(AF_INET6, address.c_str(), &bytes) == 1 ? 128 : 0;
}

bool network(std::string_view entry) {
  const size_t slash = entry.find('/');
  const unsigned bits = address_bits(std::string(entry.substr(0, slash)));
  if (bits == 0) return false;
  if (slash == std::string_view::npos) return true;
  const std::string_view digits = entry.substr(slash + 1);
  unsigned prefix = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), prefix);
  return error == std::errc{} && end == digits.data() + digits.size() && prefix <= bits;
}

}  // namespace

bool permitted_host(std::string_view entry) {
  return entry == "*" || name(entry) || network(entry);
}

}  // namespace tw

// SPDX-License-Identifier: Apache-2.0
#include "process/link_table.h"

#include <arpa/inet.h>

#include <algorithm>

#include "base/rules_file.h"
#include "base/text.h"

namespace tw {
namespace {

using rules::wrong;

constexpr std::string_view kForm[] = {"transport", "peer", "threshold", "bytes"};
constexpr std::string_view kSameHost = "same_host", kOtherHosts = "other_hosts";

bool is_address(std::string_view word) {
  const std::string text(word);
  in6_addr address;
  return inet_pton(AF_INET, text.c_str(), &address) == 1 ||
         inet_pton(AF_INET6, text.c_str(), &address) == 1;
}

// The host in ipv4:10.0.0.2:4242 and ipv6:[fd00::2]:4242.
std::string_view host_of(std::string_view address) {
  const size_t begin = address.find(':'), end = address.rfind(':');
  if (begin == address.npos || begin == end) return {};
  std::string_view host = address.substr(begin + 1, end - begin - 1);
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  return host;
}

}  // namespace

std::string_view host_of_rule(bool same_host, std::string_view address) {
  if (same_host) return kSameHost;
  const std::string_view host = host_of(address);
  return host.empty() ? kOtherHosts : host;
}

Result<LinkTable> LinkTable::parse(std::string_view text) {
  LinkTable table;
  Status status = rules::each(text, kForm, [&](std::span<const std::string_view> words) -> Status {
    const auto [transport, peer] = std::pair(words[0], words[1]);
    if (peer != kSameHost && peer != kOtherHosts && !is_address(peer))
      return wrong({quoted(peer), " is neither same_host, other_hosts nor an address"});
    const auto threshold = threshold_named(words[2]);
    if (!threshold) return wrong({quoted(words[2]), " is no threshold"});
    const auto bytes = rules::number(words[3]);
    const setting::Size& sizes = sizes_of(*threshold);
    if (!bytes || *bytes < sizes.lowest || *bytes > sizes.highest)
      return wrong({words[2], " is ", quoted(words[3]), ", not a number from ", sizes.lowest,
                    " to ", sizes.highest});
    for (const Rule& rule : table.rules_)
      if (rule.transport == transport && rule.peer == peer && rule.threshold == *threshold)
        return wrong({"a second rule for ", words[2], " of ", quoted(transport), " to ", peer});
    table.rules_.push_back({std::string(transport), std::string(peer), *threshold, *bytes});
    return {};
  });
  if (!status.ok()) return status;
  return table;
}

Result<LinkTable> LinkTable::read(const Settings& settings) {
  const std::string& said = settings.link_tuning;
  if (said == "off") return LinkTable{};
  const bool named = !said.empty() && said != "auto";
  const std::string path = named ? said : rules::path_in_cache("links.table");
  if (path.empty()) return LinkTable{};
  const auto text = rules::read(path);
  if (!text && !named && text.status().code() == Code::kNotFound) return LinkTable{};
  auto table = text ? parse(*text) : text.status();
  if (table) return table;
  return wrong(
      {"the table of tensorwire tune links, ", path, ", is not used: ", table.status().details()});
}

Wanted LinkTable::of(std::string_view transport, bool same_host, std::string_view address) const {
  Wanted wanted;
  const std::string_view host = host_of_rule(same_host, address);
  const auto take = [&](std::string_view peer) {
    for (const Rule& rule : rules_)
      if (rule.transport == transport && rule.peer == peer)
        wanted[static_cast<size_t>(rule.threshold)] = rule.bytes;
  };
  if (!same_host) take(kOtherHosts);
  if (host != kOtherHosts) take(host);
  return wanted;
}

}  // namespace tw

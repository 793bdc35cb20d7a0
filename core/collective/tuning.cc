// SPDX-License-Identifier: Apache-2.0
#include "collective/tuning.h"

#include <algorithm>
#include <cstring>

#include "base/rules_file.h"
#include "base/sha256.h"
#include "base/text.h"

namespace tw::collective {
namespace {

using rules::wrong;

constexpr std::string_view kForm[] = {"operation", "fabric", "ranks", "bytes", "way"};
constexpr uint64_t kMostRanks = 1 << 20;
// What earlier tables called all transports.
constexpr std::string_view kAnyTransport = "messages";

bool possible(CollectiveKind kind, std::string_view fabric, Way way) {
  if (fabric != kMemoryFabric) return goes_by(kind, algorithm_of(way));
  switch (kind) {
    case CollectiveKind::kAllReduce:
    case CollectiveKind::kReduce:
      return way == Way::kOneStep || way == Way::kStage;
    case CollectiveKind::kBroadcast:
    case CollectiveKind::kAllGather:
    case CollectiveKind::kGather:
      return way == Way::kOneStep || way == Way::kStage || way == Way::kInPlace;
    case CollectiveKind::kScatter:
    case CollectiveKind::kAllToAll:
      return way == Way::kStage || way == Way::kInPlace;
    case CollectiveKind::kBarrier:
    case CollectiveKind::kReduceScatter:
      break;
  }
  return false;
}

template <class Enum>
std::optional<Enum> named(std::string_view word, size_t count) {
  for (size_t i = 0; i < count; ++i)
    if (word == name_of(static_cast<Enum>(i))) return static_cast<Enum>(i);
  return std::nullopt;
}

}  // namespace

bool goes_by(CollectiveKind kind, Algorithm algorithm) {
  const bool direct = algorithm == Algorithm::kDirect;
  switch (kind) {
    case CollectiveKind::kAllReduce:
      return wire::reduces_all(algorithm);
    case CollectiveKind::kReduce:
      return direct || algorithm == Algorithm::kPairwise;
    case CollectiveKind::kBroadcast:
      return algorithm == Algorithm::kTree || algorithm == Algorithm::kScatterAllGather;
    case CollectiveKind::kAllGather:
    case CollectiveKind::kReduceScatter:
      return direct || algorithm == Algorithm::kRing;
    case CollectiveKind::kBarrier:
    case CollectiveKind::kAllToAll:
    case CollectiveKind::kGather:
    case CollectiveKind::kScatter:
      break;
  }
  return false;
}

std::optional<Way> Ways::of(CollectiveKind kind, uint64_t bytes) const {
  const auto& upto = upto_[static_cast<size_t>(kind)];
  const auto found = std::ranges::lower_bound(upto, bytes, {}, &Upto::bytes);
  return found == upto.end() ? std::nullopt : std::optional(found->way);
}

Result<Tuning::Rule> Tuning::rule_of(std::span<const std::string_view> words) {
  const auto kind = named<CollectiveKind>(words[0], kCollectiveKinds);
  if (!kind) return wrong({quoted(words[0]), " is no operation"});
  const std::string_view fabric = words[1];
  if (fabric == kAnyTransport)
    return wrong(
        {"a rule for messages names the transport by which they go: measure anew, by "
         "tensorwire tune collectives"});
  const auto ranks = rules::number(words[2]), bytes = rules::number(words[3]);
  if (!ranks || *ranks < 2 || *ranks > kMostRanks)
    return wrong({quoted(words[2]), " is no number of ranks"});
  if (!bytes) return wrong({quoted(words[3]), " is no number of bytes"});
  const auto way = named<Way>(words[4], kWays);
  if (!way || !possible(*kind, fabric, *way))
    return wrong({words[0], " over ", quoted(fabric), " cannot go by ", quoted(words[4])});
  return Rule{*kind, std::string(fabric), *ranks, *bytes, *way};
}

Result<Tuning> Tuning::parse(std::string_view table) {
  Tuning tuning;
  const Status status = rules::each(table, kForm, [&](std::span<const std::string_view> words) {
    const auto rule = rule_of(words);
    if (!rule) return rule.status();
    tuning.rules_.push_back(*rule);
    return Status{};
  });
  if (!status.ok()) return status;
  std::ranges::sort(tuning.rules_);
  const auto twice = std::ranges::adjacent_find(tuning.rules_, [](const Rule& a, const Rule& b) {
    return a.kind == b.kind && a.fabric == b.fabric && a.ranks == b.ranks && a.bytes == b.bytes;
  });
  if (twice != tuning.rules_.end())
    return wrong({"two rules for ", twice->bytes, " bytes of ", name_of(twice->kind), " over ",
                  quoted(twice->fabric), " between ", twice->ranks, " ranks"});
  return tuning;
}

Result<Tuning> Tuning::read(const std::string& path) {
  const auto table = rules::read(path);
  return table ? parse(*table) : table.status();
}

Ways Tuning::of(std::string_view fabric, int ranks) const {
  Ways ways;
  for (const Rule& rule : rules_)
    if (rule.fabric == fabric && rule.ranks == static_cast<uint64_t>(ranks))
      ways.upto_[static_cast<size_t>(rule.kind)].push_back({rule.bytes, rule.way});
  return ways;
}

uint64_t Tuning::digest() const {
  if (rules_.empty()) return 0;
  std::string all;
  for (const Rule& rule : rules_)
    all += text({name_of(rule.kind), " ", rule.fabric, " ", rule.ranks, " ", rule.bytes, " ",
                 name_of(rule.way), "\n"});
  Sha256 hash;
  hash.update({reinterpret_cast<const uint8_t*>(all.data()), all.size()});
  const Sha256Digest digest = hash.finish();
  uint64_t first;
  std::memcpy(&first, digest.data(), sizeof first);
  return first;
}

}  // namespace tw::collective

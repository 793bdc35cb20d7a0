// SPDX-License-Identifier: Apache-2.0
#include "collective/tuning.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>

#include "base/fd.h"
#include "base/sha256.h"
#include "base/text.h"

namespace tw::collective {
namespace {

constexpr size_t kWords = 5;
constexpr uint64_t kMostRanks = 1 << 20;

bool possible(CollectiveKind kind, Reach reach, Way way) {
  const bool algorithm = way == Way::kDirect || way == Way::kPairwise || way == Way::kRing ||
                         way == Way::kRecursiveDoubling || way == Way::kHalvingDoubling;
  if (reach == Reach::kMessages) return kind == CollectiveKind::kAllReduce && algorithm;
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

std::optional<uint64_t> number(std::string_view word) {
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  if (error != std::errc() || end != word.data() + word.size()) return std::nullopt;
  return value;
}

// Takes a word off the front; empty: there are no more.
std::string_view next_word(std::string_view& line) {
  constexpr std::string_view kBlank = " \t\r";
  line.remove_prefix(std::min(line.find_first_not_of(kBlank), line.size()));
  const std::string_view word = line.substr(0, line.find_first_of(kBlank));
  line.remove_prefix(word.size());
  return word;
}

Status wrong(std::initializer_list<Piece> pieces) { return {Code::kInvalidArgument, text(pieces)}; }

}  // namespace

const char* name_of(Reach reach) { return reach == Reach::kMemory ? "memory" : "messages"; }

std::optional<Way> Ways::of(CollectiveKind kind, uint64_t bytes) const {
  const auto& upto = upto_[static_cast<size_t>(kind)];
  const auto found = std::ranges::lower_bound(upto, bytes, {}, &Upto::bytes);
  return found == upto.end() ? std::nullopt : std::optional(found->way);
}

Result<Tuning::Rule> Tuning::rule_of(std::string_view line) {
  std::array<std::string_view, kWords> words;
  for (std::string_view& word : words) word = next_word(line);
  if (words.back().empty() || !next_word(line).empty())
    return wrong({"a rule is: operation fabric ranks bytes way"});
  const auto kind = named<CollectiveKind>(words[0], kCollectiveKinds);
  if (!kind) return wrong({quoted(words[0]), " is no operation"});
  const auto reach = named<Reach>(words[1], kReaches);
  if (!reach) return wrong({quoted(words[1]), " is neither memory nor messages"});
  const auto ranks = number(words[2]), bytes = number(words[3]);
  if (!ranks || *ranks < 2 || *ranks > kMostRanks)
    return wrong({quoted(words[2]), " is no number of ranks"});
  if (!bytes) return wrong({quoted(words[3]), " is no number of bytes"});
  const auto way = named<Way>(words[4], kWays);
  if (!way || !possible(*kind, *reach, *way))
    return wrong({words[0], " over ", words[1], " cannot go by ", quoted(words[4])});
  return Rule{*kind, *reach, *ranks, *bytes, *way};
}

Result<Tuning> Tuning::parse(std::string_view table) {
  if (table.size() > kMostBytes) return wrong({"it is larger than ", size_text(kMostBytes)});
  Tuning tuning;
  for (int number = 1; !table.empty(); ++number) {
    const std::string_view whole = table.substr(0, table.find('\n'));
    table.remove_prefix(std::min(whole.size() + 1, table.size()));
    std::string_view line = whole.substr(0, whole.find('#')), look = line;
    if (next_word(look).empty()) continue;
    const auto rule = rule_of(line);
    if (!rule) return wrong({"line ", number, ": ", rule.status().details()});
    tuning.rules_.push_back(*rule);
  }
  std::ranges::sort(tuning.rules_);
  const auto twice = std::ranges::adjacent_find(tuning.rules_, [](const Rule& a, const Rule& b) {
    return a.kind == b.kind && a.reach == b.reach && a.ranks == b.ranks && a.bytes == b.bytes;
  });
  if (twice != tuning.rules_.end())
    return wrong({"two rules for ", twice->bytes, " bytes of ", name_of(twice->kind), " over ",
                  name_of(twice->reach), " between ", twice->ranks, " ranks"});
  return tuning;
}

Result<Tuning> Tuning::read(const std::string& path) {
  const Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file) {
    const bool absent = errno == ENOENT || errno == ENOTDIR;
    return Status{absent ? Code::kNotFound : Code::kInvalidArgument,
                  text({"it cannot be opened: ", std::strerror(errno)})};
  }
  struct stat found{};
  if (::fstat(file.get(), &found) != 0 || !S_ISREG(found.st_mode)) return wrong({"it is no file"});
  std::string table(kMostBytes + 1, '\0');  // one more: whether it is too large
  size_t size = 0;
  while (size < table.size()) {
    const ssize_t got = ::read(file.get(), table.data() + size, table.size() - size);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return wrong({"it cannot be read: ", std::strerror(errno)});
    if (got == 0) break;
    size += static_cast<size_t>(got);
  }
  table.resize(size);
  return parse(table);
}

Ways Tuning::of(Reach reach, int ranks) const {
  Ways ways;
  for (const Rule& rule : rules_)
    if (rule.reach == reach && rule.ranks == static_cast<uint64_t>(ranks))
      ways.upto_[static_cast<size_t>(rule.kind)].push_back({rule.bytes, rule.way});
  return ways;
}

uint64_t Tuning::digest() const {
  if (rules_.empty()) return 0;
  std::string all;
  for (const Rule& rule : rules_)
    all += text({name_of(rule.kind), " ", name_of(rule.reach), " ", rule.ranks, " ", rule.bytes,
                 " ", name_of(rule.way), "\n"});
  Sha256 hash;
  hash.update({reinterpret_cast<const uint8_t*>(all.data()), all.size()});
  const Sha256Digest digest = hash.finish();
  uint64_t first;
  std::memcpy(&first, digest.data(), sizeof first);
  return first;
}

}  // namespace tw::collective

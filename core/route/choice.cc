// SPDX-License-Identifier: Apache-2.0
#include "route/choice.h"

#include <algorithm>

#include "base/text.h"
#include "process/all_settings.h"

namespace tw::route {
namespace {

constexpr std::string_view kAny = "auto";
constexpr std::string_view kTransport = "TENSORWIRE_TRANSPORT", kForbid = "TENSORWIRE_FORBID";

bool has(std::span<const std::string> list, std::string_view name) {
  return std::ranges::find(list, name) != list.end();
}

std::string joined(std::span<const std::string> list, std::string_view between) {
  std::string all;
  for (const std::string& each : list) {
    if (!all.empty()) all += between;
    all += each;
  }
  return all;
}

// Sorted; each once.
std::vector<std::string> split(std::string_view names) {
  std::vector<std::string> list;
  while (!names.empty()) {
    const size_t end = std::min(names.find_first_of(", "), names.size());
    if (end != 0) list.emplace_back(names.substr(0, end));
    names.remove_prefix(std::min(end + 1, names.size()));
  }
  std::ranges::sort(list);
  list.erase(std::unique(list.begin(), list.end()), list.end());
  return list;
}

// Something the user wrote, and where.
struct Said {
  std::string origin;
  Code wrong = Code::kInvalidArgument;
};

Status unknown(const Said& said, std::string_view name, std::span<const std::string> known) {
  return {said.wrong, text({said.origin, ": ", quoted(name), " is none of ", joined(known, ", ")})};
}

}  // namespace

Result<Policy> choose(std::span<const std::unique_ptr<Kind>> kinds, const Asked& asked) {
  Policy policy;
  const auto known = known_ways(kinds);

  std::string transport(asked.transport);
  Said said{text({"transport=", quoted(transport)})};
  if (transport.empty()) {
    const auto given = read_anew(kinds, kTransport);
    if (!given) return given.status();
    if (!given->empty()) said = {text({kTransport, "=", *given}), Code::kFailedPrecondition};
    transport = given->empty() ? std::string(kAny) : *given;
  }
  if (transport != kAny && !has(known, transport)) {
    std::vector<std::string> permitted{std::string(kAny)};
    permitted.insert(permitted.end(), known.begin(), known.end());
    return unknown(said, transport, permitted);
  }

  policy.forbidden = split(asked.forbid);
  Said forbid;
  if (policy.forbidden.empty()) {
    const auto given = read_anew(kinds, kForbid);
    if (!given) return given.status();
    policy.forbidden = split(*given);
    forbid = {text({kForbid, "=", joined(policy.forbidden, ",")}), Code::kFailedPrecondition};
  } else {
    forbid.origin = text({"forbid=", joined(policy.forbidden, ",")});
  }
  for (const std::string& name : policy.forbidden)
    if (!has(known, name)) return unknown(forbid, name, known);
  if (policy.forbidden.size() == known.size())
    return Status{forbid.wrong, forbid.origin + " leaves no transport"};
  if (has(policy.forbidden, transport)) {
    const bool arguments =
        said.wrong == Code::kInvalidArgument && forbid.wrong == Code::kInvalidArgument;
    return Status{arguments ? Code::kInvalidArgument : Code::kFailedPrecondition,
                  text({said.origin, " and ", forbid.origin, " leave no transport"})};
  }
  if (transport != kAny) policy.required = std::move(transport);
  policy.origin = std::move(said.origin);
  policy.forbidden_by = std::move(forbid.origin);
  return policy;
}

std::vector<Reason> refused(std::span<const std::unique_ptr<Kind>> kinds, const Policy& policy) {
  std::vector<Reason> reasons;
  for (std::string& way : known_ways(kinds))
    if (std::string why = policy.refusal(way); !why.empty())
      reasons.push_back({std::move(way), std::move(why)});
  return reasons;
}

}  // namespace tw::route

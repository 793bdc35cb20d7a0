// SPDX-License-Identifier: Apache-2.0
// The C ABI: the settings, what the user permits by them, the transports, and what the host offers.
#include <deque>

#include "abi/abi.h"
#include "process/all_settings.h"
#include "process/host_facts.h"
#include "route/choice.h"

using namespace tw;
using namespace tw::abi;

namespace {

static_assert(TW_NUMBER == static_cast<int>(Fact::Kind::kNumber) &&
              TW_TEXT == static_cast<int>(Fact::Kind::kText) &&
              TW_RECORD == static_cast<int>(Fact::Kind::kRecord) &&
              TW_LIST == static_cast<int>(Fact::Kind::kList));

// As the ABI tells it; `kept` holds what is within.
tw_fact told(const Fact& fact, std::deque<std::vector<tw_fact>>& kept) {
  std::vector<tw_fact> within;
  for (const Fact& each : fact.facts) within.push_back(told(each, kept));
  const auto& facts = kept.emplace_back(std::move(within));
  return {fact.name.c_str(), static_cast<int32_t>(fact.kind),
          fact.number,       fact.text.c_str(),
          facts.data(),      facts.size()};
}

void tell(Facts facts, tw_visit_fact visit, void* context) {
  std::deque<std::vector<tw_fact>> kept;
  const Fact record("", Fact::Kind::kRecord, std::move(facts));
  const tw_fact out = told(record, kept);
  visit(context, &out);
}

}  // namespace

int tw_settings(tw_visit_fact visit, void* context, tw_status* status) try {
  auto runtime = Runtime::get();
  if (!runtime) return report(status, runtime.status());
  tell(settings_in_force((*runtime)->settings(), (*runtime)->kinds()), visit, context);
  return TW_OK;
} catch (const std::bad_alloc&) {
  return no_memory(status);
}

int tw_link_tuning(tw_status* status) try {
  auto runtime = Runtime::get();
  return report(status, runtime ? (*runtime)->link_table_status() : runtime.status());
} catch (const std::bad_alloc&) {
  return no_memory(status);
}

void tw_each_setting(tw_visit_setting visit, void* context) try {
  each_variable(usual_kinds(), [&](const Variable& variable) {
    const Setting& setting = variable.setting;
    const tw_setting out{variable.name,
                         setting.name,
                         variable.alias ? setting.variable : nullptr,
                         variable.fallback.c_str(),
                         variable.permitted.c_str(),
                         setting.help};
    visit(context, &out);
  });
} catch (const std::bad_alloc&) {
  const Shortage shortage;
}

int tw_read_setting(const char* variable, char* value, size_t room, tw_status* status) try {
  const auto found = read_anew(usual_kinds(), variable);
  if (!found) return report(status, found.status());
  if (found->size() >= room) return report(status, Code::kOutOfRange, "no room for the value");
  std::memcpy(value, found->c_str(), found->size() + 1);
  return TW_OK;
} catch (const std::bad_alloc&) {
  return no_memory(status);
}

int tw_choose_policy(const char* transport, const char* forbid, tw_visit_policy visit,
                     void* context, tw_status* status) try {
  const auto chosen =
      route::choose(usual_kinds(), {transport ? transport : "", forbid ? forbid : ""});
  if (!chosen) return report(status, chosen.status());
  std::vector<const char*> forbidden;
  for (const std::string& way : chosen->forbidden) forbidden.push_back(way.c_str());
  const tw_policy out{chosen->required.empty() ? nullptr : chosen->required.c_str(),
                      forbidden.data(), forbidden.size(), chosen->origin.c_str()};
  const auto refused = route::refused(usual_kinds(), *chosen);
  std::vector<tw_refusal> refusals;
  for (const route::Reason& reason : refused)
    refusals.push_back({reason.transport.c_str(), reason.why.c_str()});
  visit(context, &out, refusals.data(), refusals.size());
  return TW_OK;
} catch (const std::bad_alloc&) {
  return no_memory(status);
}

void tw_host(tw_visit_fact visit, void* context) try {
  tell(host_facts(), visit, context);
} catch (const std::bad_alloc&) {
  const Shortage shortage;
}

void tw_each_transport(tw_visit_transport visit, void* context) try {
  for (const Kind* kind : chosen_kinds(usual_kinds())) {
    const std::string name(kind->name());
    const tw_transport out{name.c_str(), kind->socket() == Kind::Socket::kUnix, kind->lends()};
    visit(context, &out);
  }
} catch (const std::bad_alloc&) {
  const Shortage shortage;
}

int tw_transport_why_not(const char* name, tw_status* status) try {
  auto runtime = Runtime::get();
  if (!runtime) return report(status, runtime.status());
  Kind* const kind = (*runtime)->kind(name);
  if (!kind) return report(status, Code::kNotFound, "there is no such transport");
  return report(status, kind->why_not());
} catch (const std::bad_alloc&) {
  return no_memory(status);
}

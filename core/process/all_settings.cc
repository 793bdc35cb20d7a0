// SPDX-License-Identifier: Apache-2.0
#include "process/all_settings.h"

#include <algorithm>
#include <utility>

#include "base/text.h"
#include "process/permitted_host.h"
#include "wire/algorithm.h"

namespace tw {
namespace {

using setting::Entries, setting::Words;

char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

bool read_switch(std::string_view value, std::string& meant) {
  meant.clear();
  for (const char c : value) meant += lower(c);
  if (meant == "1") meant = "true";
  if (meant == "0") meant = "false";
  return meant == "true" || meant == "false";
}

bool read_algorithm(std::string_view value, std::string&) {
  return value == "auto" ||
         std::ranges::find(wire::kAllReduceNames, value) != wire::kAllReduceNames.end();
}

bool read_tuning(std::string_view value, std::string&) {
  return value == "auto" || value == "off" || value.find('/') != std::string_view::npos;
}

bool read_born(std::string_view value, std::string&) {
  return value == "auto" || value == "traced" || value == "off";
}

bool read_collectives(std::string_view value, std::string&) {
  return value == "auto" || value == "ring";
}

bool read_on_or_off(std::string_view value, std::string&) {
  return value == "on" || value == "off";
}

std::string auto_or(const auto& words) {
  std::string all = "auto";
  for (const auto& word : words) all.append(&word == &words.back() ? " or " : ", ").append(word);
  return all;
}

// Of those who use the runtime.
std::span<const Setting> of_users() {
  static const std::string& algorithms = *new std::string(auto_or(wire::kAllReduceNames));
  static const Setting all[] = {
      {"", "TENSORWIRE_DATA_HOSTS",
       Entries{"hosts and networks with commas between (10.0.0.0/8,node7); * for all",
               permitted_host},
       "of a client: hosts beside the one that is called to which servers may send it, for servers "
       "behind a proxy or a virtual address",
       ""},
      {"", "TENSORWIRE_ALLREDUCE", Words{algorithms.c_str(), read_algorithm},
       "of a group: how all-reduces go. auto: over common memory within a host, and between hosts "
       "as suits the size and the ranks. Another: by messages between all ranks, in this way. The "
       "same for all ranks",
       "auto"},
      {"", "TENSORWIRE_TUNING", Words{"auto, off or the path of a table, with a /", read_tuning},
       "of a group: the table of tensorwire tune collectives. auto: collectives.table in the "
       "folder tensorwire of XDG_CACHE_HOME, or of ~/.cache, where that is there",
       "auto"},
      {"", "TENSORWIRE_DETERMINISTIC", Words{"on or off", read_on_or_off},
       "of a group. on: which way an operation goes depends on the operation, its bytes and type, "
       "the ranks and their hosts, and on no table, so that sums of floats have the same bits in "
       "each run. The same for all ranks",
       "off"},
      {"", kGroupHost, Words{"an address or a name of this host"},
       "of a group: where ranks of other hosts reach this one", kLoopback},
      {"", "TENSORWIRE_HOST_ID", Words{"any text"},
       "of a group: ranks with another value count as ranks of another host, to try what groups "
       "between hosts do on one",
       ""},
      {"", "TF_RDMA_ENABLED", Words{"true, false, 1 or 0", read_switch},
       "TensorFlow only. false: the stock engine; nothing is built or loaded", "true"},
      {"", "TENSORWIRE_TF_ARENA", Words{"auto, traced or off", read_born},
       "TensorFlow only: which tensors are born in the arena", "auto"},
      {"", "TENSORWIRE_TF_COLLECTIVES", Words{"auto or ring", read_collectives},
       "TensorFlow only. auto: collectives go by groups of ranks where all workers can do that. "
       "ring: by TensorFlow's own algorithms, whose buffers go over links",
       "auto"},
      {"", "TENSORWIRE_TF_PLAN", Words{"on or off", read_on_or_off},
       "TensorFlow only. on: small variables that another process reads cross as one tensor, and "
       "tensors that are the same in each step but for their values are sent ahead, without a call "
       "for each",
       "off"},
  };
  return all;
}

}  // namespace

std::span<const std::unique_ptr<Kind>> usual_kinds() {
  struct UsualKinds {
    Settings settings;
    Ref<Arena> arena = make_ref<Arena>(settings.buffer_bytes);
    std::vector<std::unique_ptr<Kind>> kinds = make_kinds(
        {settings, *arena,
         [] { return Result<Poller*>(Status{Code::kFailedPrecondition, "a setting is wrong"}); }});
  };
  static const auto* const usual = new UsualKinds;  // never destroyed
  return usual->kinds;
}

std::vector<std::string> known_ways(std::span<const std::unique_ptr<Kind>> kinds) {
  std::vector<std::string> known;
  for (const Kind* kind : chosen_kinds(kinds)) known.emplace_back(kind->name());
  known.emplace_back(kStock);
  return known;
}

std::vector<const Kind*> chosen_kinds(std::span<const std::unique_ptr<Kind>> kinds) {
  std::vector<const Kind*> chosen;
  for (const auto& kind : kinds)
    if (kind->chosen()) chosen.push_back(kind.get());
  return chosen;
}

void each_setting(const Settings& settings, std::span<const std::unique_ptr<Kind>> kinds,
                  const VisitSetting& visit) {
  const std::string ways = auto_or(known_ways(kinds));
  visit({"", "TENSORWIRE_TRANSPORT", Words{ways.c_str()},
         "auto takes the best way that works. Another name requires that way: where it cannot be "
         "had, calls end with an error",
         "auto"},
        nullptr, nullptr);
  visit({"", "TENSORWIRE_FORBID", Words{"names as above, with commas between, but not all"},
         "ways that calls do not take. TensorFlow's own gRPC cannot be forbidden", ""},
        nullptr, nullptr);
  each_setting(settings, visit);
  for (const auto& kind : kinds) kind->each_setting(visit);
  for (const Setting& setting : of_users()) visit(setting, nullptr, nullptr);
}

void each_variable(std::span<const std::unique_ptr<Kind>> kinds,
                   const std::function<void(const Variable& variable)>& visit) {
  each_setting({}, kinds, [&](const Setting& setting, const Value*, const Value* usual) {
    std::string fallback;
    if (setting.fallback)
      fallback = setting.fallback;
    else if (usual)
      fallback = value_text(*usual, setting.permitted);
    visit(
        {setting.variable, setting, false, std::move(fallback), permitted_text(setting.permitted)});
    if (setting.alias)
      visit({setting.alias, setting, true, {}, permitted_text(setting.alias_permitted)});
  });
}

Facts settings_in_force(const Settings& settings, std::span<const std::unique_ptr<Kind>> kinds) {
  Facts facts;
  each_setting(settings, kinds, [&](const Setting& setting, const Value* value, const Value*) {
    if (!value) return;  // whoever needs it reads it anew
    if (const auto* const number = std::get_if<uint64_t>(value))
      facts.emplace_back(setting.name, static_cast<int64_t>(*number));
    else
      facts.emplace_back(setting.name, value_text(*value, setting.permitted));
  });
  return facts;
}

Result<std::string> read_anew(std::span<const std::unique_ptr<Kind>> kinds,
                              std::string_view variable) {
  Result<std::string> found{Status{Code::kNotFound, text({quoted(variable), " is no setting"})}};
  const auto look = [&](const char* name, const Permitted& permitted) {
    if (!name || variable != name) return;
    const auto given = read_variable(name, permitted);
    if (!given)
      found = given.status();
    else
      found = *given ? value_text(**given, permitted) : std::string{};
  };
  each_setting({}, kinds, [&](const Setting& setting, const Value*, const Value*) {
    look(setting.variable, setting.permitted);
    if (!setting.alias || variable != setting.alias) return;
    if (const auto first = read_variable(setting.variable, setting.permitted); first && !*first)
      look(setting.alias, setting.alias_permitted);
    else
      found = std::string{};
  });
  return found;
}

}  // namespace tw

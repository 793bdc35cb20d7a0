// SPDX-License-Identifier: Apache-2.0
#include "process/host_facts.h"

#include <doctest/doctest.h>

#include <algorithm>

#include "process/all_settings.h"
#include "process/runtime.h"
#include "test/process.h"

namespace tw::test {
namespace {

const Fact* find(const Facts& facts, std::string_view name) {
  const auto found = std::ranges::find(facts, name, &Fact::name);
  return found == facts.end() ? nullptr : &*found;
}

// Whether each kind that this build has says something of this host.
bool complete(const Facts& facts) {
  const Fact* const transports = find(facts, "transports");
  if (!transports || transports->facts.size() != usual_kinds().size()) return false;
  for (const auto& kind : usual_kinds())
    if (!find(transports->facts, kind->name())) return false;
  return find(facts, "page_size")->number > 0 && !find(facts, "kernel")->text.empty();
}

std::string folder_of(const Facts& facts) { return find(facts, "runtime_folder")->text; }

TEST_CASE("host facts: by the settings of the process") {
  const auto runtime = Runtime::get();
  REQUIRE(runtime.ok());
  CHECK(complete(host_facts()));
  Settings settings = (*runtime)->settings();
  CHECK(folder_of(host_facts()) == folder_of(host_facts(settings, (*runtime)->kinds())));
  settings.runtime_dir = "/somewhere/else";
  CHECK(folder_of(host_facts()) != folder_of(host_facts(settings, (*runtime)->kinds())));
}

TEST_CASE("helper: facts without a runtime" * doctest::skip()) {
  write_thing(kToTest, !Runtime::get().ok() && complete(host_facts()));
}

TEST_CASE("host facts: they need no runtime") {
  Helper helper("facts without a runtime", "TENSORWIRE_BUFFER_BYTES=nonsense");
  CHECK(helper.hear<bool>());
}

}  // namespace
}  // namespace tw::test

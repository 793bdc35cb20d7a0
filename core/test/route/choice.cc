// SPDX-License-Identifier: Apache-2.0
#include "route/choice.h"

#include <doctest/doctest.h>

#include "process/all_settings.h"
#include "test/base/environment.h"

namespace tw::route {
namespace {

using Variables = std::vector<std::pair<const char*, const char*>>;

Result<Policy> ask(const Asked& asked, const Variables& variables = {}) {
  const test::Environment environment(variables);
  return choose(usual_kinds(), asked);
}

const std::vector<std::string> kAll{"shm", "verbs", "tcp", "grpc"};

TEST_CASE("choice: all are open where nobody says anything") {
  const auto policy = ask({});
  REQUIRE(policy.ok());
  for (const std::string& way : kAll) CHECK(policy->permits(way));
  CHECK(policy->required.empty());
}

TEST_CASE("choice: one that is required leaves no other") {
  for (const auto& policy : {ask({"tcp", ""}), ask({}, {{"TENSORWIRE_TRANSPORT", "tcp"}})}) {
    REQUIRE(policy.ok());
    CHECK(policy->required == "tcp");
    CHECK(policy->permits("tcp"));
    CHECK(policy->refusal("shm") == "tcp is required by " + policy->origin);
  }
  CHECK(ask({"tcp", ""})->origin == "transport='tcp'");
  CHECK(ask({}, {{"TENSORWIRE_TRANSPORT", "tcp"}})->origin == "TENSORWIRE_TRANSPORT=tcp");
}

TEST_CASE("choice: each way that is not permitted is told, best first") {
  const auto told = [](const Asked& asked) {
    std::string out;
    for (const auto& [way, why] : refused(usual_kinds(), ask(asked).value()))
      out += way + ": " + why + "\n";
    return out;
  };
  CHECK(told({}).empty());
  CHECK(told({"", "tcp,shm"}) == "shm: forbidden\ntcp: forbidden\n");
  CHECK(told({"verbs", "grpc"}) ==
        "shm: verbs is required by transport='verbs'\n"
        "tcp: verbs is required by transport='verbs'\n"
        "grpc: verbs is required by transport='verbs'\n");
}

TEST_CASE("choice: those that are forbidden, in any order and with any commas between") {
  for (const auto& policy : {ask({"", "verbs,shm"}), ask({"auto", " shm, verbs,,shm"}),
                             ask({}, {{"TENSORWIRE_FORBID", "shm verbs"}})}) {
    REQUIRE(policy.ok());
    CHECK(policy->forbidden == std::vector<std::string>{"shm", "verbs"});
    CHECK(policy->refusal("shm") == "forbidden");
    CHECK(policy->permits("tcp"));
    CHECK(policy->permits("grpc"));
  }
}

TEST_CASE("choice: what a program asks for wins over the environment") {
  const Variables variables{{"TENSORWIRE_TRANSPORT", "tcp"}, {"TENSORWIRE_FORBID", "shm"}};
  CHECK(ask({"auto", ""}, variables)->required.empty());
  CHECK(ask({"verbs", ""}, variables)->required == "verbs");
  CHECK(ask({"", "verbs"}, variables)->forbidden == std::vector<std::string>{"verbs"});
  CHECK(ask({"", ""}, variables)->forbidden == std::vector<std::string>{"shm"});
}

TEST_CASE("choice: a wrong choice says what the user wrote, and whether the environment did") {
  struct Wrong {
    Asked asked;
    Variables variables;
    Code code;
    std::string said;
  };
  const Code argument = Code::kInvalidArgument, variable = Code::kFailedPrecondition;
  for (const Wrong& wrong : {
           Wrong{{"pigeon", ""},
                 {},
                 argument,
                 "transport='pigeon': 'pigeon' is none of auto, shm, verbs, tcp, grpc"},
           Wrong{{"loop", ""},
                 {},
                 argument,
                 "transport='loop': 'loop' is none of auto, shm, verbs, tcp, grpc"},
           Wrong{{"", "shn,tcp"},
                 {},
                 argument,
                 "forbid=shn,tcp: 'shn' is none of shm, verbs, tcp, grpc"},
           Wrong{
               {"", "auto"}, {}, argument, "forbid=auto: 'auto' is none of shm, verbs, tcp, grpc"},
           Wrong{{"shm", "shm"}, {}, argument, "transport='shm' and forbid=shm leave no transport"},
           Wrong{{"", "tcp,shm,verbs,grpc"},
                 {},
                 argument,
                 "forbid=grpc,shm,tcp,verbs leaves no transport"},
           Wrong{{},
                 {{"TENSORWIRE_TRANSPORT", "x"}},
                 variable,
                 "TENSORWIRE_TRANSPORT=x: 'x' is none of"},
           Wrong{{}, {{"TENSORWIRE_FORBID", "?"}}, variable, "TENSORWIRE_FORBID=?: '?' is none of"},
           Wrong{{"tcp", ""},
                 {{"TENSORWIRE_FORBID", "tcp"}},
                 variable,
                 "transport='tcp' and TENSORWIRE_FORBID=tcp leave no transport"},
           Wrong{{"", "tcp"},
                 {{"TENSORWIRE_TRANSPORT", "tcp"}},
                 variable,
                 "TENSORWIRE_TRANSPORT=tcp and forbid=tcp leave no transport"},
       }) {
    const auto policy = ask(wrong.asked, wrong.variables);
    REQUIRE_FALSE(policy.ok());
    CHECK(policy.status().code() == wrong.code);
    CHECK(policy.status().details().find(wrong.said) == 0);
  }
}

}  // namespace
}  // namespace tw::route

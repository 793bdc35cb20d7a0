// SPDX-License-Identifier: Apache-2.0
#include "transport/verbs/lifecycle.h"

#include <doctest/doctest.h>

#include <optional>

namespace tw::verbs {
namespace {

using State = EndpointLifecycle::State;
using enum EndpointLifecycle::State;

EndpointLifecycle in(State state) {
  EndpointLifecycle life;
  if (state == kLeaving || state == kClosed) REQUIRE(life.leave());
  if (state == kClosed) REQUIRE(life.close());
  if (state == kRetired) REQUIRE(life.retire());
  REQUIRE(life.state() == state);
  return life;
}

TEST_CASE("verbs lifecycle: each event leads where the table says, or nowhere") {
  struct Row {
    State from;
    std::optional<State> leave, close, retire;
  };
  const Row rows[] = {
      {kOpen, kLeaving, {}, kRetired},
      {kLeaving, {}, kClosed, kRetired},
      {kClosed, {}, {}, kRetired},
      {kRetired, {}, {}, {}},
  };
  for (const Row& row : rows) {
    CAPTURE(static_cast<int>(row.from));
    const auto leads = [&](bool (EndpointLifecycle::*event)(), std::optional<State> to) {
      EndpointLifecycle life = in(row.from);
      CHECK((life.*event)() == to.has_value());
      CHECK(life.state() == to.value_or(row.from));
    };
    leads(&EndpointLifecycle::leave, row.leave);
    leads(&EndpointLifecycle::close, row.close);
    leads(&EndpointLifecycle::retire, row.retire);
  }
}

TEST_CASE("verbs lifecycle: what each state permits") {
  for (const State state : {kOpen, kLeaving, kClosed, kRetired}) {
    CAPTURE(static_cast<int>(state));
    const EndpointLifecycle life = in(state);
    CHECK(life.open() == (state == kOpen));
    CHECK(life.leaving() == (state == kLeaving));
    CHECK(life.closed() == (state == kClosed || state == kRetired));
    CHECK(life.stopped() == (state == kRetired));
    CHECK_FALSE(life.released());
  }
}

TEST_CASE("verbs lifecycle: memory is taken back once, in any state, which stays") {
  for (const State state : {kOpen, kLeaving, kClosed, kRetired}) {
    CAPTURE(static_cast<int>(state));
    EndpointLifecycle life = in(state);
    CHECK(life.revoke() == (state != kRetired));
    CHECK(life.stopped());
    CHECK(life.state() == state);
    CHECK_FALSE(life.revoke());
  }
  EndpointLifecycle life;
  REQUIRE(life.revoke());
  CHECK(life.leave());
  CHECK(life.close());
  CHECK(life.retire());
}

TEST_CASE("verbs lifecycle: the transport goes once, and no state changes for that") {
  for (const State state : {kOpen, kLeaving, kClosed, kRetired}) {
    CAPTURE(static_cast<int>(state));
    EndpointLifecycle life = in(state);
    CHECK(life.release());
    CHECK(life.released());
    CHECK_FALSE(life.release());
    CHECK(life.state() == state);
  }
}

}  // namespace
}  // namespace tw::verbs

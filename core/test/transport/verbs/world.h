// SPDX-License-Identifier: Apache-2.0
// RDMA for tests: one context for all of them, and pairs of transports joined in this process.
#pragma once

#include <memory>
#include <string>

#include "engine/background.h"
#include "memory/arena.h"
#include "test/transport/pair.h"
#include "transport/verbs/joining.h"
#include "transport/verbs/library.h"
#include "transport/verbs/verbs.h"

namespace tw::test {

// Never destroyed: its background may still retire what a test has left.
class VerbsWorld {
 public:
  // With the devices of `settings`; why() says why there is none.
  explicit VerbsWorld(const verbs::Settings& settings = {});
  // By a library of the test's own, which it keeps.
  VerbsWorld(const verbs::Settings& settings, const verbs::Library& library);

  bool here() const { return static_cast<bool>(context); }
  const std::string& why() const { return why_; }

  std::unique_ptr<verbs::Joining> offer();
  std::unique_ptr<verbs::Joining> answer(const wire::VerbsOffer& offer);
  // The client comes from this world, the server from the other.
  TransportPair join(VerbsWorld& server);
  TransportPair join() { return join(*this); }

  std::unique_ptr<Background> background;
  Ref<Arena> arena;
  Ref<verbs::Context> context;

 private:
  void open(const verbs::Settings& settings, const verbs::Library& library);

  std::string why_;
};

// Different words all over, quicker than pattern() for what is large.
void fill_words(std::byte* to, size_t size);

// The one that most tests share.
VerbsWorld& verbs_world();

#define TENSORWIRE_NEEDS_VERBS TENSORWIRE_NEEDS(tw::test::Verbs)

}  // namespace tw::test

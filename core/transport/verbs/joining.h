// SPDX-License-Identifier: Apache-2.0
// How two ends of a link join their queue pairs, over a connection that has proved who is there.
//
//   client: offers a queue pair for each of its ports (or several)
//   server: makes one for each that a port of its own reaches, connects it, and answers
//   client: connects, and says that it is ready; until then the server sends nothing
#pragma once

#include <memory>

#include "base/fd.h"
#include "transport/verbs/endpoint.h"
#include "transport/verbs/verbs.h"

namespace tw::verbs {

class Joining {
 public:
  // The client's end. UNAVAILABLE, RESOURCE_EXHAUSTED, FAILED_PRECONDITION: no port is usable now.
  static Result<std::unique_ptr<Joining>> offer(Ref<Context> context, Arena& arena,
                                                Poller& background);
  // The server's. FAILED_PRECONDITION also when none of its ports reaches one of the client's.
  static Result<std::unique_ptr<Joining>> answer(Ref<Context> context, Arena& arena,
                                                 Poller& background, const wire::VerbsOffer& offer);
  ~Joining();

  // For the peer.
  const wire::VerbsOffer& frame() const { return frame_; }
  // The client's: the server has answered. FAILED_PRECONDITION: the two have no network in common;
  // any code with which the server refuses; INTERNAL.
  Status accept(const wire::VerbsOffer& answer);
  // Both ends can be reached.
  std::unique_ptr<Transport> become(Fd side);

 private:
  Joining(Ref<Context> context, Ref<Endpoint> endpoint)
      : context_(std::move(context)), endpoint_(std::move(endpoint)) {}

  const Ref<Context> context_;
  Ref<Endpoint> endpoint_;
  wire::VerbsOffer frame_;
};

// The answer of a server that cannot join: its code, and the ports it has.
wire::VerbsOffer refusal(Code code, Context* context);

// Whether packets from `own` can come to `peer`: one kind of network, one family of addresses.
bool reaches(const wire::VerbsPair& own, const wire::VerbsPair& peer);

}  // namespace tw::verbs

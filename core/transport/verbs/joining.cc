// SPDX-License-Identifier: Apache-2.0
#include "transport/verbs/joining.h"

#include <fcntl.h>

#include <algorithm>
#include <array>
#include <optional>

#include "base/text.h"
#include "transport/keep_alive.h"

namespace tw::verbs {
namespace {

Gid gid_of(const wire::VerbsPair& pair) {
  Gid gid;
  gid.bytes = pair.gid;
  switch (pair.network) {
    case wire::VerbsNetwork::kInfiniBand:
      gid.type = GidType::kInfiniBand;
      break;
    case wire::VerbsNetwork::kRoceV1:
      gid.type = GidType::kRoceV1;
      break;
    case wire::VerbsNetwork::kRoceV2:
      gid.type = GidType::kRoceV2;
      break;
  }
  return gid;
}

// "RoCE v2 ::ffff:10.0.0.1, RoCE v1 fe80::1"
std::string addresses(const wire::VerbsOffer& offer) {
  std::string out;
  for (uint32_t i = 0; i < offer.pairs; ++i) {
    const Gid gid = gid_of(offer.pair[i]);
    const std::string one = text({name(gid.type), " ", gid.to_string()});
    if (out.find(one) != std::string::npos) continue;
    if (!out.empty()) out += ", ";
    out += one;
  }
  return out.empty() ? "none" : out;
}

Status no_way(const wire::VerbsOffer& own, const wire::VerbsOffer& peer) {
  return {
      Code::kFailedPrecondition,
      text({"RDMA cannot reach the peer: this end has ", addresses(own), ", the peer ",
            addresses(peer), "; TENSORWIRE_VERBS_GID_INDEX chooses another address of a port"})};
}

// The same port by an address of its that reaches the peer's.
std::optional<OpenRail> towards(const OpenRail& rail, const wire::VerbsPair& peer, bool fixed) {
  if (reaches(describe(rail), peer)) return rail;
  if (fixed) return std::nullopt;
  OpenRail other = rail;
  for (const Gid& gid : rail.rail.port.gids) {
    other.rail.gid = gid;
    if (reaches(describe(other), peer)) return other;
  }
  return std::nullopt;
}

// How many queue pairs a link has at this end, at most.
size_t most_pairs(const Settings& settings, size_t rails) {
  return std::min(rails * settings.qps, wire::kMaxPairs);
}

}  // namespace

bool reaches(const wire::VerbsPair& own, const wire::VerbsPair& peer) {
  if (own.network != peer.network) return false;
  if (own.network == wire::VerbsNetwork::kInfiniBand) return true;
  const Gid a = gid_of(own), b = gid_of(peer);
  return a.ipv4() == b.ipv4() && a.link_local() == b.link_local();
}

wire::VerbsOffer refusal(Code code, Context* context) {
  wire::VerbsOffer out;
  out.code = static_cast<uint32_t>(code);
  if (!context) return out;
  if (auto rails = context->rails())
    for (const OpenRail& rail : *rails)
      if (out.pairs < wire::kMaxPairs) out.pair[out.pairs++] = describe(rail);
  return out;
}

Result<std::unique_ptr<Joining>> Joining::offer(Ref<Context> context, Arena& arena,
                                                Poller& background) {
  auto rails = context->rails();
  if (!rails) return rails.status();
  std::vector<OpenRail> pairs;
  const size_t count = most_pairs(context->settings(), rails->size());
  for (size_t i = 0; i < count; ++i) pairs.push_back((*rails)[i % rails->size()]);
  auto endpoint = Endpoint::create(context, arena, background, pairs);
  if (!endpoint) return endpoint.status();
  std::unique_ptr<Joining> made(new Joining(std::move(context), std::move(*endpoint)));
  made->frame_ = made->endpoint_->describe();
  return made;
}

Result<std::unique_ptr<Joining>> Joining::answer(Ref<Context> context, Arena& arena,
                                                 Poller& background,
                                                 const wire::VerbsOffer& offer) {
  auto rails = context->rails();
  if (!rails) return rails.status();
  const Settings& settings = context->settings();
  std::vector<OpenRail> pairs;
  wire::VerbsOffer peer = offer;  // the pairs that were chosen, in their order
  std::vector<uint32_t> partners, own;
  std::vector<size_t> used(rails->size());
  peer.pairs = 0;
  for (uint32_t i = 0; i < offer.pairs && pairs.size() < most_pairs(settings, rails->size()); ++i) {
    std::optional<OpenRail> best;
    size_t at = 0;
    for (size_t r = 0; r < rails->size(); ++r) {
      if (best && used[r] >= used[at]) continue;
      if (auto rail = towards((*rails)[r], offer.pair[i], settings.gid_index >= 0)) {
        best = std::move(rail);
        at = r;
      }
    }
    if (!best) continue;
    ++used[at];
    own.push_back(static_cast<uint32_t>(pairs.size()));
    pairs.push_back(std::move(*best));
    partners.push_back(i);
    peer.pair[peer.pairs++] = offer.pair[i];
  }
  if (pairs.empty()) return no_way(refusal(Code::kOk, context.get()), offer);
  auto endpoint = Endpoint::create(context, arena, background, pairs);
  if (!endpoint) return endpoint.status();
  std::unique_ptr<Joining> made(new Joining(std::move(context), std::move(*endpoint)));
  made->frame_ = made->endpoint_->describe();
  for (uint32_t i = 0; i < made->frame_.pairs; ++i)
    made->frame_.pair[i].partner = static_cast<uint16_t>(partners[i]);
  if (Status status = made->endpoint_->connect(own, peer); !status.ok()) return status;
  return made;
}

Joining::~Joining() {
  if (endpoint_) endpoint_->leave(false);
}

Status Joining::accept(const wire::VerbsOffer& answer) {
  if (answer.code == static_cast<uint32_t>(Code::kFailedPrecondition) && answer.pairs != 0)
    return no_way(frame_, answer);
  if (answer.code != 0)
    return {static_cast<Code>(answer.code),
            text({"the server refused RDMA with status ", answer.code, "; its log says why"})};
  std::vector<uint32_t> own;
  for (uint32_t i = 0; i < answer.pairs; ++i) {
    const uint32_t partner = answer.pair[i].partner;
    if (partner >= frame_.pairs || std::find(own.begin(), own.end(), partner) != own.end())
      return {Code::kInternal,
              text({"protocol error: verbs: partner ", partner, " of queue pair ", i})};
    if (!reaches(frame_.pair[partner], answer.pair[i])) return no_way(frame_, answer);
    own.push_back(partner);
  }
  return endpoint_->connect(own, answer);
}

std::unique_ptr<Transport> Joining::become(Fd side) {
  fcntl(side.get(), F_SETFL, fcntl(side.get(), F_GETFL) | O_NONBLOCK);
  keep_alive(side.get(), context_->settings().silence);
  endpoint_->take_over(std::move(side));
  return std::make_unique<VerbsTransport>(std::move(endpoint_), context_->settings());
}

}  // namespace tw::verbs

// SPDX-License-Identifier: Apache-2.0
#include "test/transport/verbs/world.h"

#include <array>
#include <cstring>
#include <utility>

namespace tw::test {

void fill_words(std::byte* to, size_t size) {
  for (size_t at = 0; at + 8 <= size; at += 8) {
    const uint64_t word = (at + 1) * 0x9e37'79b9'7f4a'7c15;
    std::memcpy(to + at, &word, sizeof word);
  }
}

namespace {

// As it arrives at the other end.
wire::VerbsOffer sent(const wire::VerbsOffer& offer) {
  std::array<std::byte, wire::kVerbsOfferSize> bytes;
  wire::encode(bytes, offer);
  auto decoded = wire::decode_verbs_offer(bytes);
  REQUIRE(decoded.ok());
  return *decoded;
}

}  // namespace

VerbsWorld::VerbsWorld(const verbs::Settings& settings)
    : background(Background::start("tensorwire").value()),
      arena(make_ref<Arena>(size_t{1} << 30, size_t{16} << 20)) {
  auto library = verbs::Library::get();
  if (library)
    open(settings, **library);
  else
    why_ = library.status().details();
}

VerbsWorld::VerbsWorld(const verbs::Settings& settings, const verbs::Library& library)
    : background(Background::start("tensorwire").value()),
      arena(make_ref<Arena>(size_t{1} << 30, size_t{16} << 20)) {
  open(settings, library);
}

void VerbsWorld::open(const verbs::Settings& settings, const verbs::Library& library) {
  auto opened = verbs::Context::open(library, settings, background->poller());
  if (opened)
    context = std::move(*opened);
  else
    why_ = opened.status().details();
}

std::unique_ptr<verbs::Joining> VerbsWorld::offer() {
  auto joining = verbs::Joining::offer(context, *arena, background->poller());
  INFO((joining.ok() ? std::string{} : joining.status().details()));
  REQUIRE(joining.ok());
  return std::move(*joining);
}

std::unique_ptr<verbs::Joining> VerbsWorld::answer(const wire::VerbsOffer& offer) {
  auto joining = verbs::Joining::answer(context, *arena, background->poller(), sent(offer));
  INFO((joining.ok() ? std::string{} : joining.status().details()));
  REQUIRE(joining.ok());
  return std::move(*joining);
}

TransportPair VerbsWorld::join(VerbsWorld& server) {
  auto a = offer();
  auto b = server.answer(a->frame());
  const Status accepted = a->accept(sent(b->frame()));
  INFO(accepted.details());
  REQUIRE(accepted.ok());
  auto [client, door] = tcp_sockets();
  return {a->become(std::move(client)), b->become(std::move(door))};
}

VerbsWorld& verbs_world() {
  static VerbsWorld* const world = [] {
    verbs::Settings settings;
    settings.queue_depth = 16;
    return new VerbsWorld(settings);
  }();
  return *world;
}

const char* Verbs::missing() {
  return verbs_world().here() ? nullptr : verbs_world().why().c_str();
}

TransportPair Verbs::make() { return verbs_world().join(); }

}  // namespace tw::test

// SPDX-License-Identifier: Apache-2.0
#include "collective/entrance.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/sha256.h"
#include "base/text.h"
#include "process/all_settings.h"
#include "route/attempt.h"
#include "wire/bytes.h"

namespace tw::collective {
namespace {

std::string address_at(const std::string& host, int port) {
  const bool bare = host.find(':') == std::string::npos;
  return bare ? text({host, ":", port}) : text({"[", host, "]:", port});
}

Sha256Digest derived(const wire::Nonce& key, std::string_view what, int host, int guest) {
  const std::string about = text({"tensorwire ", what, " of rank ", guest, " at rank ", host});
  return hmac_sha256(key, {reinterpret_cast<const uint8_t*>(about.data()), about.size()});
}

// Why no kind of links is left between ranks.
Status none_left(Runtime& runtime, const route::Policy& policy) {
  std::vector<std::string> names;
  std::string missing;
  for (const auto& kind : runtime.kinds()) {
    if (!kind->chosen()) continue;
    names.emplace_back(kind->name());
    if (policy.permits(kind->name()))
      missing += text({"; ", kind->name(), ": ", kind->why_not().details()});
  }
  std::string ways;
  for (const auto& name : names)
    ways += text({&name == &names.front() ? "" : &name == &names.back() ? " or " : ", ", name});
  if (!missing.empty())
    return {
        Code::kFailedPrecondition,
        text({"no transport is left of those by which ranks reach each other, ", ways, missing})};
  const std::string& said = policy.required.empty() ? policy.forbidden_by : policy.origin;
  return {Code::kFailedPrecondition, text({"ranks reach each other by ", ways, ", and ", said,
                                           " permits none of these: unset it"})};
}

}  // namespace

Pass pass_of(const wire::Nonce& key, int host, int guest) {
  const Sha256Digest session = derived(key, "session", host, guest),
                     secret = derived(key, "secret", host, guest);
  Pass pass;
  std::copy_n(session.begin(), pass.session.size(), pass.session.begin());
  pass.secret = meet::Secret(secret);
  return pass;
}

Entrance::Entrance(Runtime& runtime, Poller& poller, std::function<void(meet::Connected)> arrived)
    : runtime_(runtime), listener_(make_ref<meet::Listener>(runtime, poller, std::move(arrived))) {}

Status Entrance::open(const route::Policy& policy, const std::string& host) {
  std::string path;
  int port = 0;
  for (const auto& kind : runtime_.kinds()) {
    if (!kind->chosen() || !policy.permits(kind->name()) || !kind->why_not().ok()) continue;
    if (kind->socket() == Kind::Socket::kUnix) {
      if (path.empty()) {
        auto opened = listener_->listen_local();
        if (!opened) return opened.status();
        path = std::move(*opened);
      }
      places_.push_back(text({kind->name(), ":", path}));
    } else {
      if (port == 0) {
        auto opened = listener_->listen_tcp(host, 0);
        if (!opened) return opened.status();
        port = *opened;
      }
      places_.push_back(text({kind->name(), ":", address_at(host, port)}));
    }
  }
  return places_.empty() ? none_left(runtime_, policy) : Status();
}

Result<Pass> Entrance::admit(int guest, const wire::Hello& hello, Nanos time) {
  // One for each way that the guest may try: what came to nothing there may yet be under way here.
  auto ticket = listener_->admit(hello, static_cast<int>(places_.size()),
                                 std::min(time, meet::Admissions::kMaxTtl));
  if (!ticket) return ticket.status();
  listener_->introduce(ticket->session, {}, std::to_string(guest));
  return Pass{ticket->session, ticket->secret};
}

void Entrance::admit(int guest, const wire::Hello& hello, const Pass& pass) {
  listener_->expect(pass.session, pass.secret, {hello, {}, std::to_string(guest)});
}

Result<meet::Connected> enter(Runtime& runtime, const route::Policy& policy, int host,
                              const RankAddress& address, const Pass& pass, const Wait& wait) {
  meet::Invitation invitation;
  invitation.session = pass.session;
  invitation.secret = pass.secret;
  invitation.instance = address.instance;
  invitation.hello = address.hello;
  const wire::Hello ours = runtime.hello();
  const route::Offer offer{wire::same_host(ours, address.hello),
                           wire::same_user(ours, address.hello), address.places};
  std::optional<meet::Connected> made;
  Status interrupted;
  const route::AttemptResult found = route::attempt(
      {route::candidates(runtime.kinds()), {}, policy}, offer, route::asked_of(runtime.kinds()),
      [&](std::string_view, const std::string& place) -> Status {
        if (!interrupted.ok()) return interrupted;
        invitation.address = place;
        auto connected = meet::connect(runtime, invitation, wait);
        if (!connected) {
          if (connected.status().code() == Code::kCancelled) interrupted = connected.status();
          return connected.status();
        }
        made = std::move(*connected);
        return {};
      });
  if (made) return std::move(*made);
  if (!interrupted.ok()) return interrupted;
  std::string why = text({"rank ", host, " cannot be reached"});
  for (const route::Reason& reason : found.reasons)
    why += text({"; ", reason.transport, ": ", reason.why});
  if (!offer.same_host)
    why += text(
        {"; a rank is reached from other hosts at its ", kGroupHost, ", by default ", kLoopback});
  return Status{found.code(), why};
}

}  // namespace tw::collective

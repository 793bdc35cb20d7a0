#include "link/admissions.h"

#include <cstring>

#include "base/text.h"

namespace tw::link {

// A session id is random, so that any part of it is a hash.
size_t Admissions::Hash::operator()(const wire::SessionId& session) const {
  size_t hash;
  std::memcpy(&hash, session.data(), sizeof hash);
  return hash;
}

Result<Admissions::Ticket> Admissions::mint(int connections, Nanos ttl, Nanos at) {
  if (connections < 1 || connections > kMaxConnections) {
    return Status(Code::kInvalidArgument, text({"a session admits 1 to ", kMaxConnections,
                                                " connections, not ", connections}));
  }
  if (ttl <= 0 || ttl > kMaxTtl) {
    return Status(Code::kInvalidArgument, text({"a session lives for up to ", kMaxTtl / kSecond,
                                                " s, not for ", ttl, " ns"}));
  }
  Ticket ticket;
  if (Status s = fill_random(ticket.session); !s.ok()) return s;
  Result<Secret> secret = Secret::random();
  if (!secret.ok()) return secret.status();
  ticket.secret = std::move(*secret);

  const std::lock_guard lock(mutex_);
  expire_locked(at);
  if (entries_.size() >= capacity_) {
    return Status(Code::kResourceExhausted,
                  text({"all ", capacity_,
                        " sessions of this server are waiting for their "
                        "connections; try again when some have expired"}));
  }
  entries_.insert_or_assign(ticket.session,
                            Entry{ticket.secret, at + ttl, connections, connections});
  return ticket;
}

Result<Secret> Admissions::find(const wire::SessionId& session, Nanos at) {
  const std::lock_guard lock(mutex_);
  Result<Entry*> entry = find_live(session, at);
  if (!entry.ok()) return entry.status();
  return (*entry)->secret;
}

Status Admissions::admit(const wire::SessionId& session, Nanos at) {
  const std::lock_guard lock(mutex_);
  Result<Entry*> entry = find_live(session, at);
  if (!entry.ok()) return entry.status();
  if (--(*entry)->left == 0) (*entry)->secret.wipe();
  return {};
}

void Admissions::expire(Nanos at) {
  const std::lock_guard lock(mutex_);
  expire_locked(at);
}

size_t Admissions::size() const {
  const std::lock_guard lock(mutex_);
  return entries_.size();
}

Result<Admissions::Entry*> Admissions::find_live(const wire::SessionId& session, Nanos at) {
  const auto found = entries_.find(session);
  if (found == entries_.end()) {
    return Status(Code::kUnauthenticated,
                  "the session was never minted by this server, or it expired some time ago");
  }
  Entry& entry = found->second;
  if (entry.deadline <= at) {
    const Nanos late = at - entry.deadline;
    entries_.erase(found);
    return Status(Code::kUnauthenticated,
                  text({"the session expired ", late / kMillisecond, " ms ago"}));
  }
  if (entry.left == 0) {
    return Status(Code::kUnauthenticated,
                  text({"the session is used up: it has admitted all of its ", entry.connections,
                        " connections"}));
  }
  return &entry;
}

void Admissions::expire_locked(Nanos at) {
  std::erase_if(entries_, [at](const auto& entry) { return entry.second.deadline <= at; });
}

}  // namespace tw::link

// SPDX-License-Identifier: Apache-2.0
#include "meet/admissions.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "base/random.h"
#include "base/text.h"

namespace tw::meet {

// A session id is random, so that any part of it is a hash.
size_t Admissions::Hash::operator()(const wire::SessionId& session) const {
  size_t hash;
  std::memcpy(&hash, session.data(), sizeof hash);
  return hash;
}

Result<Admissions::Ticket> Admissions::mint(int connections, Nanos ttl, Nanos at,
                                            std::string_view source, const wire::Hello& client) {
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

  const MutexLock lock(mutex_);
  expire_locked(at);
  if (entries_.size() >= capacity_) {
    evict();
    ticket.evicted = true;
  }
  enter(ticket.session, ticket.secret, connections, at + ttl, source, {client, {}, {}});
  return ticket;
}

void Admissions::expect(const wire::SessionId& session, const Secret& secret, const Guest& guest) {
  const MutexLock lock(mutex_);
  enter(session, secret, std::numeric_limits<int>::max(), kForever, {}, guest);
}

// Mutex held.
void Admissions::enter(const wire::SessionId& session, const Secret& secret, int connections,
                       Nanos deadline, std::string_view source, const Guest& guest) {
  // All that takes memory comes before the first change.
  Sources source_of;
  source_of.try_emplace(std::string(source));
  std::list<wire::SessionId> place{session};
  std::set<std::pair<Nanos, wire::SessionId>> end{{deadline, session}};
  const auto [entry, fresh] = entries_.try_emplace(
      session, Entry{secret, guest, deadline, connections, connections, 0, {}, place.begin()});
  sources_.merge(source_of);
  const auto of = sources_.find(source);
  of->second.splice(of->second.end(), place);
  ends_.merge(end);
  entry->second.source = of;
}

// Mutex held.
void Admissions::evict() {
  const auto greediest = std::max_element(
      sources_.begin(), sources_.end(),
      [](const auto& a, const auto& b) { return a.second.size() < b.second.size(); });
  forget(entries_.find(greediest->second.front()));
}

// Mutex held.
void Admissions::forget(Entries::iterator at) {
  Entry& entry = at->second;
  entry.source->second.erase(entry.place);
  if (entry.source->second.empty()) sources_.erase(entry.source);
  ends_.erase({entry.deadline, at->first});
  entries_.erase(at);
}

void Admissions::introduce(const wire::SessionId& session, std::string caller, std::string agent) {
  const MutexLock lock(mutex_);
  const auto found = entries_.find(session);
  if (found == entries_.end()) return;
  found->second.guest.caller = std::move(caller);
  found->second.guest.agent = std::move(agent);
}

Result<Secret> Admissions::find(const wire::SessionId& session, Nanos at) {
  const MutexLock lock(mutex_);
  Result<Entry*> entry = find_live(session, at);
  if (!entry.ok()) return entry.status();
  return (*entry)->secret;
}

Result<Admissions::Guest> Admissions::admit(const wire::SessionId& session, Nanos at) {
  const MutexLock lock(mutex_);
  Result<Entry*> entry = find_live(session, at);
  if (!entry.ok()) return entry.status();
  Guest guest = (*entry)->guest;  // before anything changes: it takes memory
  --(*entry)->left;
  ++(*entry)->pending;
  return guest;
}

void Admissions::settle(const wire::SessionId& session) {
  const MutexLock lock(mutex_);
  const auto found = entries_.find(session);
  if (found == entries_.end()) return;
  if (--found->second.pending == 0 && found->second.left == 0) forget(found);
}

void Admissions::give_back(const wire::SessionId& session) {
  const MutexLock lock(mutex_);
  const auto found = entries_.find(session);
  if (found == entries_.end()) return;
  --found->second.pending;
  ++found->second.left;
}

size_t Admissions::size() const {
  const MutexLock lock(mutex_);
  return entries_.size();
}

Result<Admissions::Entry*> Admissions::find_live(const wire::SessionId& session, Nanos at) {
  const auto found = entries_.find(session);
  if (found == entries_.end()) {
    return Status(Code::kUnauthenticated,
                  "the session was never minted by this server, or it was used, gave way to "
                  "others, or expired some time ago");
  }
  Entry& entry = found->second;
  if (entry.deadline <= at) {
    const Nanos late = at - entry.deadline;
    forget(found);
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
  while (!ends_.empty() && ends_.begin()->first <= at) forget(entries_.find(ends_.begin()->second));
}

}  // namespace tw::meet

// SPDX-License-Identifier: Apache-2.0
#include "collective/members.h"

#include <utility>

#include "base/text.h"
#include "link/link.h"

namespace tw::collective {
namespace {

// How long a rank that leaves waits for what the others have yet to take.
constexpr Nanos kFarewell = kSecond;

// What a peer takes is no event here: looked at again and again.
template <class Done>
void drive_until(Link& link, Done&& done, Nanos deadline) {
  Event event;
  while (!done() && now() < deadline)
    (void)link.wait(event, done, std::min(deadline, now() + kMillisecond));
}

void flush(Link& link, Nanos deadline) {
  link.flush();
  drive_until(link, [&] { return link.backlog() == 0 || link.closed(); }, deadline);
}

// This process may be about to end, and then nobody sees to the last words.
void see_off(Link& link, Nanos deadline) {
  drive_until(link, [&] { return link.lost() || !link.undelivered(); }, deadline);
}

std::unique_ptr<HostWatch> watch_hosts(const std::vector<Ref<CallPort>>& ports) {
  std::vector<Link*> links;
  Nanos limit = 0;
  for (const Ref<CallPort>& port : ports)
    if (port) {
      links.push_back(&port->link());
      limit = port->link().runtime().settings().group_silence;
    }
  return std::make_unique<HostWatch>(links, limit);
}

}  // namespace

Members::Members(int rank, std::vector<Ref<CallPort>> ports)
    : rank_(rank), ports_(std::move(ports)), hosts_(watch_hosts(ports_)) {}

Members::~Members() {
  const Nanos deadline = now() + kFarewell;
  for (const Ref<CallPort>& port : ports_) {
    if (!port || port->link().inherited()) continue;
    port->link().surely([&] {
      flush(port->link(), deadline);
      port->link().close({Code::kCancelled, "this process has left the group"});
    });
  }
  for (const Ref<CallPort>& port : ports_)
    if (port && !port->link().inherited())
      port->link().surely([&] { see_off(port->link(), deadline); });
}

std::string Members::name(int rank) const {
  if (rank == rank_) return text({"rank ", rank, " (this process)"});
  return text({"rank ", rank, " (", link(rank).peer().name(), ")"});
}

void Members::fail(const Status& why) {
  {
    const MutexLock lock(mutex_);
    if (!failure_.ok()) return;
    failure_ = why;
  }
  failed_.store(true, std::memory_order_release);
  for (const Ref<CallPort>& port : ports_)
    if (port && !port->link().inherited())
      port->link().surely([&] { port->link().go_away(Code::kAborted, why.details()); });
}

Status Members::failure() const {
  if (!failed()) return {};
  const MutexLock lock(mutex_);
  return failure_;
}

Status Members::standing(int rank) const {
  if (rank == rank_ || link(rank).alive()) return {};
  if (link(rank).peer_closed())
    return {Code::kUnavailable, text({name(rank), " has left the group"})};
  return {Code::kUnavailable, text({name(rank), " is gone: ", link(rank).death().details()})};
}

Status Members::standing() const {
  for (int i = 0; i < size(); ++i)
    if (i != rank_ && !link(i).alive() && !link(i).peer_closed()) return standing(i);
  return {};
}

bool Members::gone(int rank) const {
  return rank != rank_ && (link(rank).closed() || link(rank).peer_closed());
}

}  // namespace tw::collective

// SPDX-License-Identifier: Apache-2.0
#include "collective/members.h"

#include <utility>

#include "base/text.h"
#include "link/link.h"

namespace tw::collective {
namespace {

// How long a rank that leaves waits for what the others have yet to take.
constexpr Nanos kFarewell = kSecond;

void flush(Link& link, Nanos deadline) {
  Event event;
  link.flush();
  while (link.backlog() != 0 && !link.closed() && now() < deadline)
    (void)link.wait(
        event, [&] { return link.backlog() == 0; }, std::min(deadline, now() + kMillisecond));
}

}  // namespace

Members::Members(int rank, std::vector<Ref<CallPort>> ports)
    : rank_(rank), ports_(std::move(ports)) {}

Members::~Members() {
  const Nanos deadline = now() + kFarewell;
  for (const Ref<CallPort>& port : ports_) {
    if (!port || port->link().inherited()) continue;
    port->link().surely([&] {
      flush(port->link(), deadline);
      port->link().close({Code::kCancelled, "this process has left the group"});
    });
  }
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

}  // namespace tw::collective

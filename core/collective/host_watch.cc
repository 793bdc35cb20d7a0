// SPDX-License-Identifier: Apache-2.0
#include "collective/host_watch.h"

#include <algorithm>
#include <optional>

namespace tw::collective {
namespace {

// Of ipv4:10.0.0.7:4242 what is before the port.
std::string host_of(const Link& link) {
  const std::string& address = link.peer().address;
  return address.substr(0, address.rfind(':'));
}

}  // namespace

HostWatch::HostWatch(Nanos limit)
    : limit_(limit), every_(limit / Silence::kLooks), next_(kForever) {}

void HostWatch::add(Link& link) {
  if (limit_ == 0 || !link.host_answer()) return;
  const std::string address = host_of(link);
  const MutexLock lock(mutex_);
  auto host = std::ranges::find(hosts_, address, &Host::address);
  if (host == hosts_.end()) host = hosts_.insert(host, Host{address, {}, Silence(limit_)});
  if (std::ranges::find(host->links, &link) != host->links.end()) return;
  host->links.push_back(&link);
  next_.store(0, std::memory_order_relaxed);
}

void HostWatch::look() {
  const Nanos at = now();
  Nanos next = next_.load(std::memory_order_relaxed);
  if (at < next || !next_.compare_exchange_strong(next, at + every_)) return;
  std::vector<Link*> asked, lost;
  {
    const MutexLock lock(mutex_);
    for (Host& host : hosts_) {
      // What a host acknowledges on one link shows that it is there for all of them.
      HostAnswer all{false, kForever, false};
      Link* open = nullptr;
      for (Link* link : host.links) {
        if (!link->alive()) continue;
        const HostAnswer answer = *link->host_answer();
        all.due = all.due || answer.due;
        all.ago = std::min(all.ago, answer.ago);
        if (!open && answer.room) open = link;
      }
      all.room = open != nullptr;
      switch (host.silence.look(at, all)) {
        case Silence::Verdict::kThere:
          break;
        case Silence::Verdict::kAsk:
          asked.push_back(open);
          break;
        case Silence::Verdict::kLost:
          lost.insert(lost.end(), host.links.begin(), host.links.end());
          break;
      }
    }
  }
  for (Link* link : asked) link->surely([&] { link->ask_host(); });
  for (Link* link : lost) link->surely([&] { link->lose_host(); });
}

}  // namespace tw::collective

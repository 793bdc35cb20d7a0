// SPDX-License-Identifier: Apache-2.0
#include "transport/verbs/context.h"

#include <utility>

#include "transport/verbs/choice.h"
#include "transport/verbs/library.h"

namespace tw::verbs {

// Notes that the rails may have to be chosen anew.
class Context::Changes final : public Observer {
 public:
  void on_event(const AsyncEvent& event) override {
    if (event.kind != AsyncEvent::Kind::kQueuePair && event.kind != AsyncEvent::Kind::kCompletions)
      note();
  }
  void note() { changed_.store(true, std::memory_order_release); }
  bool take() { return changed_.exchange(false, std::memory_order_acq_rel); }

 private:
  std::atomic<bool> changed_{true};
};

Context::Context(const Library& library, const Settings& settings, Poller& poller)
    : library_(library), settings_(settings), poller_(poller), changes_(make_ref<Changes>()) {}

Context::~Context() {
  for (const Ref<Domain>& domain : domains_) {
    domain->forget(*changes_);
    domain->close();
  }
}

Result<Ref<Context>> Context::open(const Library& library, const Settings& settings,
                                   Poller& poller) {
  auto context = Ref<Context>::adopt(new Context(library, settings, poller));
  if (auto rails = context->rails(); !rails) return rails.status();
  return context;
}

Result<std::vector<OpenRail>> Context::rails() {
  const MutexLock lock(mutex_);
  if (!changes_->take()) return rails_;
  if (Status status = choose(); !status.ok()) {
    changes_->note();  // what is missing now may be there next time
    return status;
  }
  return rails_;
}

Status Context::choose() {
  std::erase_if(domains_, [&](const Ref<Domain>& domain) {
    if (!domain->lost()) return false;
    domain->forget(*changes_);
    domain->close();
    return true;
  });
  std::vector<std::string> skipped;
  auto devices = list_devices(library_, &skipped);
  if (!devices) return devices.status();
  auto chosen =
      choose_rails(*devices, settings_, [&](int node) { return numa_distance(library_, node); });
  if (!chosen) {
    std::string why = chosen.status().details();
    for (const std::string& reason : skipped) why += "; " + reason;
    return {chosen.status().code(), std::move(why)};
  }
  std::vector<OpenRail> rails;
  for (Rail& rail : *chosen) {
    auto domain = domain_of(rail.device);
    if (!domain) return domain.status();
    rails.push_back({std::move(rail), std::move(*domain)});
  }
  rails_ = std::move(rails);
  return {};
}

Result<Ref<Domain>> Context::domain_of(const std::string& device) {
  for (const Ref<Domain>& domain : domains_)
    if (domain->device().name == device) return domain;
  auto domain = Domain::open(library_, device, settings_);
  if (!domain) return domain.status();
  if (Status status = (*domain)->watch(poller_); !status.ok()) return status;
  (*domain)->observe(changes_);
  domains_.push_back(*domain);
  return domain;
}

void Context::slabs_dropped() {
  std::vector<Ref<Domain>> domains;
  {
    const MutexLock lock(mutex_);
    domains = domains_;
  }
  for (const Ref<Domain>& domain : domains) domain->slabs_dropped();
}

DomainStats Context::stats() const {
  const MutexLock lock(mutex_);
  DomainStats sum;
  for (const Ref<Domain>& domain : domains_) {
    const DomainStats stats = domain->stats();
    sum.registrations += stats.registrations;
    sum.pinned += stats.pinned;
    sum.temporary += stats.temporary;
    sum.temporary_made += stats.temporary_made;
    sum.windows += stats.windows;
  }
  return sum;
}

}  // namespace tw::verbs

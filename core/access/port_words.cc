// SPDX-License-Identifier: Apache-2.0
// Words of this end's memory: waits for what a peer writes there.
#include <poll.h>

#include <algorithm>
#include <ctime>

#include "access/nudges.h"
#include "access/port.h"
#include "base/text.h"

namespace tw {

Result<AccessPort::Word> AccessPort::word(uint64_t region, uint64_t offset) {
  const Link::Sending sending(link_);
  Ref<Grant> grant = target_.find(region);
  if (!grant) return over() ? link_.death() : no_such_region(region);
  const uint64_t length = grant->region.length;
  if (offset > length || length - offset < sizeof(uint64_t))
    return Status{Code::kOutOfRange, text({"a word at offset ", offset, " is not inside region ",
                                           region, " of ", length, " bytes"})};
  if (reinterpret_cast<uintptr_t>(grant->data + offset) % sizeof(uint64_t) != 0)
    return Status{Code::kInvalidArgument,
                  text({"a word begins at a multiple of 8 bytes, which offset ", offset,
                        " of region ", region, " does not"})};
  return Word(std::move(grant), offset);
}

Waited AccessPort::wait_word(const Word& word, uint64_t at_least, Nanos deadline) {
  const auto done = [&] { return word.load() >= at_least || word.over() || over(); };
  const Grant& grant = *word.grant_;
  if (grant.shared && grant.door) {
    // The peer stores there itself, and the link needs no driver for it but the background.
    SharedWords* const words = &grant.shared->words();
    return wait_nudged(
        {&words, 1}, done, link_.runtime().settings().spin,
        [&] { return glance_at(*grant.shared); }, deadline);
  }
  const WordWaits::Entry entry(link_.runtime().word_waits(), *this);
  // A device stores there without telling anybody, and so does a peer of another link that has it
  // mapped, as far as this link's driver can see. Such a peer may come and go meanwhile: expose()
  // tells of it.
  const auto silent = [&] {
    return device_ || (grant.shared &&
                       (grant.shared->mappers.load() != 0 || grant.shared->devices.load() != 0));
  };
  for (;;) {
    const bool looks = silent();
    const Nanos slice = looks ? std::min(deadline, now() + kCloseGlance) : deadline;
    const Waited waited =
        link_.wait(arrival_, [&] { return done() || (!looks && silent()); }, slice);
    if (waited == Waited::kDone && !done()) continue;
    if (waited != Waited::kTimeout || slice == deadline) return waited;
  }
}

Status AccessPort::ended(const Word& word) {
  return over() ? link_.death() : no_such_region(word.grant_->region.id);
}

uint64_t AccessPort::change(const Word& word, uint64_t value, bool add) {
  const uint64_t before = add ? word.word().fetch_add(value, std::memory_order_acq_rel)
                              : word.word().exchange(value, std::memory_order_acq_rel);
  word.grant_->changed();
  link_.runtime().word_waits().tell();
  return before;
}

bool AccessPort::peer_died() const {
  const Fd& process = link_.peer().pidfd;
  // Without a pidfd only the end of the link tells it.
  if (!process) return link_.lost();
  pollfd dead{process.get(), POLLIN, 0};
  return ::poll(&dead, 1, 0) == 1;
}

Waited AccessPort::wait_left(const Grant& concealed, Nanos deadline) {
  // A peer that is inside copies, which takes no time worth a way to be woken by it.
  const auto left = [&] { return concealed.left() || peer_died(); };
  for (Nanos pause = 10 * kMicrosecond; !left(); pause = std::min(2 * pause, kMillisecond)) {
    const Nanos left_over = deadline - now();
    if (left_over <= 0) return Waited::kTimeout;
    const timespec time{0, static_cast<long>(std::min(pause, left_over))};
    if (nanosleep(&time, nullptr) != 0) return Waited::kSignal;
  }
  const Link::Sending sending(link_);
  std::erase_if(leaving_, [&](const Ref<Grant>& grant) { return grant.get() == &concealed; });
  return Waited::kDone;
}

void AccessPort::look_again() {
  arrival_.notify();
  link_.nudge(arrival_);
}

}  // namespace tw

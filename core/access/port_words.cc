// SPDX-License-Identifier: Apache-2.0
// Words of this end's memory: waits for what a peer writes there.
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
  const WordWaits::Entry entry(link_.runtime().word_waits(), *this);
  return link_.wait(
      arrival_, [&] { return word.load() >= at_least || word.over() || over(); }, deadline);
}

Status AccessPort::ended(const Word& word) {
  return over() ? link_.death() : no_such_region(word.grant_->region.id);
}

uint64_t AccessPort::change(const Word& word, uint64_t value, bool add) {
  const uint64_t before = add ? word.word().fetch_add(value, std::memory_order_acq_rel)
                              : word.word().exchange(value, std::memory_order_acq_rel);
  link_.runtime().word_waits().tell();
  return before;
}

void AccessPort::look_again() {
  arrival_.notify();
  link_.nudge(arrival_);
}

}  // namespace tw

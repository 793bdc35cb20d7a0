// SPDX-License-Identifier: Apache-2.0
// What other ranks send to this one: the next message of a certain rank, or of whichever is first.
#pragma once

#include <list>
#include <set>

#include "collective/point_to_point.h"
#include "engine/event.h"

namespace tw::collective {

// Thread-safe. Errors as those of Fabric.
class Mailbox {
 public:
  explicit Mailbox(Members& members) : members_(members) {}

  // The next message with the tag from another rank.
  Result<InMessage> receive(int rank, uint64_t tag, const Wait& wait);
  // ... from any. What else asks for messages with the tag, and begins later, waits for it.
  struct FromAny {
    int rank = 0;
    InMessage message;
  };
  Result<FromAny> receive_any(uint64_t tag, const Wait& wait);

 private:
  struct Asked {
    uint64_t tag;
    int rank;
    Ref<TaggedReceive> receive;
  };
  class Asking;

  // Until nobody asks all ranks; `ready`, under the lock, then takes what is to be taken.
  template <class Ready>
  Status await_turn(uint64_t tag, const Wait& wait, Ready&& ready);

  Members& members_;
  Event turns_;  // somebody asks all ranks no more
  Mutex mutex_;  // guards what follows; those of ports are taken inside
  std::set<uint64_t> asking_ TW_GUARDED_BY(mutex_);  // tags for which all ranks are asked
  // Messages that came when that of another rank had been taken; one at most of a rank and tag.
  std::list<Asked> kept_ TW_GUARDED_BY(mutex_);
};

}  // namespace tw::collective

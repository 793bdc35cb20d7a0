// SPDX-License-Identifier: Apache-2.0
// How a link comes to its end. Each of its ends closes it for itself, hence two states, which only
// go down these tables:
//
//   this end   entered by        what the link does
//   kOpen                        all
//   kClosing   close(), fail()   carries what was begun before, and lets leases come home
//   kLost      end()             nothing: it has let go of everything
//
//   the peer   entered by        what the peer does
//   kStays                       all
//   kLeaves    leave(a reason)   begins nothing, and takes nothing that begins
//   kClosed    leave(kOk)        has closed it: what it had sent still comes
#pragma once

#include <atomic>
#include <cstdint>
#include <string_view>
#include <utility>

#include "base/mutex.h"
#include "base/status.h"

namespace tw {

// Thread-safe.
class Lifecycle {
 public:
  // Why whoever drives is to lose the link.
  // kSilent: by the limit of links; kGroupSilent: by that of groups.
  enum class Doom : uint8_t { kNone, kStalled, kStarved, kSilent, kGroupSilent };

  bool open() const { return here_.load() == Here::kOpen; }
  bool closing() const { return here_.load() == Here::kClosing; }
  bool lost() const { return here_.load() == Here::kLost; }
  bool alive() const { return open() && there_.load(std::memory_order_relaxed) == There::kStays; }
  bool peer_closed() const { return there_.load(std::memory_order_acquire) == There::kClosed; }
  // Why it is not alive; ok while it is.
  Status why() const;

  // This end closes it. False: it had been closed, or lost.
  bool close(Status why);
  // Baton held. It is about to be lost. A peer that has said why it leaves is not just gone.
  void fail(Status why);
  void end() { here_.store(Here::kLost); }
  // The peer leaves; kOk: it has closed the link, without a reason before.
  void leave(Code code, std::string_view reason);

  void doom(Doom why) { doom_.store(why); }
  Doom doomed() const { return doom_.load(); }

 private:
  enum class Here : uint8_t { kOpen, kClosing, kLost };
  enum class There : uint8_t { kStays, kLeaves, kClosed };

  std::atomic<Here> here_{Here::kOpen};
  std::atomic<There> there_{There::kStays};
  std::atomic<Doom> doom_{Doom::kNone};
  mutable Mutex mutex_;  // held while a state changes, but for end()
  Status why_ TW_GUARDED_BY(mutex_);
};

}  // namespace tw

// The contract of a transport: how bytes move on one link. docs/new-transport.md explains how to
// write another.
//
// A transport is two ordered byte pipes, a way to sleep and be woken, and, where the profile says
// so, memory of the peer that can be mapped. It knows nothing of frames, calls or links.
#pragma once

#include <sys/uio.h>

#include <cstdint>
#include <span>
#include <string>

#include "base/clock.h"
#include "base/ref.h"
#include "base/status.h"
#include "engine/poller.h"
#include "memory/arena.h"
#include "memory/mapping.h"
#include "memory/region.h"

namespace tw {

// How segments too large for an eager send travel.
enum class Bulk : uint8_t {
  kPush,  // as chunks in the byte pipe
  kMap,   // by a descriptor; the receiver reads them in the sender's arena on a lease
  kRead,  // by a ready-to-send per chunk; the receiver fetches each with a one-sided read
};

// What suits a transport: the message machine's thresholds.
struct Profile {
  const char* name;
  Bulk bulk;
  size_t coalesce_bytes;  // consecutive small segments share a frame up to this many bytes together
  size_t eager_bytes;     // a segment up to this size is copied and sent at once
  size_t chunk_bytes;     // a larger one is cut into chunks of this size (kPush, kRead)
  uint32_t chunks_in_flight;  // kRead: ready-to-sends outstanding per message
};

enum class Wake : uint8_t { kReady, kTimeout, kSignal };

// Locks: "send lock" and "baton" are the link's. Members that name neither may be called from any
// thread. After an error from send() or receive() the transport is dead and only destroyed.
class Transport {
 public:
  virtual ~Transport() = default;

  virtual const Profile& profile() const = 0;

  // Send lock held. Bytes taken, 0 when the pipe is full.
  // kUnavailable: the peer is gone.
  virtual Result<size_t> send(std::span<const iovec> data) = 0;

  // Baton held. Bytes stored, 0 when there are none now.
  // kUnavailable: the peer is gone and everything it had sent has been received.
  virtual Result<size_t> receive(std::span<const iovec> room) = 0;

  // Baton held. Whether receive() is worth trying; costs no system call where the transport can
  // tell without one.
  virtual bool readable() = 0;

  // Baton held. Sleeps until there may be something to receive, room to send (if want_send),
  // interrupt(), a signal or the deadline.
  virtual Wake sleep(bool want_send, Nanos deadline) = 0;
  // Ends the present or the next sleep().
  virtual void interrupt() = 0;

  // Registers with the poller; no activity is reported until arm(). The watcher's tags are the
  // transport's own.
  virtual Status watch(Poller& poller, Ref<Watcher> watcher) = 0;
  virtual void unwatch() = 0;
  // Baton held, as the last thing before it is let go. From now on one activity is reported when
  // something can be received (or sent, if want_send), at once if it can already.
  virtual void arm(bool want_send) = 0;
  // Somebody drives again; a report that was already under way may still come.
  virtual void disarm() = 0;
  // The watcher asks first thing what an event means; any thread's Poller may call it.
  enum class Notice : uint8_t { kNone, kActivity, kHungUp };
  virtual Notice notice(uint32_t tag, uint32_t events) = 0;

  // The peer's process has died (or hung up): once drained, receive() fails with `why`.
  virtual void peer_gone(std::string why) = 0;

  // Baton held. Tells the peer that nothing more comes, and asks for nothing more.
  virtual void hang_up() = 0;

  // kMap. Send lock held: the peer will be able to map this slab before it reads what is sent from
  // now on.
  virtual Status share(Slab& slab);
  // kMap. Send lock held: the arena has dropped slabs; the peer is told of those it knows.
  virtual void slabs_dropped() {}
  // kMap. Baton held: the peer's memory named by a descriptor. kInternal: the descriptor is wrong.
  virtual Result<Located> locate(const RegionRef& region);
};

}  // namespace tw

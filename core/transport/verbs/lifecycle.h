// SPDX-License-Identifier: Apache-2.0
// How an endpoint comes to its end. Its state only goes down this table:
//
//   state      entered by                        what the endpoint does
//   kOpen                                        all
//   kLeaving   leave(): its link hangs up        begins nothing; what was sent still goes out
//   kClosed    close(): that has happened, or    has ended the side connection, which tells the
//              cannot happen any more            peer; keeps its queue pairs
//   kRetired   retire()                          nothing: the queue pairs are gone
//
//   event      kOpen      kLeaving   kClosed    kRetired
//   leave()    kLeaving   -          -          -
//   close()    -          kClosed    -          -
//   retire()   kRetired   kRetired   kRetired   -
//
// Two facts stand beside it, because either may come in several of these states. revoke(): the
// device works for the endpoint no more, so that memory may be let go of; the link takes memory
// back before it hangs up, or while the last SENDs go out. release(): the transport is gone, so
// that nobody but the endpoint itself sees to its retirement.
#pragma once

#include <cstdint>
#include <utility>

namespace tw::verbs {

// Not thread-safe: the endpoint's lock guards it. Each event returns whether it was permitted;
// where it was not, nothing has changed.
class EndpointLifecycle {
 public:
  enum class State : uint8_t { kOpen, kLeaving, kClosed, kRetired };

  State state() const { return state_; }
  bool open() const { return state_ == State::kOpen; }
  bool leaving() const { return state_ == State::kLeaving; }
  // The side connection has been ended.
  bool closed() const { return state_ >= State::kClosed; }
  // The device works for it no more.
  bool stopped() const { return revoked_ || state_ == State::kRetired; }
  // What is left is the endpoint's own to retire, once it is closed.
  bool released() const { return released_; }

  bool leave() { return open() && enter(State::kLeaving); }
  bool close() { return leaving() && enter(State::kClosed); }
  bool retire() { return state_ != State::kRetired && enter(State::kRetired); }
  bool revoke() { return !stopped() && (revoked_ = true); }
  bool release() { return !std::exchange(released_, true); }

 private:
  bool enter(State next) {
    state_ = next;
    return true;
  }

  State state_ = State::kOpen;
  bool revoked_ = false;
  bool released_ = false;
};

}  // namespace tw::verbs

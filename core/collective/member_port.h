// SPDX-License-Identifier: Apache-2.0
// A link to another rank, and what the two tell each other of the group over it. That comes as
// calls, which wait for no credit, and for nobody to ask.
#pragma once

#include "call/client.h"
#include "collective/agreement.h"
#include "collective/wire.h"
#include "engine/poller.h"

namespace tw::collective {

class MemberPort;

// Whose the ports are: told by whoever drives a link, perhaps with its baton held.
class PortOwner : public Watcher {
 public:
  // Ranks of the group.
  virtual int size() const = 0;
  // The link carries nothing any more, or the other end has closed it.
  virtual void ended(int rank, const CallPort& port) noexcept = 0;
  // The other end has said it.
  virtual void heard(int from, const CallPort& port, const Word& word) = 0;
  // The other end has waited in this operation for a while.
  virtual void waits(int rank, const NumberedCall& call) = 0;
  // The other end would use the link, which it has made. Its question is answered, if not at once.
  virtual void asked(int rank, MemberPort& port, uint64_t question) = 0;
  // The other end may have answered such a question of this one.
  virtual void answered(int rank, const MemberPort& port) noexcept = 0;
};

class MemberPort final : public CallPort {
 public:
  MemberPort(Link& link, Ref<PortOwner> owner, int rank)
      : CallPort(link), owner_(std::move(owner)), rank_(rank) {}

  void say(const Word& word);
  // This rank has waited there for a while.
  void say(const NumberedCall& call);
  // Whether the other end takes the link: OK, or how else the call ends. Without memory the link is
  // lost.
  Result<Ref<ClientCall>> ask();
  // The answer. `question`: its stream.
  void say_whether(uint64_t question, bool taken);

 private:
  Status on_message(Ref<Parcel> message) override;
  Status on_request(Ref<Parcel> message) override;
  void on_peer_closed() override { owner_->ended(rank_, *this); }
  void end_all(const Status& why) override {
    CallPort::end_all(why);
    owner_->ended(rank_, *this);
  }

  void send(const char* method, const char* key, std::string_view bytes);

  const Ref<PortOwner> owner_;
  const int rank_;
};

}  // namespace tw::collective

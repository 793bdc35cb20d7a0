// SPDX-License-Identifier: Apache-2.0
// A communicator of MPI: a group of ranks, and the messages between them.
//
// All operations return MPI's success, or an error with its sentence (error.h). One that fails ends
// the group for all of its ranks, but for arguments that are wrong by themselves.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "abi.h"
#include "sender.h"
#include "tensorwire.h"

namespace tensorwire::mpi {

// What each group of the process is made with. The store outlives them all.
struct Setting {
  const tw_table* core;
  tw_store store;
  int64_t timeout_ns;  // of joining, and of each operation
};

class Communicator {
 public:
  // Joins the group whose keys in the store begin with `name`: returns once all ranks have come.
  // One that cannot be joined is returned, too: each of its operations fails with the reason,
  // because XLA looks at operations only. `interrupted` may be null.
  static std::shared_ptr<Communicator> join(const Setting& setting, std::string name, int rank,
                                            int size, int (*interrupted)(void*));
  // One of which each operation fails with the reason.
  static std::shared_ptr<Communicator> broken(int rank, int size, std::string why);
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;
  ~Communicator();

  int rank() const { return rank_; }
  int size() const { return size_; }
  // Why it cannot be used; empty: it can.
  const std::string& why_broken() const { return broken_; }
  const char* fabric() const;
  void statistics(tw_visit_operations visit, void* context) const;

  int barrier();
  int all_reduce(const void* in, void* out, int count, Handle type, Handle op);
  int all_gather(const void* in, void* out, int count, Handle type);
  // `counts`: of each rank's share, all the same.
  int reduce_scatter(const void* in, void* out, const int* counts, Handle type, Handle op);
  // Communicators of those that give the same color, ordered by key; null for k_UNDEFINED. One that
  // could not be made is broken.
  std::shared_ptr<Communicator> split(int color, int key);

  // Begins a message; null with an error for arguments that are wrong.
  std::shared_ptr<Message> send(const void* data, int count, Handle type, int to, int tag);
  // Until it has been sent.
  int sent(const Message& message);
  int receive(void* into, int count, Handle type, int from, int tag);
  // Ends the group for all ranks, and what is under way.
  void abort(const char* why);

 private:
  Communicator(const Setting& setting, std::string name, int rank, int size);

  int run(int kind, const void* in, void* out, uint64_t count, int type, int op);
  tw_wait wait() const { return {setting_.timeout_ns, nullptr, nullptr}; }
  int check_peer(int rank, int tag) const;

  const Setting setting_;
  const std::string name_;
  const int rank_, size_;
  std::string broken_;
  std::unique_ptr<tw_group, std::function<void(tw_group*)>> group_;
  std::unique_ptr<Sender> sender_;
  std::mutex splitting_;  // guards what follows
  int splits_ = 0;
};

}  // namespace tensorwire::mpi

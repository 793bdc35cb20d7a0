// SPDX-License-Identifier: Apache-2.0
// How the ranks of a group come to links with each other.
//
// Each rank says in the store who it is, invites all ranks above it, and connects to those below.
// An invitation carries a secret of its own, and both ends of a connection prove it: whoever
// reaches the port without the store gets nowhere.
//
// In a large group that is so for rank 0 and for neighbours on a circle, at distances that are
// powers of two. Then all learn by way of rank 0 how each is reached; ranks that may share memory
// make links at once, and others when they are wanted (collective/roster.h). Their secrets come of
// a key that rank 0 has put into its invitations.
//
// The store may still have what ranks of an earlier attempt, which has ended, have left under the
// same keys: torchrun starts ranks again with the store of the attempt before. So an invitation
// repeats the nonce of the presence that it answers. A rank waits until those below have answered
// its own, and looks again at the presence of each rank above that has not come.
#pragma once

#include <memory>
#include <string>

#include "collective/algorithm.h"
#include "collective/members.h"
#include "collective/store.h"
#include "process/runtime.h"

namespace tw::collective {

// Groups of up to so many ranks make all links when they are joined.
inline constexpr int kAllLinks = 8;
// Whether two ranks get a link before they know of each other.
bool meet_in_store(int a, int b, int size);

struct Seat {
  int rank = 0;
  int size = 1;
  // The address at which ranks of other hosts reach this one; empty: TENSORWIRE_GROUP_HOST.
  std::string host = {};
  // Ranks with another one share no memory with this one; empty: as TENSORWIRE_HOST_ID says.
  std::string host_id = {};
  // Of all-reduces; kNone: as TENSORWIRE_ALLREDUCE says.
  Algorithm algorithm = Algorithm::kNone;
  // Whether ranks of this host read each other's memory where the kernel lets them.
  bool reads_memory = true;
  // The table of `tensorwire tune collectives`; empty: as TENSORWIRE_TUNING says.
  std::string tuning = {};
  // Operations go the ways of the constants, whatever was measured; false: as
  // TENSORWIRE_DETERMINISTIC says. The same for all ranks.
  bool deterministic = false;
};

// DEADLINE_EXCEEDED: a rank has not come. UNAVAILABLE, FAILED_PRECONDITION: one cannot be reached,
// and the text says how each transport failed. INVALID_ARGUMENT: the seat, or what the store holds.
Result<std::unique_ptr<Members>> join(Runtime& runtime, Store& store, const Seat& seat,
                                      const Wait& wait);

}  // namespace tw::collective

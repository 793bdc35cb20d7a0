// SPDX-License-Identifier: Apache-2.0
// A group: ranks that call the same operations in the same order, each from a process of its own.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/fork.h"
#include "base/mutex.h"
#include "collective/algorithm.h"
#include "collective/device_operations.h"
#include "collective/fabric.h"
#include "collective/join.h"
#include "collective/mailbox.h"
#include "collective/stage.h"

namespace tw::collective {

// Thread-safe: operations of several threads take turns, in an order that the threads of all ranks
// have to agree on. An operation that fails ends the group, for all ranks: the errors are those of
// Fabric, and each later operation returns the first of them. INVALID_ARGUMENT for arguments that
// are wrong by themselves: nothing has happened.
class Group final : public RefCounted {
 public:
  static Result<Ref<Group>> make(Store& store, const Seat& seat, const Wait& wait);

  int rank() const { return members_->rank(); }
  int size() const { return members_->size(); }
  // How data moves; empty: there is one rank.
  const char* fabric() const { return fabric_name_; }
  Members& members() const { return *members_; }
  // Whether the table of `tensorwire tune collectives` decides, which all ranks have; and why it
  // does not where one was to, or not between hosts.
  bool tuned() const { return tuned_; }
  const std::string& why_not_tuned() const { return why_not_tuned_; }
  // Leaves in the trace file of this process what its operations have come to.
  ~Group() override;

  // The operations that ended well, and that moved something to or from another rank.
  const Tally& tally() const { return tally_; }
  // Ends it for all ranks.
  void abort(std::string_view why);
  bool inherited() const { return !home_.here(); }

  // call.kind says which; what it does not need is null. See Fabric. `factor`: this rank's array is
  // multiplied by it first, in a sum or an average of floats. `place`: the arrays lie on a device,
  // on all ranks; null: in the host's memory.
  Status run(const CollectiveCall& call, const std::byte* in, std::byte* out, const Wait& wait,
             double factor = 1, const DevicePlace* place = nullptr);
  // Any sizes: `gives` has a run of `in` for each rank, and `takes` a run of `out` from each, as in
  // Fabric::all_to_all; call.count is kUneven. In an all-gather the runs of `gives` are one; in a
  // gather and a scatter all but those for, or from, the root are empty. In a reduce-scatter
  // `takes` is empty, and `out` has room for this rank's share.
  Status exchange(const CollectiveCall& call, const std::byte* in,
                  std::span<const Fabric::Run> gives, std::byte* out,
                  std::span<const Fabric::Run> takes, const Wait& wait, double factor = 1,
                  const DevicePlace* place = nullptr);

  // One message to one rank, and from one. Those of a tag arrive in their order. They take no turns
  // with the operations.
  static constexpr uint64_t kMaxTag = collective::kMaxTag;
  Status send(int rank, uint64_t tag, std::span<const std::byte> data, const Wait& wait);
  // OUT_OF_RANGE: it has another size than the memory for it, and was dropped.
  Status receive(int rank, uint64_t tag, std::span<std::byte> into, const Wait& wait);
  // From whichever rank is first, which is returned.
  Result<int> receive_any(uint64_t tag, std::span<std::byte> into, const Wait& wait);

 private:
  explicit Group(std::unique_ptr<Members> members)
      : members_(std::move(members)), mailbox_(*members_) {}
  Status choose_fabric(Runtime& runtime, const Seat& seat, const Wait& wait);
  // `hosts`: the ranks of each. `memories`: empty, or of all that share this host. `arena`: as
  // SharedFabric has it. `between`: the transport between hosts; empty: there are several, or none.
  std::unique_ptr<Fabric> make_fabric(const std::vector<std::vector<int>>& hosts,
                                      Result<OwnStage> own,
                                      std::vector<std::optional<PeerStage>> stages,
                                      std::vector<std::optional<PeerMemory>> memories, Arena* arena,
                                      Algorithm forced, const Tuning& tuning,
                                      std::string_view between, Nanos spin);
  Status usable();
  void tell_trace() const;
  void count(CollectiveKind kind, Way way, uint64_t bytes);
  Status check(const CollectiveCall& call, double factor) const;
  Status check_rank(int rank) const;
  Status copy_out(int from, const InMessage& message, std::span<std::byte> into) const;
  Status no_memory(const CollectiveCall& call);
  Status alone(const CollectiveCall& call, const std::byte* in, std::byte* out) const;
  Status on_host(Fabric& fabric, const CollectiveCall& call, const std::byte* in, std::byte* out,
                 const Wait& wait);
  // operation(DeviceOperations&) for arrays of that place. An error ends the group.
  template <class Operation>
  Status on_device(const DevicePlace& place, Operation&& operation) TW_REQUIRES(turn_);

  const Birthplace home_;
  const std::unique_ptr<Members> members_;
  Mailbox mailbox_;
  Mutex turn_;  // of the operation that runs; no other lock is held when it is taken
  std::unique_ptr<Fabric> fabric_ TW_PT_GUARDED_BY(turn_);
  // Of all-reduces within one host, where the user wants a certain algorithm.
  std::unique_ptr<Fabric> forced_ TW_PT_GUARDED_BY(turn_);
  // Of the device whose arrays came last.
  std::unique_ptr<DeviceOperations> on_device_ TW_GUARDED_BY(turn_);
  bool one_host_ = false;
  const char* fabric_name_ = "";
  bool tuned_ = false;
  std::string why_not_tuned_;
  Tally tally_;
};

}  // namespace tw::collective

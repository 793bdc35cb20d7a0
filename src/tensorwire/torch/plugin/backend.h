// SPDX-License-Identifier: Apache-2.0
// PyTorch's collectives over a group of the runtime.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <tuple>
#include <vector>

#include "lane.h"
#include "tensors.h"
#include "work.h"

namespace tensorwire {

class Backend final : public c10d::Backend {
 public:
  using Tensors = std::vector<at::Tensor>;
  using Lists = std::vector<Tensors>;
  using Handle = c10::intrusive_ptr<c10d::Work>;
  using Milliseconds = std::chrono::milliseconds;

  // Joins: returns once all ranks have come.
  Backend(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size, Milliseconds timeout);
  ~Backend() override;

  const std::string getBackendName() const override { return "tensorwire"; }

  // Both wait for this rank's operations; abort() ends the group for all ranks, shutdown() where
  // operations are under way. These are virtual in some releases of PyTorch only.
  void abort();
  void shutdown();
  void setTimeout(Milliseconds timeout);

  Handle broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override;
  Handle allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  Handle allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  Handle allreduce_coalesced(Tensors& tensors,
                             const c10d::AllreduceCoalescedOptions& options) override;
  Handle reduce(Tensors& tensors, const c10d::ReduceOptions& options) override;
  Handle allgather(Lists& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) override;
  Handle _allgather_base(at::Tensor& output, at::Tensor& input,
                         const c10d::AllgatherOptions& options) override;
  Handle allgather_coalesced(Lists& outputs, Tensors& inputs,
                             const c10d::AllgatherOptions& options) override;
  Handle allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                         const c10d::AllgatherOptions& options) override;
  Handle gather(Lists& outputs, Tensors& inputs, const c10d::GatherOptions& options) override;
  Handle scatter(Tensors& outputs, Lists& inputs, const c10d::ScatterOptions& options) override;
  Handle reduce_scatter(Tensors& outputs, Lists& inputs,
                        const c10d::ReduceScatterOptions& options) override;
  Handle _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                              const c10d::ReduceScatterOptions& options) override;
  Handle reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                         const c10d::ReduceScatterOptions& options) override;
  Handle alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& takes,
                       std::vector<int64_t>& gives, const c10d::AllToAllOptions& options) override;
  Handle alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) override;
  Handle barrier(const c10d::BarrierOptions& options) override;
  void monitoredBarrier(const c10d::BarrierOptions& options, bool all) override;
  Handle send(Tensors& tensors, int to, int tag) override;
  Handle recv(Tensors& tensors, int from, int tag) override;
  Handle recvAnysource(Tensors& tensors, int tag) override;
  // What is begun in between is one operation, for those who wait for it.
  void startCoalescing() override;
  Handle endCoalescing() override;
  void setSequenceNumberForGroup() override {}
  uint64_t getSequenceNumberForGroup() override;

 private:
  // Released when the last operation that uses it is over.
  using Group = std::shared_ptr<tw_group>;

  static int run(const Group& group, const tw_collective& call, const at::Tensor* in,
                 const at::Tensor* out, const tw_wait& wait, tw_status* status);
  using Runs = std::vector<tw_run>;
  static int exchange(const Group& group, const tw_collective& call, const at::Tensor& in,
                      const Runs& gives, const at::Tensor& out, const Runs& takes,
                      const tw_wait& wait, tw_status* status);

  Group group();
  std::string why_closed();
  void check_root(int64_t root) const;
  template <class Given>
  Milliseconds timeout_of(const Given& options);
  // `device`: where its tensors lie.
  template <class Given>
  Handle begin(c10d::OpType type, const char* title, const Given& options, const at::Device& device,
               Tensors outputs, Work::Body body);
  // Begins one that reduces `inputs`, which are of one device.
  template <class Given>
  Handle combine(c10d::OpType type, const char* title, const Given& options, const Tensors& inputs,
                 Tensors outputs, Work::Body body);
  Handle begun(const c10::intrusive_ptr<Work>& work);
  Handle message(bool sends, const at::Tensor& tensor, int peer, int tag);
  void close(const std::string& why, bool always);

  const bool refuses_nan_;  // as all ranks of the group do
  std::mutex mutex_;        // guards what follows, but for lane_, which has its own
  Group group_;             // null: it is closed
  std::string closed_;
  Milliseconds timeout_;
  uint64_t sequence_ = 0;
  uint64_t monitored_barriers_ = 0;          // that have begun
  std::optional<Together::Parts> together_;  // since startCoalescing()
  Lane lane_;
  // One for each row of messages, because a message waits for its other end.
  std::map<std::tuple<bool, int, int>, std::unique_ptr<Lane>> messages_;
};

}  // namespace tensorwire

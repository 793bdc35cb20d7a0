// SPDX-License-Identifier: Apache-2.0
#include "backend.h"

#include <torch/csrc/distributed/c10d/debug.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "coalescing.h"
#include "device.h"
#include "monitored_barrier.h"
#include "nan.h"
#include "rendezvous.h"
#include "signals.h"

namespace tensorwire {

using c10d::OpType;

namespace {

constexpr int kAnyRank = -1;

// PyTorch before 2.8 does not say it of each operation.
template <class Given>
bool is_asynchronous(const Given& options) {
  if constexpr (requires { options.asyncOp; })
    return options.asyncOp;
  else
    return true;
}

// An operation that moves so many of its elements.
tw_collective moving(int kind, const at::Tensor& tensor, int64_t root = 0) {
  const Element element = moved(tensor);
  return {kind,   element.type,
          TW_SUM, static_cast<int>(root),
          1,      static_cast<uint64_t>(tensor.numel()) * element.each};
}

// One that reduces so many of them.
tw_collective reducing(int kind, const at::Tensor& tensor, const c10d::ReduceOp& op,
                       int64_t root = 0) {
  const Reduction by = reduced(tensor, op);
  return {kind,      by.element.type,
          by.op,     static_cast<int>(root),
          by.factor, static_cast<uint64_t>(tensor.numel()) * by.element.each};
}

// Runs of rows: as many as `rows` says, or equally many.
std::vector<tw_run> runs_of(const at::Tensor& tensor, const std::vector<int64_t>& rows, int ranks) {
  std::vector<tw_run> runs(static_cast<size_t>(ranks));
  const int64_t all = tensor.dim() == 0 ? 1 : tensor.size(0);
  if (rows.empty() && all % ranks != 0)
    fail(std::to_string(all) + " rows cannot be shared by " + std::to_string(ranks) + " ranks");
  if (!rows.empty() && rows.size() != runs.size())
    fail(std::to_string(rows.size()) + " sizes for " + std::to_string(ranks) + " ranks");
  const uint64_t row = all == 0 ? 0 : tensor.nbytes() / static_cast<uint64_t>(all);
  uint64_t at = 0;
  int64_t sum = 0;
  for (size_t i = 0; i < runs.size(); ++i) {
    const int64_t count = rows.empty() ? all / ranks : rows[i];
    if (count < 0) fail("a size is negative");
    sum += count;
    runs[i] = {at, row * static_cast<uint64_t>(count)};
    at += runs[i].size;
  }
  if (sum != all)
    fail("sizes add up to " + std::to_string(sum) + " rows, and the tensor has " +
         std::to_string(all));
  return runs;
}

std::vector<tw_run> runs_of(const std::vector<at::Tensor>& tensors) {
  std::vector<tw_run> runs;
  uint64_t at = 0;
  for (const at::Tensor& tensor : tensors) {
    runs.push_back({at, tensor.nbytes()});
    at += tensor.nbytes();
  }
  return runs;
}

// Where the tensors of a list lie, whose callers check that it is one place.
at::Device device_of(const std::vector<at::Tensor>& tensors) {
  return tensors.empty() ? at::Device(at::kCPU) : tensors[0].device();
}

}  // namespace

Backend::Backend(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                 Milliseconds timeout)
    : c10d::Backend(rank, size),
      refuses_nan_(c10d::debug_level() == c10d::DebugLevel::Detail),
      timeout_(timeout) {
  tw_group* made = nullptr;
  tw_status status{};
  const Rendezvous rendezvous(store);
  const tw_wait wait = wait_of(timeout, true);
  const int code =
      core().group_join(rendezvous.store(), rank, size, nullptr, 0, &wait, &made, &status);
  if (code == TW_INTERRUPTED) throw_interruption();
  if (code != TW_OK) fail(status.details);
  group_ = Group(made, core().group_release);
}

Backend::~Backend() { close("a rank has left the group", false); }

void Backend::abort() { close("rank " + std::to_string(getRank()) + " has called abort()", true); }
void Backend::shutdown() { close("the group has been shut down", false); }

void Backend::setTimeout(Milliseconds timeout) {
  const std::lock_guard lock(mutex_);
  timeout_ = timeout;
}

uint64_t Backend::getSequenceNumberForGroup() {
  const std::lock_guard lock(mutex_);
  return sequence_;
}

void Backend::close(const std::string& why, bool always) {
  struct Closing {
    Backend* self;
    const std::string* why;
    bool always;
  } closing{this, &why, always};
  // The threads may need it for what Python has attached to tensors and futures.
  without_gil(
      [](void* context) {
        const auto& [self, why, always] = *static_cast<Closing*>(context);
        Group group;
        std::vector<Lane*> lanes{&self->lane_};
        {
          const std::lock_guard lock(self->mutex_);
          group = std::exchange(self->group_, nullptr);
          if (group) self->closed_ = *why;
          for (auto& [key, lane] : self->messages_) lanes.push_back(lane.get());
        }
        bool idle = true;
        for (Lane* lane : lanes) idle = lane->close() && idle;
        if (group && (always || !idle)) core().group_abort(group.get(), why->c_str());
        for (Lane* lane : lanes) lane->join();
      },
      &closing);
}

Backend::Group Backend::group() {
  const std::lock_guard lock(mutex_);
  if (!group_) fail(closed_);
  return group_;
}

std::string Backend::why_closed() {
  const std::lock_guard lock(mutex_);
  return closed_;
}

void Backend::check_root(int64_t root) const {
  if (root < 0 || root >= getSize())
    fail("rank " + std::to_string(root) + " is not in a group of " + std::to_string(getSize()));
}

template <class Given>
Backend::Milliseconds Backend::timeout_of(const Given& options) {
  const std::lock_guard lock(mutex_);
  ++sequence_;
  return options.timeout == c10d::kUnsetTimeout ? timeout_ : options.timeout;
}

template <class Given>
Backend::Handle Backend::begin(OpType type, const char* title, const Given& options,
                               const at::Device& device, Tensors outputs, Work::Body body) {
  auto work = c10::make_intrusive<Work>(getRank(), type, title, std::move(outputs),
                                        timeout_of(options), on_device(device, std::move(body)));
  if (!is_asynchronous(options) && lane_.begin()) {
    struct End {
      Lane& lane;
      ~End() { lane.end(); }
    } end{lane_};
    work->run(true);
  } else if (!lane_.push([work] { work->run(false); })) {
    work->refuse(why_closed());
  }
  return begun(work);
}

template <class Given>
Backend::Handle Backend::combine(OpType type, const char* title, const Given& options,
                                 const Tensors& inputs, Tensors outputs, Work::Body body) {
  if (refuses_nan_) body = without_nan(group(), getRank(), title, inputs, std::move(body));
  return begin(type, title, options, device_of(inputs), std::move(outputs), std::move(body));
}

Backend::Handle Backend::begun(const c10::intrusive_ptr<Work>& work) {
  const std::lock_guard lock(mutex_);
  if (together_) together_->push_back(work);
  return work;
}

void Backend::startCoalescing() {
  const std::lock_guard lock(mutex_);
  together_.emplace();
}

Backend::Handle Backend::endCoalescing() {
  Together::Parts parts;
  {
    const std::lock_guard lock(mutex_);
    parts = std::exchange(together_, std::nullopt).value_or(Together::Parts());
  }
  if (parts.size() == 1) return parts[0];
  return c10::make_intrusive<Together>(getRank(), std::move(parts));
}

int Backend::run(const Group& group, const tw_collective& call, const at::Tensor* in,
                 const at::Tensor* out, const tw_wait& wait, tw_status* status) {
  tw_device place;
  const tw_device* const device = in    ? place_of(*in, &place)
                                  : out ? place_of(*out, &place)
                                        : nullptr;
  return core().group_run_on(group.get(), &call, device, in ? in->const_data_ptr() : nullptr,
                             out ? out->data_ptr() : nullptr, &wait, status);
}

int Backend::exchange(const Group& group, const tw_collective& call, const at::Tensor& in,
                      const Runs& gives, const at::Tensor& out, const Runs& takes,
                      const tw_wait& wait, tw_status* status) {
  tw_device place;
  return core().group_exchange_on(group.get(), &call, place_of(in, &place), in.const_data_ptr(),
                                  gives.data(), out.data_ptr(),
                                  takes.empty() ? nullptr : takes.data(), &wait, status);
}

Backend::Handle Backend::broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) {
  const at::Tensor tensor = only(tensors);
  check_root(options.rootRank);
  const tw_collective call = moving(TW_BROADCAST, tensor, options.rootRank);
  return begin(OpType::BROADCAST, "tensorwire:broadcast", options, tensor.device(), tensors,
               [=, group = group(), rank = getRank()](const tw_wait& wait, tw_status* status) {
                 const at::Tensor memory = room(tensor, true);
                 const int code = run(group, call, nullptr, &memory, wait, status);
                 if (code == TW_OK && call.root != rank) put_back(memory, tensor);
                 return code;
               });
}

Backend::Handle Backend::allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) {
  const at::Tensor tensor = only(tensors);
  const tw_collective call = reducing(TW_ALL_REDUCE, tensor, options.reduceOp);
  return combine(OpType::ALLREDUCE, "tensorwire:all_reduce", options, tensors, tensors,
                 [=, group = group()](const tw_wait& wait, tw_status* status) {
                   const at::Tensor memory = room(tensor, true);
                   const int code = run(group, call, &memory, &memory, wait, status);
                   if (code == TW_OK) put_back(memory, tensor);
                   return code;
                 });
}

Backend::Handle Backend::allreduce_sparse(Tensors&, const c10d::AllreduceOptions&) {
  fail("tensorwire moves dense tensors only: call to_dense() on this one");
}

Backend::Handle Backend::allreduce_coalesced(Tensors& tensors,
                                             const c10d::AllreduceCoalescedOptions& options) {
  std::vector<tw_collective> calls;
  check(tensors);
  for (const at::Tensor& tensor : tensors)
    calls.push_back(reducing(TW_ALL_REDUCE, tensor, options.reduceOp));
  return combine(OpType::ALLREDUCE_COALESCED, "tensorwire:all_reduce", options, tensors, tensors,
                 [=, group = group()](const tw_wait& wait, tw_status* status) {
                   for (const Places& places : batches_of(tensors)) {
                     const Tensors these = chosen(tensors, places);
                     const bool alone = these.size() == 1;
                     const at::Tensor memory = alone ? room(these[0], true) : rows_joined(these, 1);
                     const tw_collective call = together(calls, places);
                     const int code = run(group, call, &memory, &memory, wait, status);
                     if (code != TW_OK) return code;
                     if (alone)
                       put_back(memory, these[0]);
                     else
                       take_rows_apart(memory, these);
                   }
                   return int{TW_OK};
                 });
}

Backend::Handle Backend::reduce(Tensors& tensors, const c10d::ReduceOptions& options) {
  const at::Tensor tensor = only(tensors);
  check_root(options.rootRank);
  const tw_collective call = reducing(TW_REDUCE, tensor, options.reduceOp, options.rootRank);
  const bool root = options.rootRank == getRank();
  return combine(OpType::REDUCE, "tensorwire:reduce", options, tensors, tensors,
                 [=, group = group()](const tw_wait& wait, tw_status* status) {
                   const at::Tensor memory = room(tensor, true);
                   const int code =
                       run(group, call, &memory, root ? &memory : nullptr, wait, status);
                   if (code == TW_OK && root) put_back(memory, tensor);
                   return code;
                 });
}

Backend::Handle Backend::allgather(Lists& outputs, Tensors& inputs,
                                   const c10d::AllgatherOptions& options) {
  const at::Tensor input = only(inputs);
  const Tensors shares = only(outputs);
  const bool uneven = check_uneven_shares(shares, input, getSize(), getRank());
  const tw_collective call = moving(TW_ALL_GATHER, input);
  return begin(OpType::ALLGATHER, "tensorwire:all_gather", options, input.device(), shares,
               [=, group = group(), rank = getRank()](const tw_wait& wait, tw_status* status) {
                 const at::Tensor given = dense(input);
                 const at::Tensor all = gathered_room(shares, given, rank, uneven);
                 const Runs gives(shares.size(), {0, given.nbytes()});
                 const int code = uneven ? exchange(group, call, given, gives, all, runs_of(shares),
                                                    wait, status)
                                         : run(group, call, &given, &all, wait, status);
                 if (code == TW_OK) take_apart(all, shares);
                 return code;
               });
}

Backend::Handle Backend::_allgather_base(at::Tensor& output, at::Tensor& input,
                                         const c10d::AllgatherOptions& options) {
  Tensors outputs{output}, inputs{input};
  return allgather_into_tensor_coalesced(outputs, inputs, options);
}

Backend::Handle Backend::allgather_coalesced(Lists& outputs, Tensors& inputs,
                                             const c10d::AllgatherOptions& options) {
  const int64_t ranks = getSize();
  if (outputs.size() != static_cast<size_t>(ranks))
    fail("all_gather needs a list of tensors for each rank");
  Tensors all;
  std::vector<tw_collective> calls;
  check(inputs);
  for (size_t i = 0; i < inputs.size(); ++i) {
    for (const Tensors& list : outputs) {
      if (list.size() != inputs.size()) fail("all_gather needs as many tensors from each rank");
      check(list[i]);
      check_same(list[i], inputs[i]);
      all.push_back(list[i]);
    }
    calls.push_back(moving(TW_ALL_GATHER, inputs[i]));
  }
  return begin(OpType::ALLGATHER_COALESCED, "tensorwire:all_gather", options, device_of(inputs),
               all, [=, group = group()](const tw_wait& wait, tw_status* status) {
                 for (const Places& places : batches_of(inputs)) {
                   const at::Tensor given = rows_joined(chosen(inputs, places), 1);
                   const at::Tensor rows = rows_room(given, ranks);
                   const tw_collective call = together(calls, places);
                   const int code = run(group, call, &given, &rows, wait, status);
                   if (code != TW_OK) return code;
                   for (size_t i = 0; i < outputs.size(); ++i)
                     take_rows_apart(rows.narrow(0, static_cast<int64_t>(i), 1),
                                     chosen(outputs[i], places));
                 }
                 return int{TW_OK};
               });
}

Backend::Handle Backend::allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                         const c10d::AllgatherOptions& options) {
  if (outputs.size() != inputs.size()) fail("all_gather needs an output for each input");
  std::vector<tw_collective> calls;
  check(inputs);
  for (size_t i = 0; i < inputs.size(); ++i) {
    check(outputs[i]);
    check_same(outputs[i], inputs[i], getSize());
    calls.push_back(moving(TW_ALL_GATHER, inputs[i]));
  }
  return begin(
      OpType::_ALLGATHER_BASE, "tensorwire:all_gather", options, device_of(inputs), outputs,
      [=, group = group(), rank = getRank(), ranks = getSize()](const tw_wait& wait,
                                                                tw_status* status) {
        for (const Places& places : batches_of(inputs)) {
          const Tensors from = chosen(inputs, places), to = chosen(outputs, places);
          const bool alone = places.size() == 1;
          const bool copied =
              alone && from[0].is_alias_of(to[0]) && !is_share_of(from[0], to[0], rank);
          at::Tensor given = alone ? dense(from[0]) : rows_joined(from, 1);
          if (copied) given = given.clone(at::MemoryFormat::Contiguous);
          const at::Tensor memory = alone ? room(to[0], false) : rows_room(given, ranks);
          const int code = run(group, together(calls, places), &given, &memory, wait, status);
          if (code != TW_OK) return code;
          if (alone)
            put_back(memory, to[0]);
          else
            take_rows_apart(memory, to);
        }
        return int{TW_OK};
      });
}

Backend::Handle Backend::gather(Lists& outputs, Tensors& inputs,
                                const c10d::GatherOptions& options) {
  const at::Tensor input = only(inputs);
  check_root(options.rootRank);
  const bool root = options.rootRank == getRank();
  const Tensors shares = root ? only(outputs) : Tensors{};
  if (root) check_shares(shares, input, getSize());
  const tw_collective call = moving(TW_GATHER, input, options.rootRank);
  return begin(OpType::GATHER, "tensorwire:gather", options, input.device(), shares,
               [=, group = group(), rank = getRank()](const tw_wait& wait, tw_status* status) {
                 const at::Tensor given = dense(input);
                 if (!root) return run(group, call, &given, nullptr, wait, status);
                 const at::Tensor all = gathered_room(shares, given, rank, false);
                 const int code = run(group, call, &given, &all, wait, status);
                 if (code == TW_OK) take_apart(all, shares);
                 return code;
               });
}

Backend::Handle Backend::scatter(Tensors& outputs, Lists& inputs,
                                 const c10d::ScatterOptions& options) {
  const at::Tensor output = only(outputs);
  check_root(options.rootRank);
  const bool root = options.rootRank == getRank();
  const Tensors shares = root ? only(inputs) : Tensors{};
  if (root) check_shares(shares, output, getSize());
  const tw_collective call = moving(TW_SCATTER, output, options.rootRank);
  return begin(OpType::SCATTER, "tensorwire:scatter", options, output.device(), outputs,
               [=, group = group(), rank = getRank()](const tw_wait& wait, tw_status* status) {
                 const at::Tensor all = root ? joined(shares) : at::Tensor();
                 const at::Tensor memory =
                     root ? share_room(output, all, rank, false) : room(output, false);
                 const int code = run(group, call, root ? &all : nullptr, &memory, wait, status);
                 if (code == TW_OK) put_back(memory, output);
                 return code;
               });
}

Backend::Handle Backend::reduce_scatter(Tensors& outputs, Lists& inputs,
                                        const c10d::ReduceScatterOptions& options) {
  const at::Tensor output = only(outputs);
  const Tensors shares = only(inputs);
  const bool uneven = check_uneven_shares(shares, output, getSize(), getRank());
  const tw_collective call = reducing(TW_REDUCE_SCATTER, output, options.reduceOp);
  return combine(OpType::REDUCE_SCATTER, "tensorwire:reduce_scatter", options, shares, outputs,
                 [=, group = group(), rank = getRank()](const tw_wait& wait, tw_status* status) {
                   const at::Tensor all = joined(shares);
                   const at::Tensor memory = share_room(output, all, rank, uneven);
                   const int code = uneven ? exchange(group, call, all, runs_of(shares), memory, {},
                                                      wait, status)
                                           : run(group, call, &all, &memory, wait, status);
                   if (code == TW_OK) put_back(memory, output);
                   return code;
                 });
}

Backend::Handle Backend::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                              const c10d::ReduceScatterOptions& options) {
  Tensors outputs{output}, inputs{input};
  return reduce_scatter_tensor_coalesced(outputs, inputs, options);
}

Backend::Handle Backend::reduce_scatter_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::ReduceScatterOptions& options) {
  if (outputs.size() != inputs.size()) fail("reduce_scatter needs an output for each input");
  std::vector<tw_collective> calls;
  check(inputs);
  for (size_t i = 0; i < inputs.size(); ++i) {
    check(outputs[i]);
    check_same(inputs[i], outputs[i], getSize());
    calls.push_back(reducing(TW_REDUCE_SCATTER, outputs[i], options.reduceOp));
  }
  return combine(
      OpType::_REDUCE_SCATTER_BASE, "tensorwire:reduce_scatter", options, inputs, outputs,
      [=, group = group(), rank = getRank(), ranks = getSize()](const tw_wait& wait,
                                                                tw_status* status) {
        for (const Places& places : batches_of(inputs)) {
          const Tensors from = chosen(inputs, places), to = chosen(outputs, places);
          const bool alone = places.size() == 1;
          const at::Tensor given = alone ? dense(from[0]) : rows_joined(from, ranks);
          const bool copied = to[0].is_alias_of(from[0]) && !is_share_of(to[0], from[0], rank);
          const at::Tensor memory =
              alone && !copied ? room(to[0], false) : flat_room(given, elements(to));
          const int code = run(group, together(calls, places), &given, &memory, wait, status);
          if (code != TW_OK) return code;
          if (!memory.is_same(to[0])) take_rows_apart(memory.view({1, memory.numel()}), to);
        }
        return int{TW_OK};
      });
}

Backend::Handle Backend::alltoall_base(at::Tensor& output, at::Tensor& input,
                                       std::vector<int64_t>& takes, std::vector<int64_t>& gives,
                                       const c10d::AllToAllOptions& options) {
  check(output);
  check(input);
  check_together(output, input);
  if (output.scalar_type() != input.scalar_type()) check_same(output, input);
  const std::vector<tw_run> out = runs_of(output, takes, getSize());
  const std::vector<tw_run> in = runs_of(input, gives, getSize());
  const at::Tensor to = output, from = input;
  return begin(OpType::ALLTOALL_BASE, "tensorwire:all_to_all", options, output.device(), {output},
               [=, group = group()](const tw_wait& wait, tw_status* status) {
                 const at::Tensor given = dense(from);
                 const at::Tensor memory = room(to, false);
                 const int code = exchange(group, moving(TW_ALL_TO_ALL, given), given, in, memory,
                                           out, wait, status);
                 if (code == TW_OK) put_back(memory, to);
                 return code;
               });
}

Backend::Handle Backend::alltoall(Tensors& outputs, Tensors& inputs,
                                  const c10d::AllToAllOptions& options) {
  check(outputs);
  check(inputs);
  const auto ranks = static_cast<size_t>(getSize());
  if (outputs.size() != ranks || inputs.size() != ranks)
    fail("all_to_all needs a tensor for and from each of " + std::to_string(ranks) + " ranks");
  check_together(inputs[0], outputs[0]);
  for (size_t i = 0; i < ranks; ++i)
    if (inputs[i].scalar_type() != inputs[0].scalar_type() ||
        outputs[i].scalar_type() != inputs[0].scalar_type())
      fail("all_to_all needs tensors of one type");
  const std::vector<tw_run> in = runs_of(inputs), out = runs_of(outputs);
  return begin(OpType::ALLTOALL, "tensorwire:all_to_all", options, outputs[0].device(), outputs,
               [=, group = group()](const tw_wait& wait, tw_status* status) {
                 const at::Tensor given = joined(inputs);
                 const at::Tensor memory = room_apart(outputs, given);
                 const int code = exchange(group, moving(TW_ALL_TO_ALL, given), given, in, memory,
                                           out, wait, status);
                 if (code == TW_OK) take_apart(memory, outputs);
                 return code;
               });
}

Backend::Handle Backend::barrier(const c10d::BarrierOptions& options) {
  return begin(OpType::BARRIER, "tensorwire:barrier", options, at::kCPU, {},
               [group = group()](const tw_wait& wait, tw_status* status) {
                 const tw_collective call{TW_BARRIER, TW_UINT8, TW_SUM, 0, 1, 0};
                 return run(group, call, nullptr, nullptr, wait, status);
               });
}

void Backend::monitoredBarrier(const c10d::BarrierOptions& options, bool all) {
  MonitoredBarrier barrier{getRank(), getSize(), 0, all};
  {
    const std::lock_guard lock(mutex_);
    barrier.number = monitored_barriers_++;
  }
  begin(OpType::BARRIER, "tensorwire:monitored_barrier", options, at::kCPU, {},
        [barrier, group = group()](const tw_wait& wait, tw_status* status) {
          return tensorwire::run(barrier, group.get(), wait, status);
        })
      ->wait();
}

Backend::Handle Backend::send(Tensors& tensors, int to, int tag) {
  return message(true, only(tensors), to, tag);
}

Backend::Handle Backend::recv(Tensors& tensors, int from, int tag) {
  return message(false, only(tensors), from, tag);
}

Backend::Handle Backend::recvAnysource(Tensors& tensors, int tag) {
  return message(false, only(tensors), kAnyRank, tag);
}

Backend::Handle Backend::message(bool sends, const at::Tensor& tensor, int peer, int tag) {
  if (peer != kAnyRank) check_root(peer);
  if (peer == getRank()) fail("a rank sends nothing to itself");
  if (tag < 0) fail("a tag is not negative");
  Lane* lane;
  {
    const std::lock_guard lock(mutex_);
    if (!group_) fail(closed_);
    std::unique_ptr<Lane>& found = messages_[{sends, peer, tag}];
    if (!found) found = std::make_unique<Lane>();
    lane = found.get();
  }
  const auto source = sends ? nullptr : std::make_shared<int>(peer);
  auto work = c10::make_intrusive<Work>(
      getRank(),
      sends              ? OpType::SEND
      : peer == kAnyRank ? OpType::RECVANYSOURCE
                         : OpType::RECV,
      sends ? "tensorwire:send" : "tensorwire:recv", Tensors{tensor},
      timeout_of(c10d::BarrierOptions{}),
      on_device(tensor.device(),
                [=, group = group()](const tw_wait& wait, tw_status* status) {
                  const auto of = static_cast<uint64_t>(tag);
                  if (sends) {
                    const at::Tensor given = dense(tensor).cpu();
                    return core().group_send(group.get(), peer, of, given.const_data_ptr(),
                                             given.nbytes(), &wait, status);
                  }
                  const at::Tensor memory =
                      tensor.is_cpu()
                          ? room(tensor, false)
                          : at::empty(tensor.sizes(), tensor.options().device(at::kCPU));
                  const int code =
                      peer == kAnyRank
                          ? core().group_receive_any(group.get(), of, memory.data_ptr(),
                                                     memory.nbytes(), source.get(), &wait, status)
                          : core().group_receive(group.get(), peer, of, memory.data_ptr(),
                                                 memory.nbytes(), &wait, status);
                  if (code == TW_OK) put_back(memory, tensor);
                  return code;
                }),
      source);
  if (!lane->push([work] { work->run(false); })) work->refuse(why_closed());
  return begun(work);
}

}  // namespace tensorwire

// SPDX-License-Identifier: Apache-2.0
// The C ABI: groups of ranks, and collectives.
#include "abi/abi.h"
#include "abi/device.h"
#include "collective/group.h"
#include "collective/polled_store.h"

using namespace tw;
using namespace tw::abi;
using collective::CollectiveCall;
using collective::CollectiveKind;
using collective::Fabric;
using collective::Group;

static_assert(TW_FLOAT64 == static_cast<int>(DataType::kFloat64) &&
              TW_FLOAT32 == static_cast<int>(DataType::kFloat32) &&
              TW_FLOAT16 == static_cast<int>(DataType::kFloat16) &&
              TW_BFLOAT16 == static_cast<int>(DataType::kBfloat16) &&
              TW_FLOAT8_E4M3 == static_cast<int>(DataType::kFloat8E4m3) &&
              TW_FLOAT8_E5M2 == static_cast<int>(DataType::kFloat8E5m2) &&
              TW_INT8 == static_cast<int>(DataType::kInt8) &&
              TW_INT16 == static_cast<int>(DataType::kInt16) &&
              TW_INT32 == static_cast<int>(DataType::kInt32) &&
              TW_INT64 == static_cast<int>(DataType::kInt64) &&
              TW_UINT8 == static_cast<int>(DataType::kUint8) &&
              TW_UINT16 == static_cast<int>(DataType::kUint16) &&
              TW_UINT32 == static_cast<int>(DataType::kUint32) &&
              TW_UINT64 == static_cast<int>(DataType::kUint64) &&
              TW_BOOL == static_cast<int>(DataType::kBool));
static_assert(TW_BOOL + 1 == kDataTypes);
static_assert(TW_SUM == static_cast<int>(ReduceOp::kSum) &&
              TW_AVERAGE == static_cast<int>(ReduceOp::kAverage) &&
              TW_PRODUCT == static_cast<int>(ReduceOp::kProduct) &&
              TW_MIN == static_cast<int>(ReduceOp::kMin) &&
              TW_MAX == static_cast<int>(ReduceOp::kMax) &&
              TW_BIT_AND == static_cast<int>(ReduceOp::kBitAnd) &&
              TW_BIT_OR == static_cast<int>(ReduceOp::kBitOr) &&
              TW_BIT_XOR == static_cast<int>(ReduceOp::kBitXor) &&
              TW_ADASUM == static_cast<int>(ReduceOp::kAdasum));
static_assert(TW_ADASUM + 1 == kReduceOps);
static_assert(TW_BARRIER == static_cast<int>(CollectiveKind::kBarrier) &&
              TW_ALL_REDUCE == static_cast<int>(CollectiveKind::kAllReduce) &&
              TW_REDUCE == static_cast<int>(CollectiveKind::kReduce) &&
              TW_BROADCAST == static_cast<int>(CollectiveKind::kBroadcast) &&
              TW_ALL_GATHER == static_cast<int>(CollectiveKind::kAllGather) &&
              TW_REDUCE_SCATTER == static_cast<int>(CollectiveKind::kReduceScatter) &&
              TW_ALL_TO_ALL == static_cast<int>(CollectiveKind::kAllToAll) &&
              TW_GATHER == static_cast<int>(CollectiveKind::kGather) &&
              TW_SCATTER == static_cast<int>(CollectiveKind::kScatter));
static_assert(TW_SCATTER + 1 == collective::kCollectiveKinds);

namespace {

Group* of(tw_group* group) { return reinterpret_cast<Group*>(group); }
const Group* of(const tw_group* group) { return reinterpret_cast<const Group*>(group); }

class ForeignStore final : public collective::PolledStore {
 public:
  explicit ForeignStore(const tw_store& store) : store_(store) {}

  Status set(const std::string& key, std::span<const std::byte> value) override {
    tw_status why{};
    const int done = store_.set(store_.context, key.c_str(), value.data(), value.size(), &why);
    return done == TW_OK ? Status() : Status{code_of(done), why.details};
  }

 private:
  Result<std::vector<std::byte>> look(const std::string& key, Nanos time) override {
    std::vector<std::byte> value;
    tw_status why{};
    const int done = store_.get(store_.context, key.c_str(), time, take, &value, &why);
    if (done != TW_OK) return Status{code_of(done), why.details};
    return value;
  }
  static void take(void* sink, const void* value, size_t size) {
    const auto* const bytes = static_cast<const std::byte*>(value);
    static_cast<std::vector<std::byte>*>(sink)->assign(bytes, bytes + size);
  }

  const tw_store& store_;
};

// What a wait that was interrupted has come to is told as everywhere in the ABI.
class Interruptible {
 public:
  explicit Interruptible(const tw_wait* wait) : from_(wait_of(wait)) {}
  Wait wait() { return {from_.deadline, from_.interrupted ? ask : nullptr, this}; }
  int end(tw_status* status, const Status& how) const {
    // Also where it was in time all the same: what interrupted it is the caller's to see.
    if (interrupted_) return TW_INTERRUPTED;
    return how.ok() ? TW_OK : report(status, how);
  }

 private:
  static int ask(void* self) {
    auto& me = *static_cast<Interruptible*>(self);
    me.interrupted_ = me.interrupted_ || me.from_.interrupted(me.from_.context) != 0;
    return me.interrupted_;
  }

  const Wait from_;
  bool interrupted_ = false;
};

bool in_range(int value, auto last) { return value >= 0 && value <= static_cast<int>(last); }

Result<CollectiveCall> call_of(const tw_collective& operation, uint64_t count) {
  if (!in_range(operation.kind, CollectiveKind::kScatter) ||
      !in_range(operation.type, DataType::kBool) || !in_range(operation.op, ReduceOp::kAdasum))
    return Status{Code::kInvalidArgument, "no such operation, type or reduction"};
  return CollectiveCall{static_cast<CollectiveKind>(operation.kind),
                        static_cast<DataType>(operation.type), static_cast<ReduceOp>(operation.op),
                        operation.root, count};
}

}  // namespace

int tw_group_join(const tw_store* store, int rank, int size, const char* host, int deterministic,
                  const tw_wait* wait, tw_group** out, tw_status* status) try {
  ForeignStore foreign(*store);
  collective::Seat seat{rank, size, {}};
  seat.host = host ? host : "";
  seat.deterministic = deterministic != 0;
  Interruptible asked(wait);
  auto made = Group::make(foreign, seat, asked.wait());
  if (const int ended = asked.end(status, made ? Status() : made.status()); ended != TW_OK)
    return ended;
  *out = reinterpret_cast<tw_group*>(made->leak());
  return TW_OK;
} catch (const std::bad_alloc&) {
  return no_memory(status);
}

void tw_group_release(tw_group* group) {
  if (!of(group)->inherited()) of(group)->release();
}
int tw_group_rank(const tw_group* group) { return of(group)->rank(); }
int tw_group_size(const tw_group* group) { return of(group)->size(); }
const char* tw_group_fabric(const tw_group* group) { return of(group)->fabric(); }
int tw_group_tuned(const tw_group* group, const char** why_not) {
  if (why_not) *why_not = of(group)->why_not_tuned().c_str();
  return of(group)->tuned();
}

const char* tw_algorithm(size_t index) {
  return index < wire::kAllReduceNames.size() ? wire::kAllReduceNames[index] : nullptr;
}

void tw_group_statistics(const tw_group* group, tw_visit_operations visit, void* context) {
  const collective::Tally& tally = group ? of(group)->tally() : collective::Tally::of_process();
  tally.each([&](collective::CollectiveKind kind, collective::Way way, uint64_t operations,
                 uint64_t bytes) {
    visit(context, collective::name_of(kind), collective::name_of(way), operations, bytes);
  });
}
int tw_group_gone(const tw_group* group, int rank) {
  const bool known = !of(group)->inherited() && rank >= 0 && rank < of(group)->size();
  return known && of(group)->members().gone(rank) ? 1 : 0;
}
void tw_group_abort(tw_group* group, const char* why) try {
  if (!of(group)->inherited()) of(group)->abort(why);
} catch (const std::bad_alloc&) {
  const Shortage shortage;
}

int tw_group_run(tw_group* group, const tw_collective* operation, const void* in, void* out,
                 const tw_wait* wait, tw_status* status) {
  return tw_group_run_on(group, operation, nullptr, in, out, wait, status);
}

int tw_group_run_on(tw_group* group, const tw_collective* operation, const tw_device* device,
                    const void* in, void* out, const tw_wait* wait, tw_status* status) try {
  if (of(group)->inherited()) return inherited(status, "group");
  const auto call = call_of(*operation, operation->count);
  if (!call) return report(status, call.status());
  const auto place = place_of(device, in, out);
  if (!place) return report(status, place.status());
  Interruptible asked(wait);
  return asked.end(
      status, of(group)->run(*call, static_cast<const std::byte*>(in), static_cast<std::byte*>(out),
                             asked.wait(), operation->factor, *place ? &**place : nullptr));
} catch (const std::bad_alloc&) {
  return no_memory(status);
}

int tw_group_exchange(tw_group* group, const tw_collective* operation, const void* in,
                      const tw_run* gives, void* out, const tw_run* takes, const tw_wait* wait,
                      tw_status* status) {
  return tw_group_exchange_on(group, operation, nullptr, in, gives, out, takes, wait, status);
}

int tw_group_exchange_on(tw_group* group, const tw_collective* operation, const tw_device* device,
                         const void* in, const tw_run* gives, void* out, const tw_run* takes,
                         const tw_wait* wait, tw_status* status) try {
  if (of(group)->inherited()) return inherited(status, "group");
  const auto call = call_of(*operation, CollectiveCall::kUneven);
  if (!call) return report(status, call.status());
  const auto runs = [&](const tw_run* from) {
    std::vector<Fabric::Run> all(from ? static_cast<size_t>(of(group)->size()) : 0);
    for (size_t i = 0; i < all.size(); ++i) all[i] = {from[i].offset, from[i].size};
    return all;
  };
  const auto place = place_of(device, in, out);
  if (!place) return report(status, place.status());
  Interruptible asked(wait);
  return asked.end(status,
                   of(group)->exchange(*call, static_cast<const std::byte*>(in), runs(gives),
                                       static_cast<std::byte*>(out), runs(takes), asked.wait(),
                                       operation->factor, *place ? &**place : nullptr));
} catch (const std::bad_alloc&) {
  return no_memory(status);
}

int tw_group_send(tw_group* group, int rank, uint64_t tag, const void* data, size_t size,
                  const tw_wait* wait, tw_status* status) try {
  if (of(group)->inherited()) return inherited(status, "group");
  Interruptible asked(wait);
  return asked.end(status, of(group)->send(rank, tag, {static_cast<const std::byte*>(data), size},
                                           asked.wait()));
} catch (const std::bad_alloc&) {
  return no_memory(status);
}

int tw_group_receive(tw_group* group, int rank, uint64_t tag, void* into, size_t size,
                     const tw_wait* wait, tw_status* status) try {
  if (of(group)->inherited()) return inherited(status, "group");
  Interruptible asked(wait);
  return asked.end(
      status, of(group)->receive(rank, tag, {static_cast<std::byte*>(into), size}, asked.wait()));
} catch (const std::bad_alloc&) {
  return no_memory(status);
}

int tw_group_receive_any(tw_group* group, uint64_t tag, void* into, size_t size, int* rank,
                         const tw_wait* wait, tw_status* status) try {
  if (of(group)->inherited()) return inherited(status, "group");
  Interruptible asked(wait);
  auto from = of(group)->receive_any(tag, {static_cast<std::byte*>(into), size}, asked.wait());
  if (from) *rank = *from;
  return asked.end(status, from ? Status() : from.status());
} catch (const std::bad_alloc&) {
  return no_memory(status);
}

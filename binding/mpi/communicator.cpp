// SPDX-License-Identifier: Apache-2.0
#include "communicator.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "error.h"

namespace tensorwire::mpi {

namespace {

struct Element {
  int type;        // of the core
  uint64_t each;   // elements of the core in one of MPI's
  uint64_t bytes;  // of one of MPI's
};

std::optional<Element> element_of(Handle type) {
  switch (static_cast<int>(type)) {
    case k_BYTE:
    case k_UINT8_T:
      return Element{TW_UINT8, 1, 1};
    case k_INT8_T:
      return Element{TW_INT8, 1, 1};
    case k_INT16_T:
      return Element{TW_INT16, 1, 2};
    case k_UINT16_T:
      return Element{TW_UINT16, 1, 2};
    case k_INT32_T:
      return Element{TW_INT32, 1, 4};
    case k_UINT32_T:
      return Element{TW_UINT32, 1, 4};
    case k_INT64_T:
      return Element{TW_INT64, 1, 8};
    case k_UINT64_T:
      return Element{TW_UINT64, 1, 8};
    case k_FLOAT:
      return Element{TW_FLOAT32, 1, 4};
    case k_DOUBLE:
      return Element{TW_FLOAT64, 1, 8};
    case k_C_COMPLEX:
      return Element{TW_FLOAT32, 2, 8};
    case k_C_DOUBLE_COMPLEX:
      return Element{TW_FLOAT64, 2, 16};
    default:
      return std::nullopt;
  }
}

std::optional<int> reduction_of(Handle op) {
  switch (static_cast<int>(op)) {
    case k_SUM:
      return TW_SUM;
    case k_PROD:
      return TW_PRODUCT;
    case k_MIN:
      return TW_MIN;
    case k_MAX:
      return TW_MAX;
    case k_BAND:
      return TW_BIT_AND;
    case k_BOR:
      return TW_BIT_OR;
    case k_BXOR:
      return TW_BIT_XOR;
    default:
      return std::nullopt;
  }
}

int check(std::optional<Element> element, int count) {
  if (!element) return fail(k_ERR_TYPE, "tensorwire: a type of MPI that JAX does not use");
  // What is larger than an int has become another number on its way here.
  if (count < 0)
    return fail(k_ERR_COUNT,
                "tensorwire: an array has more elements, or bytes, than MPI can count (2 GiB where "
                "it is gathered or exchanged): use smaller arrays, or JAX's gloo");
  return k_SUCCESS;
}

int check(std::optional<Element> element, int count, std::optional<int> reduction) {
  if (const int code = check(element, count); code != k_SUCCESS) return code;
  if (!reduction) return fail(k_ERR_OP, "tensorwire: a reduction of MPI that JAX does not use");
  if (element->each > 1 && *reduction != TW_SUM)
    return fail(k_ERR_OP, "tensorwire: complex numbers can be added up, and not multiplied");
  return k_SUCCESS;
}

// A store in a store: the keys of one group.
struct Keys {
  const tw_store& store;
  const std::string& name;

  std::string of(const char* key) const { return name + "/" + key; }
  static int set(void* self, const char* key, const void* value, size_t size, tw_status* status) {
    const auto& [store, _] = *static_cast<Keys*>(self);
    return store.set(store.context, static_cast<Keys*>(self)->of(key).c_str(), value, size, status);
  }
  static int get(void* self, const char* key, int64_t timeout_ns, tw_give give, void* sink,
                 tw_status* status) {
    const auto& [store, _] = *static_cast<Keys*>(self);
    return store.get(store.context, static_cast<Keys*>(self)->of(key).c_str(), timeout_ns, give,
                     sink, status);
  }
};

bool overlap(const void* a, size_t a_size, const void* b, size_t b_size) {
  const auto first = reinterpret_cast<uintptr_t>(a), second = reinterpret_cast<uintptr_t>(b);
  return first < second + b_size && second < first + a_size;
}

// `in` as memory of its own where the core would write over it while it reads.
const void* apart(const void* in, size_t in_size, const void* out, size_t out_size,
                  std::vector<std::byte>& room) {
  if (!overlap(in, in_size, out, out_size)) return in;
  const auto* const bytes = static_cast<const std::byte*>(in);
  room.assign(bytes, bytes + in_size);
  return room.data();
}

}  // namespace

Communicator::Communicator(const Setting& setting, std::string name, int rank, int size)
    : setting_(setting), name_(std::move(name)), rank_(rank), size_(size) {}

std::shared_ptr<Communicator> Communicator::join(const Setting& setting, std::string name, int rank,
                                                 int size, int (*interrupted)(void*)) {
  std::shared_ptr<Communicator> made(new Communicator(setting, std::move(name), rank, size));
  Keys keys{made->setting_.store, made->name_};
  const tw_store store{&keys, Keys::set, Keys::get};
  const tw_wait wait{setting.timeout_ns, interrupted, nullptr};
  tw_group* group = nullptr;
  tw_status status{};
  const int code = setting.core->group_join(&store, rank, size, nullptr, 0, &wait, &group, &status);
  if (outcome(code, status) != k_SUCCESS) {
    made->broken_ = last_sentence();
    return made;
  }
  made->group_ = {group, setting.core->group_release};
  made->sender_ = std::make_unique<Sender>(*setting.core, group, setting.timeout_ns);
  return made;
}

std::shared_ptr<Communicator> Communicator::broken(int rank, int size, std::string why) {
  std::shared_ptr<Communicator> made(new Communicator({}, {}, rank, size));
  made->broken_ = std::move(why);
  return made;
}

Communicator::~Communicator() {
  // Nobody may be there to take what is under way.
  if (sender_ && sender_->busy()) abort("a rank has left the communicator");
}

const char* Communicator::fabric() const {
  return group_ ? setting_.core->group_fabric(group_.get()) : "";
}

void Communicator::statistics(tw_visit_operations visit, void* context) const {
  if (group_) setting_.core->group_statistics(group_.get(), visit, context);
}

void Communicator::abort(const char* why) {
  if (group_) setting_.core->group_abort(group_.get(), why);
}

int Communicator::run(int kind, const void* in, void* out, uint64_t count, int type, int op) {
  if (!group_) return fail(k_ERR_COMM, broken_);
  const tw_wait limit = wait();
  tw_status status{};
  const tw_collective operation{kind, type, op, 0, 1.0, count};
  const int code = setting_.core->group_run(group_.get(), &operation, in, out, &limit, &status);
  return outcome(code, status);
}

int Communicator::barrier() { return run(TW_BARRIER, nullptr, nullptr, 0, TW_UINT8, 0); }

int Communicator::all_reduce(const void* in, void* out, int count, Handle type, Handle op) {
  const auto element = element_of(type);
  const auto reduction = reduction_of(op);
  if (const int code = check(element, count, reduction); code != k_SUCCESS) return code;
  return run(TW_ALL_REDUCE, in, out, static_cast<uint64_t>(count) * element->each, element->type,
             *reduction);
}

int Communicator::all_gather(const void* in, void* out, int count, Handle type) {
  const auto element = element_of(type);
  if (const int code = check(element, count); code != k_SUCCESS) return code;
  const size_t bytes = static_cast<size_t>(count) * element->bytes;
  std::vector<std::byte> room;
  in = apart(in, bytes, out, bytes * static_cast<size_t>(size_), room);
  return run(TW_ALL_GATHER, in, out, static_cast<uint64_t>(count) * element->each, element->type,
             0);
}

int Communicator::reduce_scatter(const void* in, void* out, const int* counts, Handle type,
                                 Handle op) {
  const auto element = element_of(type);
  const auto reduction = reduction_of(op);
  const int count = counts[0];
  if (const int code = check(element, count, reduction); code != k_SUCCESS) return code;
  if (std::any_of(counts, counts + size_, [&](int other) { return other != count; }))
    return fail(k_ERR_COUNT, "tensorwire: MPI_Reduce_scatter gives all ranks shares of one size");
  const size_t bytes = static_cast<size_t>(count) * element->bytes;
  std::vector<std::byte> room;
  in = apart(in, bytes * static_cast<size_t>(size_), out, bytes, room);
  return run(TW_REDUCE_SCATTER, in, out, static_cast<uint64_t>(count) * element->each,
             element->type, *reduction);
}

std::shared_ptr<Communicator> Communicator::split(int color, int key) {
  using Row = std::array<int64_t, 4>;
  const Row own{color != k_UNDEFINED, color, key, rank_};
  std::vector<Row> rows(static_cast<size_t>(size_));
  int split = 0;
  {
    const std::lock_guard lock(splitting_);  // counted in the order in which the ranks meet
    if (run(TW_ALL_GATHER, own.data(), rows.data(), own.size(), TW_INT64, 0) != k_SUCCESS)
      return broken(rank_, size_, last_sentence());
    split = ++splits_;
  }
  if (color == k_UNDEFINED) return nullptr;
  std::erase_if(rows, [&](const Row& row) { return !row[0] || row[1] != color; });
  std::sort(rows.begin(), rows.end(), [](const Row& a, const Row& b) {
    return std::pair(a[2], a[3]) < std::pair(b[2], b[3]);
  });
  const auto mine =
      std::find_if(rows.begin(), rows.end(), [&](const Row& row) { return row[3] == rank_; });
  return join(setting_, name_ + "/" + std::to_string(split) + "-" + std::to_string(color),
              static_cast<int>(mine - rows.begin()), static_cast<int>(rows.size()), nullptr);
}

int Communicator::check_peer(int rank, int tag) const {
  if (!group_) return fail(k_ERR_COMM, broken_);
  if (rank < 0 || rank >= size_ || rank == rank_)
    return fail(k_ERR_ARG, "tensorwire: rank " + std::to_string(rank) +
                               " is no other rank of the communicator of " + std::to_string(size_));
  if (tag < 0) return fail(k_ERR_ARG, "tensorwire: a tag is a number from 0 on");
  return k_SUCCESS;
}

std::shared_ptr<Message> Communicator::send(const void* data, int count, Handle type, int to,
                                            int tag) {
  const auto element = element_of(type);
  if (check(element, count) != k_SUCCESS || check_peer(to, tag) != k_SUCCESS) return nullptr;
  auto message = std::make_shared<Message>();
  message->data = data;
  message->size = static_cast<size_t>(count) * element->bytes;
  message->to = to;
  message->tag = static_cast<uint64_t>(tag);
  sender_->push(message);
  return message;
}

int Communicator::sent(const Message& message) {
  sender_->wait(message);
  return outcome(message.code, message.status);
}

int Communicator::receive(void* into, int count, Handle type, int from, int tag) {
  const auto element = element_of(type);
  if (const int code = check(element, count); code != k_SUCCESS) return code;
  if (const int code = check_peer(from, tag); code != k_SUCCESS) return code;
  const tw_wait limit = wait();
  tw_status status{};
  const int code = outcome(
      setting_.core->group_receive(group_.get(), from, static_cast<uint64_t>(tag), into,
                                   static_cast<size_t>(count) * element->bytes, &limit, &status),
      status);
  if (code == k_SUCCESS) return code;
  // XLA frees the memory of all messages that are under way once one of them has failed.
  const std::string why = last_sentence();
  abort(why.c_str());
  sender_->drain();
  return fail(code, why);
}

}  // namespace tensorwire::mpi

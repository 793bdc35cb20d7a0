// SPDX-License-Identifier: Apache-2.0
#include "access/target.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "wire/bytes.h"

namespace tw {

using wire::OperationKind;

namespace {

// The value before it.
uint64_t update(std::byte* at, const wire::OperationFrame& operation) {
  std::atomic_ref<uint64_t> word(*reinterpret_cast<uint64_t*>(at));
  if (operation.kind == OperationKind::kFetchAdd)
    return word.fetch_add(operation.operand, std::memory_order_acq_rel);
  uint64_t expected = operation.expected;
  word.compare_exchange_strong(expected, operation.operand, std::memory_order_acq_rel);
  return expected;
}
static_assert(std::atomic_ref<uint64_t>::is_always_lock_free);

FrameQueue::Frame failure(uint64_t id, const Status& status) {
  FrameQueue::Frame frame;
  const std::string_view details =
      wire::cut_utf8(status.details(), frame.head.size() - wire::kOutcomeFramePrefixSize);
  frame.outcome = true;
  frame.id = id;
  std::byte* const end = wire::store_bytes(
      wire::encode_outcome_prefix(frame.head.data(),
                                  {id, status.code(), static_cast<uint32_t>(details.size())}),
      details.data(), details.size());
  frame.head_size = static_cast<size_t>(end - frame.head.data());
  return frame;
}

}  // namespace

Ref<Grant> Target::conceal(uint64_t region, Door::State why) {
  auto it = regions_.find(region);
  if (it == regions_.end()) return nullptr;
  // First what takes memory. Without it the region stays, and this can be done again.
  Status gone = missing(region);
  out_.take_back(
      [&](const FrameQueue::Frame& frame) { return frame.outcome && frame.region == region; },
      [&](FrameQueue::Frame& frame) {
        // It stays in its place: outcomes come in the order of their operations.
        frame = failure(frame.id, missing(region));
        return true;
      });
  Ref<Grant> concealed = std::move(it->second);
  regions_.erase(it);
  concealed->end(why);
  changed_ = nullptr;
  if (inbound_region_ == region) {
    verdict_ = std::move(gone);
    inbound_region_ = 0;
  }
  return concealed;
}

Ref<Grant> Target::find(uint64_t region) const {
  auto it = regions_.find(region);
  return it == regions_.end() ? nullptr : it->second;
}

uint64_t Target::bytes() const {
  uint64_t bytes = 0;
  for (const auto& [id, grant] : regions_) bytes += grant->region.length;
  return bytes;
}

std::vector<uint64_t> Target::ids() const {
  std::vector<uint64_t> ids;
  ids.reserve(regions_.size());
  for (const auto& [id, region] : regions_) ids.push_back(id);
  return ids;
}

// Why nothing is done in a region that is not there any more.
Status Target::missing(uint64_t region) const {
  return closed_.ok() ? no_such_region(region) : closed_;
}

Status Target::check(const wire::OperationFrame& operation) const {
  auto it = regions_.find(operation.region);
  if (!closed_.ok() || it == regions_.end()) return missing(operation.region);
  if (operation.kind == OperationKind::kWriteImmediate && immediates_.size() == kMaxImmediates)
    return {Code::kResourceExhausted, text({"the peer has not taken the values of the last ",
                                            kMaxImmediates, " writes with immediate"})};
  return check_access(operation.kind, operation.offset, operation.length, it->second->region);
}

Result<std::byte*> Target::on_operation(const wire::OperationFrame& operation,
                                        std::span<const std::byte> here) {
  if (out_.size() >= wire::kMaxOperations)
    return wire::protocol_error({"OPERATION frame: id is ", operation.id, ", while ",
                                 wire::kMaxOperations, " before it wait for their OUTCOME"});
  operation_ = operation;
  verdict_ = check(operation);
  inbound_region_ = 0;
  if (!verdict_.ok() || !wire::writes(operation.kind)) return nullptr;
  std::byte* to = regions_.at(operation.region)->data + operation.offset;
  whole_ = nullptr;
  if (operation.length == sizeof word_ && reinterpret_cast<uintptr_t>(to) % sizeof word_ == 0) {
    whole_ = reinterpret_cast<uint64_t*>(to);
    to = reinterpret_cast<std::byte*>(&word_);
  }
  if (!here.empty()) std::memcpy(to, here.data(), here.size());
  inbound_region_ = operation.region;
  return to + here.size();
}

void Target::operation_arrived() {
  inbound_region_ = 0;
  changed_ = nullptr;
  if (!verdict_.ok()) {
    out_.push(failure(operation_.id, verdict_));
    return;
  }
  const wire::OperationFrame& operation = operation_;
  if (wire::writes(operation.kind)) {
    changed_ = regions_.at(operation.region).get();
    if (whole_) std::atomic_ref<uint64_t>(*whole_).store(word_, std::memory_order_release);
    if (operation.kind == OperationKind::kWriteImmediate)
      immediates_.push_back(operation.immediate);
    return answer(operation.id, nullptr, 0, 0);
  }
  // It may have been concealed since the operation was checked.
  const auto region = regions_.find(operation.region);
  if (region == regions_.end()) {
    out_.push(failure(operation.id, missing(operation.region)));
    return;
  }
  std::byte* const at = region->second->data + operation.offset;
  if (operation.kind == OperationKind::kRead)
    return answer(operation.id, at, operation.length, operation.region);
  const uint64_t before = update(at, operation);
  changed_ = region->second.get();
  answer(operation.id, reinterpret_cast<const std::byte*>(&before), sizeof before, 0);
}

// `region` zero: the bytes are few, and copied.
void Target::answer(uint64_t id, const std::byte* body, size_t size, uint64_t region) {
  ++served_;
  served_bytes_ += operation_.length;
  FrameQueue::Frame frame;
  frame.outcome = true;
  frame.id = id;
  frame.region = region;
  std::byte* end =
      wire::encode_outcome_prefix(frame.head.data(), {id, Code::kOk, static_cast<uint32_t>(size)});
  if (region == 0) {
    end = wire::store_bytes(end, body, size);
  } else {
    frame.body = body;
    frame.body_size = size;
  }
  frame.head_size = static_cast<size_t>(end - frame.head.data());
  out_.push(frame);
}

bool Target::add_immediate(uint32_t value) {
  if (immediates_.size() == kMaxImmediates) return false;
  immediates_.push_back(value);
  return true;
}

bool Target::take_immediate(uint32_t& value) {
  if (immediates_.empty()) return false;
  value = immediates_.front();
  immediates_.pop_front();
  return true;
}

std::vector<Ref<Grant>> Target::drop() {
  std::vector<Ref<Grant>> grants;
  grants.reserve(regions_.size());  // which can be done again; what follows could not
  for (auto& [id, grant] : regions_) {
    grant->end(Door::kLinkOver);
    grants.push_back(std::move(grant));
  }
  regions_.clear();
  inbound_region_ = 0;
  changed_ = nullptr;
  return grants;
}

}  // namespace tw

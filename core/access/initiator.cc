// SPDX-License-Identifier: Apache-2.0
#include "access/initiator.h"

#include <algorithm>
#include <cstring>
#include <string_view>
#include <utility>

#include "base/shortage.h"
#include "wire/bytes.h"

namespace tw {

using wire::OperationKind;

Access::Access(Ref<const AccessBatch> batch, const std::optional<Signal>& signal, Hold hold,
               Notice told)
    : batch_(std::move(batch)), hold_(std::move(hold)), told_(std::move(told)) {
  if (signal) last_ = request_of(*signal, &word_);
}

bool Access::names(uint64_t region) const {
  if (last_ && last_->region == region) return true;
  return batch_ && std::ranges::find(batch_->regions(), region) != batch_->regions().end();
}

bool Access::awaits_payload() const {
  if (!batch_ || turn_ != requests().size()) return false;
  // What fails the payload in the same region fails the signal, which comes after it.
  return std::ranges::any_of(batch_->regions(), [&](uint64_t id) { return id != last_->region; });
}

void Access::advance(uint64_t bytes) {
  issued_ += bytes;
  if (issued_ != request().length) return;
  issued_ = 0;
  if (++run_ != request().count) return;
  run_ = 0;
  all_issued_ = ++turn_ == turns();
}

void Access::finish() {
  hold_ = nullptr;
  ended_.store(true, std::memory_order_release);
  event_.notify();
  told_.tell();
}

void EndedAccesses::push(Ref<Access> access) noexcept {
  Access* const added = access.get();
  (last_ ? last_->next_ : first_) = std::move(access);
  last_ = added;
}

Ref<Access> EndedAccesses::pop() noexcept {
  Ref<Access> access = std::move(first_);
  if (!access) return access;
  first_ = std::move(access->next_);
  if (!first_) last_ = nullptr;
  return access;
}

Status Initiator::check_new(const wire::Region& region) const {
  if (regions_.size() >= wire::kMaxRegions)
    return wire::protocol_error({"REGION frame: id is ", region.id, ", while ", wire::kMaxRegions,
                                 " others have not gone"});
  if (region.id <= last_region_)
    return wire::protocol_error(
        {"REGION frame: id is ", region.id, ", after one whose id was ", last_region_});
  return {};
}

Status Initiator::on_region(const wire::Region& region) {
  if (Status status = check_new(region); !status.ok()) return status;
  regions_.emplace(region.id, region);
  last_region_ = region.id;
  return {};
}

Status Initiator::on_region_gone(uint64_t region) {
  if (regions_.erase(region) == 0)
    return wire::protocol_error(
        {"REGION_GONE frame: region is ", region, ", which is not exposed"});
  // What was begun after a fence waits for what is before that, whether or not the access that
  // came to the fence first still does.
  bool fenced = false;
  for (const Ref<Access>& access : waiting_) {
    if (access->names(region))
      fenced = fenced || access->fenced_;
    else if (std::exchange(fenced, false))
      access->fenced_ = true;
  }
  if (fenced) fence_ = true;
  // The device must not be asked with a key that is no good any more.
  const Status gone = no_such_region(region);
  std::erase_if(waiting_, [&](const Ref<Access>& access) {
    if (!access->names(region)) return false;
    fail(*access, gone);
    end_if_done(access);
    return true;
  });
  pass_flushes();
  return {};
}

const wire::Region* Initiator::region(uint64_t id) const {
  auto it = regions_.find(id);
  return it == regions_.end() ? nullptr : &it->second;
}

Status Initiator::check(const AccessRequest& request) const {
  if (wire::updates(request.kind) && request.length != sizeof(uint64_t))
    return Status{Code::kInvalidArgument, "an atomic works on 8 bytes"};
  const wire::Region* const known = region(request.region);
  if (!known) return no_such_region(request.region);
  return check_access(request, *known);
}

Status Initiator::check(const AccessBatch& batch) const {
  for (const AccessRequest& request : batch.requests())
    if (Status status = check(request); !status.ok()) return status;
  if (!batch.signal()) return {};
  const wire::Region* const known = region(batch.signal()->region);
  return known ? check_signal(*batch.signal(), *known) : no_such_region(batch.signal()->region);
}

Ref<Access> Initiator::queue(Ref<Access> access) {
  waiting_.push_back(access);
  access->fenced_ = std::exchange(fence_, false);
  return access;
}

Result<Ref<Access>> Initiator::submit(const AccessRequest& request, Hold&& hold, Notice&& told) {
  if (!closed_.ok()) return closed_;
  if (Status status = check(request); !status.ok()) return status;
  auto access = queue(make_ref<Access>(request, nullptr, Notice()));
  access->adopt(std::move(hold), std::move(told));
  count(request.length * request.count);
  return access;
}

Result<Ref<Access>> Initiator::submit(Ref<const AccessBatch> batch, std::optional<uint64_t> value,
                                      Hold&& hold, Notice&& told) {
  if (!closed_.ok()) return closed_;
  // Nothing but a region's end can have changed since the batch was checked.
  for (const uint64_t id : batch->regions())
    if (!region(id)) return no_such_region(id);
  std::optional<Signal> signal = batch->signal();
  if (signal && !region(signal->region)) return no_such_region(signal->region);
  if (signal && value) signal->value = *value;
  const uint64_t bytes = batch->bytes();
  auto access = queue(make_ref<Access>(std::move(batch), signal, nullptr, Notice()));
  access->adopt(std::move(hold), std::move(told));
  count(bytes);
  pass_flushes();
  return access;
}

Result<Ref<Access>> Initiator::submit_flush() {
  if (!closed_.ok()) return closed_;
  auto access = queue(make_ref<Access>(nullptr, std::nullopt, nullptr, Notice()));
  access->fenced_ = true;
  pass_flushes();
  return access;
}

void Initiator::pass_flushes() {
  while (!waiting_.empty() && waiting_.front()->turns() == 0 &&
         !(waiting_.front()->fenced_ && !pieces_.empty())) {
    waiting_.front()->all_issued_ = true;
    ended_.push(std::move(waiting_.front()));
    waiting_.pop_front();
  }
}

std::optional<Operation> Initiator::next() const {
  if (waiting_.empty() || pieces_.size() >= kWindowPieces) return std::nullopt;
  const Access& access = *waiting_.front();
  // What asks for nothing waits for what is before it.
  if (access.turns() == 0 || (access.fenced_ && !pieces_.empty() && access.outstanding_ == 0))
    return std::nullopt;
  if (access.outstanding_ != 0 && access.awaits_payload()) return std::nullopt;
  const AccessRequest& request = access.request();
  const uint64_t left = request.length - access.issued_;
  Operation piece;
  piece.length = std::min<uint64_t>(left, piece_bytes_);
  if (!pieces_.empty() && outstanding_bytes_ + piece.length > kWindowBytes) return std::nullopt;
  piece.kind = static_cast<Operation::Kind>(request.kind);
  // The value goes with the last byte.
  if (request.kind == OperationKind::kWriteImmediate && piece.length != left)
    piece.kind = Operation::Kind::kWrite;
  if (piece.kind == Operation::Kind::kWriteImmediate) piece.immediate = request.immediate;
  piece.id = next_id_ | Operation::kIdBit;
  if (request.local)
    piece.local = request.local + access.run_ * request.local_stride + access.issued_;
  piece.operand = request.operand;
  piece.expected = request.expected;
  if (const wire::Region* const known = region(request.region))
    piece.remote = {known->address + access.offset(), known->key};
  return piece;
}

void Initiator::taken(const Operation& piece) {
  Ref<Access> access = waiting_.front();
  pieces_.emplace(next_id_++, AccessPiece{access, piece.local, piece.length,
                                          wire::writes(access->request().kind)});
  outstanding_bytes_ += piece.length;
  ++access->outstanding_;
  access->advance(piece.length);
  if (!access->all_issued_) return;
  waiting_.pop_front();
  pass_flushes();
}

void Initiator::fill() {
  while (const auto piece = next()) {
    const Access& access = *waiting_.front();
    const AccessRequest& request = access.request();
    wire::OperationFrame operation;
    operation.id = next_id_;
    operation.region = request.region;
    operation.offset = access.offset();
    operation.length = piece->length;
    operation.kind = static_cast<OperationKind>(piece->kind);
    if (wire::updates(operation.kind)) operation.operand = request.operand;
    if (operation.kind == OperationKind::kCompareSwap) operation.expected = request.expected;
    operation.immediate = piece->immediate;
    FrameQueue::Frame frame;
    frame.id = next_id_;
    std::byte* end = wire::encode_operation_prefix(frame.head.data(), operation);
    if (wire::writes(operation.kind)) {
      if (piece->length <= frame.head.size() - wire::kOperationFramePrefixSize) {
        end = wire::store_bytes(end, piece->local, piece->length);
      } else {
        frame.body = piece->local;
        frame.body_size = piece->length;
      }
    }
    frame.head_size = static_cast<size_t>(end - frame.head.data());
    out_.push(frame);
    taken(*piece);
  }
}

Result<std::byte*> Initiator::on_outcome(const wire::OutcomeFrame& outcome,
                                         std::span<const std::byte> here) {
  outcome_ = outcome;
  inbound_ = false;
  auto it = pieces_.find(outcome.id);
  if (it == pieces_.end()) {
    if (!closed_.ok()) return nullptr;
    return wire::protocol_error({"OUTCOME frame: id is ", outcome.id, ", which is not under way"});
  }
  std::byte* to = details_.data();
  if (outcome.code == Code::kOk) {
    const uint64_t due = it->second.writes ? 0 : it->second.length;
    if (outcome.length != due)
      return wire::protocol_error({"OUTCOME frame: id is ", outcome.id, ", with ", outcome.length,
                                   " bytes instead of ", due});
    to = it->second.local;
    inbound_ = due != 0;
  }
  if (!here.empty()) std::memcpy(to, here.data(), here.size());
  return to + here.size();
}

Status Initiator::outcome_arrived() {
  inbound_ = false;
  if (!pieces_.contains(outcome_.id)) return {};  // closed meanwhile
  Status status;
  if (outcome_.code != Code::kOk) {
    const std::string_view details(reinterpret_cast<const char*>(details_.data()), outcome_.length);
    if (!wire::is_utf8(details))
      return wire::protocol_error({"OUTCOME frame: details are not UTF-8: ", quoted(details)});
    status = {outcome_.code, std::string(details)};
  }
  end_piece(outcome_.id, status);
  if (outstanding() <= kWindowPieces / 2 && outstanding_bytes_ <= kWindowBytes / 2) fill();
  return {};
}

Status Initiator::completed(const Completion& completion) {
  const uint64_t id = completion.id & ~Operation::kIdBit;
  if (!pieces_.contains(id))
    return {Code::kInternal, text({"local error: operation ", id, " has ended twice"})};
  end_piece(id, completion.status);
  return {};
}

void Initiator::end_piece(uint64_t id, const Status& status) {
  auto it = pieces_.find(id);
  Ref<Access> access = std::move(it->second.access);
  outstanding_bytes_ -= it->second.length;
  pieces_.erase(it);
  --access->outstanding_;
  if (!status.ok()) {
    if (!access->all_issued_)
      std::erase_if(waiting_, [&](const Ref<Access>& one) { return one.get() == access.get(); });
    fail(*access, status);
  }
  end_if_done(std::move(access));
  pass_flushes();
}

void Initiator::end_if_done(Ref<Access> access) noexcept {
  if (access->all_issued_ && access->outstanding_ == 0) ended_.push(std::move(access));
}

void Initiator::fail(Access& access, const Status& why) noexcept {
  access.all_issued_ = true;
  if (!access.status_.ok()) return;
  // It ends without a sentence, too.
  if (!has_memory_for([&] { access.status_ = why; })) access.status_ = Status(why.code(), {});
}

// Those that have pieces under way end with the last of these.
void Initiator::fail_waiting(const Status& why) {
  while (!waiting_.empty()) {
    const Ref<Access> access = std::move(waiting_.front());
    waiting_.pop_front();
    fail(*access, why);
    end_if_done(access);
  }
}

void Initiator::close(const Status& why) {
  closed_ = why;
  if (device_) return fail_waiting(why);
  out_.take_back([](const FrameQueue::Frame& frame) { return !frame.outcome; },
                 [](const FrameQueue::Frame&) { return false; });
  drop(why);
}

void Initiator::drop(const Status& why) {
  closed_ = why;
  inbound_ = false;
  fail_waiting(why);
  for (auto& [id, piece] : std::exchange(pieces_, {})) {
    --piece.access->outstanding_;
    fail(*piece.access, why);
    end_if_done(std::move(piece.access));
  }
  outstanding_bytes_ = 0;
}

}  // namespace tw

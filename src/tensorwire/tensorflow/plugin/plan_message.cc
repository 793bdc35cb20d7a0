// SPDX-License-Identifier: Apache-2.0
#include "plan_message.h"

#include <algorithm>
#include <utility>

namespace tensorwire {
namespace {

// Records of one message; a small tensor fits in. Each message may wake a thread at both ends.
constexpr size_t kRecords = 256 << 10;
static_assert(kRecords >= kSmall + wire::kPlanPrefix && kRecords <= wire::kMaxRequest);
// Further segments of one message.
constexpr size_t kSegments = 32;

}  // namespace

void PlanMessage::Free::operator()(char* bytes) const {
  if (in_arena)
    core().arena_free(bytes);
  else
    delete[] bytes;
}

// A full arena is no reason not to send.
PlanMessage::Bytes PlanMessage::allocate(bool in_arena) {
  if (in_arena)
    if (void* const block = core().arena_allocate(kRecords))
      return {static_cast<char*>(block), Free{true}};
  return {new char[kRecords], Free{false}};
}

bool PlanMessage::has_room(size_t payload) const {
  return size_ + wire::kPlanPrefix + payload <= kRecords && segments_.size() < kSegments;
}

void PlanMessage::add(const wire::PlanRecord& record) {
  const auto prefix = wire::encode_plan_prefix(record);
  std::copy(prefix.begin(), prefix.end(), bytes_.get() + size_);
  size_ += prefix.size();
  if (!record.payload.empty())
    core().copy(bytes_.get() + size_, record.payload.data(), record.payload.size());
  size_ += record.payload.size();
}

void PlanMessage::add(const wire::PlanRecord& record, std::unique_ptr<SentTensor> segment) {
  add(record);
  segments_.push_back(std::move(segment));
}

void PlanMessage::release(void* message) {
  auto* const lent = static_cast<PlanMessage*>(message);
  if (lent->lent_.fetch_sub(1) == 1) delete lent;
}

int PlanMessage::send(std::unique_ptr<PlanMessage> message, tw_server_call* call,
                      tw_status* status) {
  PlanMessage* const lent = message.release();
  std::vector<tw_segment> segments{{lent->bytes_.get(), lent->size_}};
  for (const auto& each : lent->segments_) segments.push_back(each->bytes());
  const std::vector<tw_owner> owners(segments.size(), tw_owner{release, lent});
  lent->lent_.store(segments.size());
  const tw_wait now{0, nullptr, nullptr};
  return core().call_reply(call, {segments.data(), segments.size(), owners.data(), nullptr}, &now,
                           status);
}

std::unique_ptr<PlanMessage> PlanMessages::take() {
  std::unique_ptr<PlanMessage> first = std::move(messages_.front());
  messages_.pop_front();
  return first;
}

PlanMessage& PlanMessages::with_room(size_t payload) {
  if (messages_.empty() || !messages_.back()->has_room(payload))
    messages_.push_back(std::make_unique<PlanMessage>(in_arena_));
  return *messages_.back();
}

}  // namespace tensorwire

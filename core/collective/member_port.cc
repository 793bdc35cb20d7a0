// SPDX-License-Identifier: Apache-2.0
#include "collective/member_port.h"

#include <utility>

namespace tw::collective {
namespace {

constexpr const char* kWord = "/tensorwire.group/Word";
constexpr const char* kTake = "/tensorwire.group/Take";
constexpr const char* kWaits = "/tensorwire.group/Waits";
constexpr const char* kWordKey = "word-bin";
constexpr const char* kCallKey = "call-bin";

}  // namespace

void MemberPort::send(const char* method, const char* key, std::string_view bytes) {
  auto call = new_call(kForever);
  if (!call) return;
  const wire::MetadataEntry entry{key, bytes};
  (void)(*call)->begin(method, {&entry, 1}, {}, false, true, false);
}

void MemberPort::say(const Word& word) {
  link_.surely([&] { send(kWord, kWordKey, encode_word(word)); });
}

void MemberPort::say(const NumberedCall& call) {
  link_.surely([&] {
    const auto bytes = encode_step({call.sequence, 0, call.call, Algorithm::kNone});
    send(kWaits, kCallKey, {reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  });
}

Result<Ref<ClientCall>> MemberPort::ask() {
  Result<Ref<ClientCall>> question = Status{Code::kResourceExhausted, ""};  // takes no memory
  link_.surely([&] {
    question = new_call(kForever);
    if (!question) return;
    const auto begun = (*question)->begin(kTake, {}, {}, false, true, false);
    if (!begun) question = begun.status();
  });
  return question;
}

void MemberPort::say_whether(uint64_t question, bool taken) {
  link_.surely([&] {
    if (taken)
      answer(question, Code::kOk, "");
    else
      answer(question, Code::kUnavailable, "the link is not needed");
  });
}

Status MemberPort::on_message(Ref<Parcel> message) {
  Status status = CallPort::on_message(std::move(message));
  if (status.ok()) owner_->answered(rank_, *this);
  return status;
}

Status MemberPort::on_request(Ref<Parcel> message) {
  const auto header = wire::decode_call_header(message->header());
  if (!header) return header.status();
  if (!header->has(wire::call_flag::kStart)) return {};
  if (header->method == kTake) {
    owner_->asked(rank_, *this, message->stream());
    return {};
  }
  if (header->method != kWord && header->method != kWaits)
    return CallPort::on_request(std::move(message));
  for (const wire::MetadataEntry& entry : header->initial) {
    if (entry.key == kWordKey) {
      const auto word = decode_word(entry.value, owner_->size());
      if (!word) return word.status();
      owner_->heard(rank_, *this, *word);
    } else if (entry.key == kCallKey) {
      const auto step = decode_step(std::as_bytes(std::span(entry.value)));
      if (!step) return step.status();
      owner_->waits(rank_, {step->sequence, step->call});
    }
  }
  answer(message->stream(), Code::kOk, "");
  return {};
}

}  // namespace tw::collective

// SPDX-License-Identifier: Apache-2.0
#include "access/request.h"

#include <algorithm>

#include "base/text.h"

namespace tw {

using wire::OperationKind;

AccessRequest request_of(const Signal& signal, uint64_t* word) {
  AccessRequest request;
  request.kind = signal.add ? OperationKind::kFetchAdd : OperationKind::kWrite;
  request.region = signal.region;
  request.offset = signal.offset;
  request.local = reinterpret_cast<std::byte*>(word);
  request.length = sizeof(uint64_t);
  if (signal.add)
    request.operand = signal.value;
  else
    *word = signal.value;
  return request;
}

Status AccessBatch::add(const AccessRequest& request) {
  AccessRequest wanted = request;
  if (wanted.length == 0 || wanted.count == 0) return {};
  // One run, if nothing lies between its runs.
  if (wanted.count != 1 && wanted.stride == wanted.length && wanted.local_stride == wanted.length) {
    if (wanted.length > UINT64_MAX / wanted.count)
      return {Code::kOutOfRange, text({wanted.count, " runs of ", wanted.length, " bytes"})};
    wanted.length *= wanted.count;
    wanted.count = 1;
  }
  uint64_t bytes;
  if (__builtin_mul_overflow(wanted.length, wanted.count, &bytes) ||
      __builtin_add_overflow(bytes_, bytes, &bytes_))
    return {Code::kOutOfRange, text({wanted.count, " runs of ", wanted.length, " bytes"})};
  if (!requests_.empty()) {
    AccessRequest& last = requests_.back();
    if (last.kind == wanted.kind && last.region == wanted.region && last.count == 1 &&
        wanted.count == 1 && last.offset + last.length == wanted.offset &&
        last.local + last.length == wanted.local) {
      last.length += wanted.length;
      return {};
    }
  }
  runs_ += wanted.count;
  if (requests_.empty() || requests_.back().region != wanted.region)
    if (std::ranges::find(regions_, wanted.region) == regions_.end())
      regions_.push_back(wanted.region);
  requests_.push_back(wanted);
  return {};
}

bool AccessBatch::writes() const {
  return signal_ || std::ranges::any_of(requests_, [](const AccessRequest& request) {
           return request.kind != OperationKind::kRead;
         });
}

Result<Ref<AccessBatch>> AccessBatch::make(std::span<const AccessRequest> requests,
                                           const std::optional<Signal>& signal) {
  auto batch = Ref<AccessBatch>::adopt(new AccessBatch);
  for (const AccessRequest& request : requests) {
    if (request.kind != OperationKind::kRead && request.kind != OperationKind::kWrite)
      return Status{Code::kInvalidArgument, "a batch is made of reads and writes"};
    if (signal && request.kind == OperationKind::kRead)
      return Status{Code::kInvalidArgument, "a signal follows writes, not reads"};
    if (Status status = batch->add(request); !status.ok()) return status;
  }
  batch->signal_ = signal;
  return batch;
}

}  // namespace tw

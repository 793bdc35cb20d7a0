// SPDX-License-Identifier: Apache-2.0
// What is wanted of the peer's memory, and batches of it that are checked once and begun often.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/ref.h"
#include "base/status.h"
#include "wire/one_sided_frames.h"

namespace tw {

// `count` runs of `length` bytes. Each begins so many bytes after the one before: `stride` in the
// region, `local_stride` here. Atomics and writes with immediate are of one run.
struct AccessRequest {
  wire::OperationKind kind = wire::OperationKind::kRead;
  uint64_t region = 0;  // the peer's name for it
  uint64_t offset = 0;  // in the region
  // Source of a write, destination of a read; of an atomic, 8 bytes for the value before it.
  std::byte* local = nullptr;
  uint64_t length = 0;  // 8 for the atomics
  uint64_t operand = 0;
  uint64_t expected = 0;
  uint32_t immediate = 0;
  uint64_t count = 1;
  uint64_t stride = 0;
  uint64_t local_stride = 0;
};

// The word that is set or added to once all bytes of a batch, or of a write, are visible there.
struct Signal {
  uint64_t region = 0;
  uint64_t offset = 0;  // a multiple of 8
  uint64_t value = 0;
  bool add = false;  // else set
};

// What a signal asks for. `word`: 8 bytes of this end's, which last as long as the request.
AccessRequest request_of(const Signal& signal, uint64_t* word);

// Reads and writes that end as one.
class AccessBatch final : public RefCounted {
 public:
  // Joins what touches. OUT_OF_RANGE, INVALID_ARGUMENT: a request that fits no memory, or is
  // neither a read nor a write; a signal beside reads.
  static Result<Ref<AccessBatch>> make(std::span<const AccessRequest> requests,
                                       const std::optional<Signal>& signal);

  std::span<const AccessRequest> requests() const { return requests_; }
  const std::optional<Signal>& signal() const { return signal_; }
  // Those that the requests name, each once.
  std::span<const uint64_t> regions() const { return regions_; }
  bool writes() const;
  uint64_t bytes() const { return bytes_; }
  uint64_t runs() const { return runs_; }

 private:
  AccessBatch() = default;
  Status add(const AccessRequest& request);

  std::vector<AccessRequest> requests_;
  std::vector<uint64_t> regions_;
  std::optional<Signal> signal_;
  uint64_t bytes_ = 0;
  uint64_t runs_ = 0;
};

}  // namespace tw

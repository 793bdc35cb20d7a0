// SPDX-License-Identifier: Apache-2.0
#include "coalescing.h"

#include <cstdint>
#include <cstring>
#include <map>

#include "tensors.h"

namespace tensorwire {

namespace {

// Bytes from which on a tensor goes alone: copying it costs more than waiting once more.
constexpr size_t kAlone = 16 << 10;
constexpr size_t kTogether = 4 << 20;

// In the host's memory, one element after the other: copied without PyTorch, which takes
// microseconds to begin.
bool is_plain(const at::Tensor& tensor) { return tensor.is_cpu() && is_dense(tensor); }

std::byte* part_of(const at::Tensor& tensor, int64_t from) {
  return static_cast<std::byte*>(tensor.data_ptr()) +
         static_cast<size_t>(from) * tensor.element_size();
}

size_t row_bytes(const at::Tensor& tensor, int64_t count) {
  return static_cast<size_t>(count) * tensor.element_size();
}

void copy_rows(std::byte* to, size_t to_step, const std::byte* from, size_t from_step, size_t size,
               int64_t rows) {
  for (; size != 0 && rows > 0; --rows, to += to_step, from += from_step)
    std::memcpy(to, from, size);
}

}  // namespace

std::vector<Places> batches_of(const std::vector<at::Tensor>& tensors) {
  struct Open {
    size_t batch, bytes;
  };
  std::vector<Places> batches;
  std::map<at::ScalarType, Open> open;
  for (size_t place = 0; place < tensors.size(); ++place) {
    const size_t bytes = tensors[place].nbytes();
    if (bytes >= kAlone) {
      batches.push_back({place});
      continue;
    }
    const auto [at, is_first] = open.try_emplace(tensors[place].scalar_type(), Open{0, 0});
    if (is_first || at->second.bytes + bytes > kTogether) {
      at->second = {batches.size(), 0};
      batches.emplace_back();
    }
    batches[at->second.batch].push_back(place);
    at->second.bytes += bytes;
  }
  return batches;
}

tw_collective together(const std::vector<tw_collective>& calls, const Places& places) {
  tw_collective call = calls[places[0]];
  if (places.size() == 1) return call;
  call.count = 0;
  // FNV-1a, of 32 bits at a time.
  uint32_t digest = 2166136261;
  for (const size_t place : places) {
    call.count += calls[place].count;
    digest = (digest ^ static_cast<uint32_t>(calls[place].count)) * 16777619;
  }
  call.root = static_cast<int>(digest);
  return call;
}

std::vector<at::Tensor> chosen(const std::vector<at::Tensor>& tensors, const Places& places) {
  std::vector<at::Tensor> found;
  found.reserve(places.size());
  for (const size_t place : places) found.push_back(tensors[place]);
  return found;
}

at::Tensor rows_joined(const std::vector<at::Tensor>& tensors, int64_t ranks) {
  if (tensors.size() == 1) return dense(tensors[0]).view({ranks, tensors[0].numel() / ranks});
  const at::Tensor rows = rows_room(flat_room(tensors[0], elements(tensors) / ranks), ranks);
  int64_t at = 0;
  for (const at::Tensor& tensor : tensors) {
    const int64_t each = tensor.numel() / ranks;
    if (is_plain(tensor))
      copy_rows(part_of(rows, at), row_bytes(rows, rows.size(1)), part_of(tensor, 0),
                row_bytes(rows, each), row_bytes(rows, each), ranks);
    else
      rows.narrow(1, at, each).copy_(dense(tensor).view({ranks, each}));
    at += each;
  }
  return rows;
}

void take_rows_apart(const at::Tensor& rows, const std::vector<at::Tensor>& tensors) {
  const int64_t ranks = rows.size(0);
  int64_t at = 0;
  for (const at::Tensor& tensor : tensors) {
    const int64_t each = tensor.numel() / ranks;
    if (is_plain(tensor))
      copy_rows(part_of(tensor, 0), row_bytes(rows, each), part_of(rows, at),
                row_bytes(rows, rows.size(1)), row_bytes(rows, each), ranks);
    else
      tensor.copy_(rows.narrow(1, at, each).reshape(tensor.sizes()));
    at += each;
  }
}

}  // namespace tensorwire

// SPDX-License-Identifier: Apache-2.0
#include "coalescing.h"

#include <map>

#include "tensors.h"

namespace tensorwire {

namespace {

// Bytes from which on a tensor goes alone: copying it costs more than waiting once more.
constexpr size_t kAlone = 64 << 10;
constexpr size_t kTogether = 4 << 20;

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
  call.count = 0;
  for (const size_t place : places) call.count += calls[place].count;
  return call;
}

std::vector<at::Tensor> chosen(const std::vector<at::Tensor>& tensors, const Places& places) {
  std::vector<at::Tensor> found;
  found.reserve(places.size());
  for (const size_t place : places) found.push_back(tensors[place]);
  return found;
}

at::Tensor rows_joined(const std::vector<at::Tensor>& tensors, int64_t ranks) {
  std::vector<at::Tensor> rows;
  rows.reserve(tensors.size());
  for (const at::Tensor& tensor : tensors)
    rows.push_back(dense(tensor).view({ranks, tensor.numel() / ranks}));
  return at::cat(rows, 1);
}

void take_rows_apart(const at::Tensor& rows, const std::vector<at::Tensor>& tensors) {
  int64_t at = 0;
  for (const at::Tensor& tensor : tensors) {
    const int64_t each = tensor.numel() / rows.size(0);
    tensor.copy_(rows.narrow(1, at, each).reshape(tensor.sizes()));
    at += each;
  }
}

}  // namespace tensorwire

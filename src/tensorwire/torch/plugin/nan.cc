// SPDX-License-Identifier: Apache-2.0
#include "nan.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <utility>

namespace tensorwire {

namespace {

constexpr int64_t kNone = std::numeric_limits<int64_t>::max();

bool is_looked_at(const at::Tensor& tensor) {
  return tensor.is_cpu() && (tensor.is_floating_point() || tensor.is_complex());
}

bool has_nan(const at::Tensor& tensor) {
  // PyTorch compares no floats of 8 bits.
  const bool compared = tensor.element_size() > 1;
  return at::isnan(compared ? tensor : tensor.to(at::kFloat)).any().item<bool>();
}

// The first tensor with a NaN, after those of the ranks before.
int64_t place_of_nan(int rank, const std::vector<at::Tensor>& tensors) {
  const auto found = std::ranges::find_if(
      tensors, [](const at::Tensor& tensor) { return is_looked_at(tensor) && has_nan(tensor); });
  if (found == tensors.end()) return kNone;
  return (int64_t{rank} << 32) + (found - tensors.begin());
}

std::string refusal(const std::string& title, int64_t place, size_t count) {
  const std::string what = "rank " + std::to_string(place >> 32) + " gave " +
                           title.substr(title.find(':') + 1) + " a tensor with NaN";
  const int64_t tensor = place & std::numeric_limits<uint32_t>::max();
  return what + (count == 1 ? "" : ", of index " + std::to_string(tensor) + " in its list") +
         ": nothing has been sent";
}

}  // namespace

Work::Body without_nan(std::shared_ptr<tw_group> group, int rank, std::string title,
                       std::vector<at::Tensor> tensors, Work::Body body) {
  if (std::ranges::none_of(tensors, is_looked_at)) return body;
  return [group = std::move(group), rank, title = std::move(title), tensors = std::move(tensors),
          body = std::move(body)](const tw_wait& wait, tw_status* status) {
    int64_t place = place_of_nan(rank, tensors);
    const tw_collective first{TW_ALL_REDUCE, TW_INT64, TW_MIN, 0, 1, 1};
    const int code =
        core().group_run_on(group.get(), &first, nullptr, &place, &place, &wait, status);
    if (code != TW_OK) return code;
    if (place != kNone) fail(refusal(title, place, tensors.size()));
    return body(wait, status);
  };
}

}  // namespace tensorwire

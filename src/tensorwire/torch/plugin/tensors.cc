// SPDX-License-Identifier: Apache-2.0
#include "tensors.h"

#include <c10/util/Exception.h>

#include <cstddef>

#include "core.h"
#include "device.h"
#include "work.h"

namespace tensorwire {

namespace {

// -1: the runtime knows no such type.
int type_of(at::ScalarType type) {
  switch (type) {
    case at::kDouble:
    case at::kComplexDouble:
      return TW_FLOAT64;
    case at::kFloat:
    case at::kComplexFloat:
      return TW_FLOAT32;
    case at::kHalf:
    case at::ScalarType::ComplexHalf:
      return TW_FLOAT16;
    case at::kBFloat16:
      return TW_BFLOAT16;
    case at::kFloat8_e4m3fn:
      return TW_FLOAT8_E4M3;
    case at::kFloat8_e5m2:
      return TW_FLOAT8_E5M2;
    case at::kChar:
      return TW_INT8;
    case at::kShort:
      return TW_INT16;
    case at::kInt:
      return TW_INT32;
    case at::kLong:
      return TW_INT64;
    case at::kByte:
      return TW_UINT8;
    case at::ScalarType::UInt16:
      return TW_UINT16;
    case at::ScalarType::UInt32:
      return TW_UINT32;
    case at::ScalarType::UInt64:
      return TW_UINT64;
    case at::kBool:
      return TW_BOOL;
    default:
      return -1;
  }
}

std::string name_of(const at::Tensor& tensor) { return at::toString(tensor.scalar_type()); }

}  // namespace

Element moved(const at::Tensor& tensor) {
  const int type = type_of(tensor.scalar_type());
  if (type < 0) return {TW_UINT8, tensor.element_size()};
  return {type, tensor.is_complex() ? uint64_t{2} : uint64_t{1}};
}

namespace {

// -1: the runtime knows no such reduction.
int number_of(c10d::ReduceOp::RedOpType kind) {
  using c10d::ReduceOp;
  switch (kind) {
    case ReduceOp::SUM:
    case ReduceOp::PREMUL_SUM:
      return TW_SUM;
    case ReduceOp::AVG:
      return TW_AVERAGE;
    case ReduceOp::PRODUCT:
      return TW_PRODUCT;
    case ReduceOp::MIN:
      return TW_MIN;
    case ReduceOp::MAX:
      return TW_MAX;
    case ReduceOp::BAND:
      return TW_BIT_AND;
    case ReduceOp::BOR:
      return TW_BIT_OR;
    case ReduceOp::BXOR:
      return TW_BIT_XOR;
    default:
      return -1;
  }
}

double factor_of(const c10d::ReduceOp& op) {
  if (static_cast<c10d::ReduceOp::RedOpType>(op) != c10d::ReduceOp::PREMUL_SUM) return 1;
  const auto* const by = dynamic_cast<const c10d::NCCLPreMulSumSupplement*>(op.supplement_.get());
  if (!by) fail("PREMUL_SUM has no factor");
  if (!by->tensor_factor.defined()) return by->double_factor;
  return by->tensor_factor.item<double>();
}

}  // namespace

Reduction reduced(const at::Tensor& tensor, const c10d::ReduceOp& op) {
  const c10d::ReduceOp::RedOpType kind = op;
  const int number = number_of(kind);
  if (number < 0) fail("tensorwire has no such reduction");
  const int type = type_of(tensor.scalar_type());
  if (type < 0) fail("tensors of " + name_of(tensor) + " cannot be reduced");
  if (tensor.is_complex() && number != TW_SUM && number != TW_AVERAGE)
    fail("complex tensors can be reduced by SUM and AVG only");
  if (type == TW_BOOL && number == TW_AVERAGE) fail("tensors of bool have no AVG");
  if (kind == c10d::ReduceOp::PREMUL_SUM && !tensor.is_floating_point())
    fail("tensors of " + name_of(tensor) + " have no PREMUL_SUM, which multiplies by a float");
  const bool bits = number == TW_BIT_AND || number == TW_BIT_OR || number == TW_BIT_XOR;
  if (bits && tensor.is_floating_point()) fail("the bits of floats cannot be reduced");
  return {{type, tensor.is_complex() ? uint64_t{2} : uint64_t{1}}, number, factor_of(op)};
}

void check(const at::Tensor& tensor) {
  if (!tensor.defined()) fail("a tensor is missing");
  if (tensor.layout() != at::kStrided)
    fail("tensorwire moves dense tensors only: call to_dense() on this one");
  if (!tensor.device().is_cpu()) check_device(tensor.device());
}

void check(const std::vector<at::Tensor>& tensors) {
  for (const at::Tensor& tensor : tensors) {
    check(tensor);
    check_together(tensor, tensors[0]);
  }
}

void check_together(const at::Tensor& one, const at::Tensor& other) {
  if (one.device() != other.device())
    fail("tensors of " + one.device().str() + " and of " + other.device().str() +
         " in one operation");
}

const at::Tensor& only(const std::vector<at::Tensor>& tensors) {
  if (tensors.size() != 1) fail("a rank gives one tensor, not " + std::to_string(tensors.size()));
  check(tensors[0]);
  return tensors[0];
}

const std::vector<at::Tensor>& only(const std::vector<std::vector<at::Tensor>>& lists) {
  if (lists.size() != 1)
    fail("a rank gives one list of tensors, not " + std::to_string(lists.size()));
  check(lists[0]);
  return lists[0];
}

void check_same(const at::Tensor& of, const at::Tensor& like, int64_t times) {
  check_together(of, like);
  if (of.scalar_type() != like.scalar_type())
    fail("tensors of " + name_of(of) + " and of " + name_of(like) + " in one operation");
  if (of.numel() != like.numel() * times)
    fail("a tensor has " + std::to_string(of.numel()) + " elements, and needs " +
         std::to_string(like.numel() * times));
}

void check_shares(const std::vector<at::Tensor>& shares, const at::Tensor& like, int ranks) {
  if (shares.size() != static_cast<size_t>(ranks))
    fail(std::to_string(shares.size()) + " tensors for " + std::to_string(ranks) + " ranks");
  for (const at::Tensor& share : shares) check_same(share, like);
}

bool check_uneven_shares(const std::vector<at::Tensor>& shares, const at::Tensor& like, int ranks,
                         int rank) {
  if (shares.size() != static_cast<size_t>(ranks))
    fail(std::to_string(shares.size()) + " tensors for " + std::to_string(ranks) + " ranks");
  bool differ = false;
  for (const at::Tensor& share : shares) {
    if (share.scalar_type() != like.scalar_type()) check_same(share, like);
    differ = differ || share.numel() != like.numel();
  }
  check_same(shares[static_cast<size_t>(rank)], like);
  return differ;
}

bool is_dense(const at::Tensor& tensor) {
  return tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg();
}

at::Tensor dense(const at::Tensor& tensor) {
  if (is_dense(tensor)) return tensor;
  return tensor.resolve_conj().resolve_neg().contiguous();
}

at::Tensor room(const at::Tensor& tensor, bool with_values) {
  if (is_dense(tensor)) return tensor;
  return with_values ? dense(tensor) : at::empty(tensor.sizes(), tensor.options());
}

bool is_share_of(const at::Tensor& tensor, const at::Tensor& whole, int rank) {
  if (!tensor.is_cpu() || !is_dense(tensor) || !is_dense(whole)) return false;
  const auto* const start = static_cast<const std::byte*>(whole.const_data_ptr());
  return tensor.const_data_ptr() == start + static_cast<size_t>(rank) * tensor.nbytes();
}

void put_back(const at::Tensor& from, const at::Tensor& to) {
  if (!from.is_same(to)) to.copy_(from);
}

int64_t elements(const std::vector<at::Tensor>& tensors) {
  int64_t count = 0;
  for (const at::Tensor& tensor : tensors) count += tensor.numel();
  return count;
}

at::Tensor flat_room(const at::Tensor& like, int64_t count) {
  return at::empty({count}, like.options().memory_format(std::nullopt));
}

at::Tensor rows_room(const at::Tensor& flat, int64_t ranks) {
  return flat_room(flat, flat.numel() * ranks).view({ranks, flat.numel()});
}

namespace {

// One tensor of those that lie one after the other in one memory; an undefined one where they do
// not.
at::Tensor side_by_side(const std::vector<at::Tensor>& tensors) {
  const at::Tensor& first = tensors[0];
  const auto* next = static_cast<const std::byte*>(first.const_data_ptr());
  for (const at::Tensor& tensor : tensors) {
    if (!is_dense(tensor) || tensor.const_data_ptr() != next || !tensor.is_alias_of(first))
      return {};
    next += tensor.nbytes();
  }
  return first.detach().as_strided({elements(tensors)}, {1});
}

// Whether writing one would change the other; they are dense.
bool overlap(const at::Tensor& one, const at::Tensor& other) {
  if (one.device() != other.device()) return false;
  const auto* const here = static_cast<const std::byte*>(one.const_data_ptr());
  const auto* const there = static_cast<const std::byte*>(other.const_data_ptr());
  return here < there + other.nbytes() && there < here + one.nbytes();
}

}  // namespace

at::Tensor joined(const std::vector<at::Tensor>& tensors) {
  if (at::Tensor whole = side_by_side(tensors); whole.defined()) return whole;
  std::vector<at::Tensor> rows;
  rows.reserve(tensors.size());
  for (const at::Tensor& tensor : tensors) rows.push_back(dense(tensor).view(-1));
  return at::cat(rows);
}

at::Tensor room_apart(const std::vector<at::Tensor>& tensors, const at::Tensor& given) {
  const at::Tensor whole = side_by_side(tensors);
  if (whole.defined() && !overlap(whole, given)) return whole;
  return flat_room(tensors[0], elements(tensors));
}

at::Tensor gathered_room(const std::vector<at::Tensor>& shares, const at::Tensor& given, int rank,
                         bool uneven) {
  const at::Tensor whole = side_by_side(shares);
  if (whole.defined() && !uneven && is_share_of(given, whole, rank)) return whole;
  return room_apart(shares, given);
}

at::Tensor share_room(const at::Tensor& share, const at::Tensor& all, int rank, bool uneven) {
  const at::Tensor memory = room(share, false);
  if (!overlap(memory, all) || (!uneven && is_share_of(memory, all, rank))) return memory;
  return at::empty(share.sizes(), share.options());
}

void take_apart(const at::Tensor& flat, const std::vector<at::Tensor>& tensors) {
  int64_t at = 0;
  for (const at::Tensor& tensor : tensors) {
    const at::Tensor part = flat.narrow(0, at, tensor.numel());
    if (part.const_data_ptr() != tensor.const_data_ptr()) tensor.copy_(part.view(tensor.sizes()));
    at += tensor.numel();
  }
}

}  // namespace tensorwire

// SPDX-License-Identifier: Apache-2.0
// Tensors as the runtime takes them: memory, a number of elements, and a type.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <vector>

namespace tensorwire {

// What an element counts as. Of a complex number both parts do.
struct Element {
  int type;
  uint64_t each;  // elements of the runtime in one of the tensor's
};

// As what it is moved; what the runtime does not know is bytes.
Element moved(const at::Tensor& tensor);
// How it is reduced. Throws where the runtime has no such reduction of the tensor's type.
struct Reduction {
  Element element;
  int op;
  double factor;  // of PREMUL_SUM
};
Reduction reduced(const at::Tensor& tensor, const c10d::ReduceOp& op);

// Throws unless it is a dense tensor of the CPU, or of a device that the runtime reaches.
void check(const at::Tensor& tensor);
// They lie on one device, too.
void check(const std::vector<at::Tensor>& tensors);
void check_together(const at::Tensor& one, const at::Tensor& other);
// The one of a list that has to have one. The lists are PyTorch's, from the days of several devices
// in one process.
const at::Tensor& only(const std::vector<at::Tensor>& tensors);
const std::vector<at::Tensor>& only(const std::vector<std::vector<at::Tensor>>& lists);
// Throws unless both lie on one device and have the same type, and `of` has `times` as many
// elements.
void check_same(const at::Tensor& of, const at::Tensor& like, int64_t times = 1);
// Throws unless there is one for each rank, all like `like`.
void check_shares(const std::vector<at::Tensor>& shares, const at::Tensor& like, int ranks);
// ... but for their sizes, of which that of `rank` is its own. Whether they differ.
bool check_uneven_shares(const std::vector<at::Tensor>& shares, const at::Tensor& like, int ranks,
                         int rank);

// Whether its elements lie one after the other, as they are.
bool is_dense(const at::Tensor& tensor);
// Its elements one after the other: itself where they are, else a copy.
at::Tensor dense(const at::Tensor& tensor);
// Memory for its elements one after the other: its own where they are; with_values: as it is now.
at::Tensor room(const at::Tensor& tensor, bool with_values);
// Whether it lies in the host's memory where the share of `rank` of `whole` is: then it can be read
// and written as that share while `whole` is.
bool is_share_of(const at::Tensor& tensor, const at::Tensor& whole, int rank);
// Puts what is in that memory to where it belongs.
void put_back(const at::Tensor& from, const at::Tensor& to);

int64_t elements(const std::vector<at::Tensor>& tensors);
// Memory for so many elements like those of a tensor, and for a row like `flat` for each rank.
at::Tensor flat_room(const at::Tensor& like, int64_t count);
at::Tensor rows_room(const at::Tensor& flat, int64_t ranks);
// All elements of tensors one after the other: in their own memory where they lie so, as the parts
// of one tensor do. Memory for that, likewise, but not for what is in `given`; and what is in such
// memory, into the tensors.
at::Tensor joined(const std::vector<at::Tensor>& tensors);
at::Tensor room_apart(const std::vector<at::Tensor>& tensors, const at::Tensor& given);
void take_apart(const at::Tensor& flat, const std::vector<at::Tensor>& tensors);
// As room_apart(), where `given` may lie in the place of this rank's share, if all are like it; and
// memory for the share that this rank takes of all that it gives.
at::Tensor gathered_room(const std::vector<at::Tensor>& shares, const at::Tensor& given, int rank,
                         bool uneven);
at::Tensor share_room(const at::Tensor& share, const at::Tensor& all, int rank, bool uneven);

}  // namespace tensorwire

// SPDX-License-Identifier: Apache-2.0
// Memory that TensorFlow writes to whoever else refers to it, and which therefore is never lent.
//
// - What reference variables hold: their updates (AssignAdd, Apply..., Scatter...) write where it
//   lies. It is allocated outside the arena (OutsideArena), so that it is copied when it is sent.
// - What the operations InplaceUpdate, InplaceAdd and InplaceSub are given, which may be anything.
//   As long as this process has a kernel of these, it lends nothing (Loan).
#pragma once

#include "tensorflow/core/framework/tensor.h"

namespace tensorwire {

// What the thread allocates during its life is memory of a reference variable.
class OutsideArena {
 public:
  OutsideArena();
  ~OutsideArena();
  OutsideArena(const OutsideArena&) = delete;
  OutsideArena& operator=(const OutsideArena&) = delete;

  static bool now();

 private:
  const bool before_;
};

// A large block of a reference variable begins and ends.
void reference_block_begins(const void* block);
void reference_block_ends(const void* block);
// Whether the tensor lies in one.
bool in_reference_block(const tensorflow::Tensor& tensor);

// One for each kernel that writes to its input.
class InPlaceWriter {
 public:
  InPlaceWriter();
  ~InPlaceWriter();
  InPlaceWriter(const InPlaceWriter&) = delete;
  InPlaceWriter& operator=(const InPlaceWriter&) = delete;

  static bool any();
};

// A tensor of the arena that is lent, from begin() on.
class Loan {
 public:
  Loan() = default;
  ~Loan();
  Loan(const Loan&) = delete;
  Loan& operator=(const Loan&) = delete;

  // False: there are writers, so that a copy has to be sent.
  bool begin();
  // Whether any tensor is lent. A writer that finds none writes to memory that nobody reads in
  // another process: no loan begins any more.
  static bool any();

 private:
  bool began_ = false;
};

}  // namespace tensorwire

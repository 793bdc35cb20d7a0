// SPDX-License-Identifier: Apache-2.0
// A tensor on its way to a peer: as it lies where that can be, else copied to where the peer can
// read it.
#pragma once

#include "core.h"
#include "in_place.h"
#include "tensorflow/core/framework/tensor.h"

namespace tensorwire {

// Whether the link by which a peer called lends what lies in the arena.
bool lends(const tw_server_call* call);

class SentTensor {
 public:
  // Of a type that can be copied as bytes. Once. False: no memory for a copy.
  bool take(const tensorflow::Tensor& tensor, bool by_lending);
  // As long as this lives.
  tw_segment bytes() const;

  // Whether take() would copy it.
  static bool copies(const tensorflow::Tensor& tensor, bool by_lending);

 private:
  tensorflow::Tensor tensor_;
  Loan loan_;
};

// A small one that went within a message; a buffer of a collective, which is never copied here.
void count_sent_small(const tensorflow::Tensor& tensor);
void count_sent_buffer(const tensorflow::Tensor& tensor, bool by_lending);

}  // namespace tensorwire

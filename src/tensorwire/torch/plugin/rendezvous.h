// SPDX-License-Identifier: Apache-2.0
// PyTorch's store, as the runtime takes it.
#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "core.h"

namespace tensorwire {

class Rendezvous {
 public:
  explicit Rendezvous(c10::intrusive_ptr<c10d::Store> store);
  Rendezvous(const Rendezvous&) = delete;
  Rendezvous& operator=(const Rendezvous&) = delete;

  const tw_store* store() const { return &table_; }

 private:
  static int set(void* self, const char* key, const void* value, size_t size, tw_status* status);
  static int get(void* self, const char* key, int64_t timeout_ns, tw_give give, void* sink,
                 tw_status* status);

  const c10::intrusive_ptr<c10d::Store> store_;
  tw_store table_;
};

}  // namespace tensorwire

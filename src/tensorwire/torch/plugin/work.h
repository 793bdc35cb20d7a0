// SPDX-License-Identifier: Apache-2.0
// One operation, as PyTorch sees it.
#pragma once

#include <ATen/ATen.h>

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

#include "core.h"

namespace tensorwire {

// Throws c10::DistBackendError.
[[noreturn]] void fail(const std::string& why);

// A wait that ends by Ctrl-C where `interruptible` and this is the main thread.
tw_wait wait_of(std::chrono::milliseconds timeout, bool interruptible);

class Work final : public c10d::Work {
 public:
  // What the operation is. It returns TW_OK, or another code with a sentence. It holds all tensors
  // that the operation needs until that is over.
  using Body = std::function<int(const tw_wait& wait, tw_status* status)>;

  Work(int rank, c10d::OpType type, const char* title, std::vector<at::Tensor> outputs,
       std::chrono::milliseconds timeout, Body body, std::shared_ptr<const int> source = nullptr);

  // Once. On the caller's thread when `interruptible`: throws what a signal's handler has raised.
  void run(bool interruptible);
  // It never runs.
  void refuse(const std::string& why);

  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  std::vector<at::Tensor> result() override { return outputs_; }
  // Of a receive, once it has ended: the rank that sent.
  int sourceRank() const override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;

 private:
  void over(std::exception_ptr error);
  void settle(c10::ivalue::Future& future);

  const std::vector<at::Tensor> outputs_;
  const std::chrono::milliseconds timeout_;
  const std::shared_ptr<const int> source_;  // written by the body; null: there is none
  Body body_;
  std::mutex future_mutex_;  // guards what follows
  bool ended_ = false;
  std::exception_ptr error_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

// Several operations as one, which is over when all of them are.
class Together final : public c10d::Work {
 public:
  using Parts = std::vector<c10::intrusive_ptr<c10d::Work>>;

  Together(int rank, Parts parts)
      : c10d::Work(rank, c10d::OpType::COALESCED), parts_(std::move(parts)) {}

  bool isCompleted() override;
  // The timeout is for each of them.
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  std::vector<at::Tensor> result() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;

 private:
  const Parts parts_;
};

}  // namespace tensorwire

// SPDX-License-Identifier: Apache-2.0
#include "work.h"

#include <ATen/core/jit_type.h>
#include <c10/core/InferenceMode.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <utility>

#include "signals.h"

namespace tensorwire {

namespace {

constexpr std::chrono::milliseconds kLook{50};  // between looks for signals

int asked(void*) { return interrupted() ? 1 : 0; }

}  // namespace

void fail(const std::string& why) { C10_THROW_ERROR(DistBackendError, why); }

tw_wait wait_of(std::chrono::milliseconds timeout, bool interruptible) {
  const bool ask = interruptible && on_main_thread();
  return {std::chrono::nanoseconds(timeout).count(), ask ? asked : nullptr, nullptr};
}

Work::Work(int rank, c10d::OpType type, const char* title, std::vector<at::Tensor> outputs,
           std::chrono::milliseconds timeout, Body body, std::shared_ptr<const int> source)
    : c10d::Work(rank, type, title),
      outputs_(std::move(outputs)),
      timeout_(timeout),
      source_(std::move(source)),
      body_(std::move(body)) {}

int Work::sourceRank() const {
  const std::lock_guard lock(mutex_);
  if (!source_) fail("only a receive has a source");
  if (!completed_) fail("the receive has not ended: wait for it first");
  return *source_;
}

void Work::run(bool interruptible) {
  std::exception_ptr error;
  bool stopped = false;
  try {
    // Without gradients, and with tensors of inference mode, which may be written only in it.
    const c10::InferenceMode inference;
    tw_status status{};
    const int code = body_(wait_of(timeout_, interruptible), &status);
    stopped = code == TW_INTERRUPTED;
    if (stopped) fail("the operation was interrupted");
    if (code != TW_OK) fail(status.details);
  } catch (...) {
    error = std::current_exception();
  }
  body_ = nullptr;
  over(error);
  if (stopped) throw_interruption();
}

void Work::refuse(const std::string& why) {
  body_ = nullptr;
  try {
    fail(why);
  } catch (...) {
    over(std::current_exception());
  }
}

bool Work::wait(std::chrono::milliseconds timeout) {
  using Clock = std::chrono::steady_clock;
  const bool limited = timeout > kNoTimeout;
  const Clock::time_point until = limited ? Clock::now() + timeout : Clock::time_point::max();
  const bool ask = on_main_thread();
  std::unique_lock lock(mutex_);
  while (!completed_) {
    if (!ask && !limited) {
      cv_.wait(lock);
      continue;
    }
    const Clock::time_point look = Clock::now() + kLook;
    cv_.wait_until(lock, ask ? std::min(look, until) : until);
    if (completed_) break;
    if (Clock::now() >= until) {
      lock.unlock();
      fail("the operation has not ended within " + std::to_string(timeout.count()) + " ms");
    }
    lock.unlock();
    if (ask && interrupted()) throw_interruption();
    lock.lock();
  }
  if (exception_) std::rethrow_exception(exception_);
  return true;
}

c10::intrusive_ptr<c10::ivalue::Future> Work::getFuture() {
  const std::lock_guard lock(future_mutex_);
  if (!future_) {
    future_ =
        c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
    if (ended_) settle(*future_);  // nobody listens yet
  }
  return future_;
}

void Work::over(std::exception_ptr error) {
  c10::intrusive_ptr<c10::ivalue::Future> future;
  {
    const std::lock_guard lock(future_mutex_);
    ended_ = true;
    error_ = error;
    future = future_;
  }
  finish(error);
  if (future) settle(*future);
}

void Work::settle(c10::ivalue::Future& future) {
  if (error_)
    future.setError(error_);
  else
    future.markCompleted(c10::IValue(outputs_));
}

bool Together::isCompleted() {
  return std::ranges::all_of(parts_, [](const auto& part) { return part->isCompleted(); });
}

bool Together::wait(std::chrono::milliseconds timeout) {
  for (const auto& part : parts_) part->wait(timeout);
  return true;
}

std::vector<at::Tensor> Together::result() {
  std::vector<at::Tensor> all;
  for (const auto& part : parts_) {
    const std::vector<at::Tensor> own = part->result();
    all.insert(all.end(), own.begin(), own.end());
  }
  return all;
}

c10::intrusive_ptr<c10::ivalue::Future> Together::getFuture() {
  c10::List<c10::intrusive_ptr<c10::ivalue::Future>> futures(
      c10::FutureType::create(c10::ListType::create(c10::TensorType::get())));
  for (const auto& part : parts_) futures.push_back(part->getFuture());
  return c10::collectAll(futures);
}

}  // namespace tensorwire

#include "link/runtime.h"

#include <pthread.h>

#include <atomic>

#include "link/secret.h"

namespace tw {
namespace {

std::mutex g_mutex;  // guards g_runtime
std::atomic<Runtime*> g_runtime{nullptr};

void in_child() {
  // The parent's runtime has no threads here and its descriptors are shared with the parent: it is
  // left as it is. The child has one thread, so the lock can be made anew.
  new (&g_mutex) std::mutex;
  g_runtime.store(nullptr, std::memory_order_relaxed);
}

}  // namespace

Result<Runtime*> Runtime::get() {
  if (Runtime* runtime = g_runtime.load(std::memory_order_acquire)) return runtime;
  std::lock_guard lock(g_mutex);
  if (Runtime* runtime = g_runtime.load(std::memory_order_relaxed)) return runtime;
  [[maybe_unused]] static const int registered = pthread_atfork(nullptr, nullptr, in_child);
  auto runtime = create();
  if (!runtime) return runtime.status();
  g_runtime.store(runtime->release(), std::memory_order_release);
  return g_runtime.load(std::memory_order_relaxed);
}

Result<std::unique_ptr<Runtime>> Runtime::create() {
  auto settings = settings_from_environment();
  if (!settings) return settings.status();
  auto runtime = std::make_unique<Runtime>();
  runtime->settings_ = *settings;
  if (Status status = link::fill_random(runtime->instance_); !status.ok()) return status;
  runtime->arena_ = make_ref<Arena>(settings->buffer_bytes);
  runtime->pool_ = make_ref<Pool>(settings->pool_bytes);
  return runtime;
}

Result<Poller*> Runtime::background() {
  std::lock_guard lock(mutex_);
  if (!background_) {
    auto started = Background::start();
    if (!started) return started.status();
    background_ = std::move(*started);
  }
  return &background_->poller();
}

void Runtime::shut_down() {
  Runtime* const runtime = g_runtime.load(std::memory_order_acquire);
  if (!runtime) return;
  std::lock_guard lock(runtime->mutex_);
  if (runtime->background_) runtime->background_->stop();
}

}  // namespace tw

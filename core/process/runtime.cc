// SPDX-License-Identifier: Apache-2.0
#include "process/runtime.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>

#include "base/mutex.h"
#include "base/random.h"
#include "base/shortage.h"

namespace tw {
namespace {

Mutex g_mutex;  // guards g_runtime
std::atomic<Runtime*> g_runtime{nullptr};

void in_child() {
  // The parent's runtime has no threads here and its descriptors are shared with the parent: it is
  // left as it is. The child has one thread, so the lock can be made anew.
  new (&g_mutex) Mutex;
  g_runtime.store(nullptr, std::memory_order_relaxed);
}

}  // namespace

Result<Runtime*> Runtime::get() {
  if (Runtime* runtime = present()) return runtime;
  const MutexLock lock(g_mutex);
  if (Runtime* runtime = g_runtime.load(std::memory_order_relaxed)) return runtime;
  [[maybe_unused]] static const int registered = pthread_atfork(nullptr, nullptr, in_child);
  auto runtime = create();
  if (!runtime) return runtime.status();
  g_runtime.store(runtime->release(), std::memory_order_release);
  return g_runtime.load(std::memory_order_relaxed);
}

Runtime* Runtime::present() { return g_runtime.load(std::memory_order_acquire); }

Result<std::unique_ptr<Runtime>> Runtime::create() {
  auto settings = settings_from_environment();
  if (!settings) return settings.status();
  ShortageReserve::keep();
  auto runtime = std::make_unique<Runtime>();
  runtime->settings_ = *settings;
  if (auto table = LinkTable::read(*settings))
    runtime->link_table_ = std::move(*table);
  else
    runtime->link_table_status_ = table.status();
  runtime->trace(settings->trace_events);
  runtime->trace_file_.emplace(settings->trace_folder);
  if (Status status = fill_random(runtime->instance_); !status.ok()) return status;
  runtime->shared_memories_.emplace(settings->shared_memory_bytes);
  runtime->arena_ = make_ref<Arena>(settings->buffer_bytes);
  runtime->pool_ = make_ref<Pool>(settings->pool_bytes);
  // What is received leaves senders half of the arena.
  runtime->receive_memory_ =
      make_ref<ReceiveMemory>(runtime->arena_, runtime->pool_, settings->buffer_bytes / 2);
  runtime->kinds_ = make_kinds(
      {runtime->settings_, *runtime->arena_, [of = runtime.get()] { return of->background(); }});
  for (const auto& kind : runtime->kinds_)
    if (Status status = kind->read_settings(); !status.ok()) return status;
  return runtime;
}

wire::Hello Runtime::hello() const {
  // Read anew each time: what could not be read for want of descriptors can be later.
  return wire::local_hello(instance_, settings_.stream_window_bytes);
}

Result<Poller*> Runtime::background() {
  const MutexLock lock(mutex_);
  return poller_of(background_, "tensorwire");
}

Result<Poller*> Runtime::blocking_tasks() {
  const MutexLock lock(mutex_);
  return poller_of(blocking_tasks_, "tensorwire-wait");
}

Result<Poller*> Runtime::poller_of(std::unique_ptr<Background>& thread, const char* name) {
  if (!thread) {
    if (leaving()) return Status{Code::kUnavailable, "the process is about to end"};
    auto started = Background::start(name);
    if (!started) return started.status();
    thread = std::move(*started);
  }
  return &thread->poller();
}

Kind* Runtime::kind(std::string_view name) const {
  for (const auto& kind : kinds_)
    if (kind->name() == name) return kind.get();
  return nullptr;
}

void Runtime::schedule_trim() {
  auto poller = background();
  if (!poller || trimming_.exchange(true, std::memory_order_relaxed)) return;
  // Without memory for it the next use tries again.
  if (!has_memory_for([&] { (*poller)->add_timer(now() + kIdle, [this] { trim_in_time(); }); }))
    trimming_.store(false, std::memory_order_relaxed);
}

void Runtime::trim(Nanos idle_before) noexcept {
  // What it has no memory for is done by the next one.
  (void)has_memory_for([&] {
    arena_->trim(idle_before);
    // Whoever has just posted memory is about to need it.
    pool_->trim(idle_before, std::min(idle_before, now() - kIdle));
    const MutexLock lock(tenants_mutex_);
    if (const uint64_t drops = arena_->slabs_dropped(); drops != drops_told_) {
      for (Subscriber* subscriber : subscribers_) subscriber->slabs_dropped();
      for (const auto& kind : kinds_) kind->slabs_dropped();
      drops_told_ = drops;
    }
  });
}

void Runtime::trim_in_time() {
  trim(now() - kIdle);
  trimming_.store(false, std::memory_order_relaxed);
  // Until nothing is idle any more; then the next use begins anew.
  const ArenaStats arena = arena_->stats();
  const PoolStats pool = pool_->stats();
  if (arena.resident > arena.used || pool.idle + pool.posted != 0) schedule_trim();
}

void Runtime::trace(size_t events) {
  const MutexLock lock(tenants_mutex_);
  traced_ = events;
  for (Subscriber* subscriber : subscribers_) subscriber->keep_trace(events);
}

void Runtime::subscribe(Subscriber& subscriber) {
  const MutexLock lock(tenants_mutex_);
  subscribers_.insert(&subscriber);
  if (traced_ != 0) subscriber.keep_trace(traced_);
}

void Runtime::unsubscribe(Subscriber& subscriber) {
  const MutexLock lock(tenants_mutex_);
  subscribers_.erase(&subscriber);
}

void Runtime::shut_down() {
  Runtime* const runtime = present();
  if (!runtime) return;
  Background *background, *blocking_tasks;
  {
    const MutexLock lock(runtime->mutex_);
    runtime->leaving_.store(true, std::memory_order_release);
    background = runtime->background_.get();
    blocking_tasks = runtime->blocking_tasks_.get();
  }
  // Without the lock: a thread that is joined may want it.
  if (blocking_tasks) blocking_tasks->stop();
  if (background) background->stop();
  runtime->copier_.stop();
  runtime->audit_.close();
  const MutexLock lock(runtime->tenants_mutex_);
  for (Subscriber* subscriber : runtime->subscribers_) subscriber->leave_trace();
}

}  // namespace tw

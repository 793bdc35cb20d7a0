// SPDX-License-Identifier: Apache-2.0
// What all links of a process share.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "base/mutex.h"
#include "base/settings.h"
#include "engine/audit.h"
#include "engine/background.h"
#include "engine/copier.h"
#include "engine/word_waits.h"
#include "memory/arena.h"
#include "memory/pool.h"
#include "memory/receive_memory.h"
#include "memory/shared_memory.h"
#include "process/link_table.h"
#include "process/online_thresholds.h"
#include "process/trace_file.h"
#include "transport/kind.h"
#include "wire/hello.h"

namespace tw {

// One per process, made at first use, never destroyed: links and views may outlive main(). A forked
// child gets a fresh one, and what it inherited is left alone.
class Runtime {
 public:
  // INVALID_ARGUMENT: a TENSORWIRE_* variable is wrong.
  static Result<Runtime*> get();
  // Null: nothing has been used yet.
  static Runtime* present();
  // Joins the threads of its own; the runtime must not be used afterwards. For the end of the
  // interpreter.
  static void shut_down();

  const Settings& settings() const { return settings_; }
  // What the user's table says of links; empty where it cannot be used.
  const LinkTable& link_table() const { return link_table_; }
  // Why it cannot be.
  const Status& link_table_status() const { return link_table_status_; }
  // What links find for themselves, where they are to.
  OnlineThresholds& online_thresholds() { return online_thresholds_; }
  const wire::InstanceId& instance() const { return instance_; }
  wire::Hello hello() const;
  Arena& arena() { return *arena_; }
  Pool& pool() { return *pool_; }
  SharedMemories& shared_memories() { return *shared_memories_; }
  ReceiveMemory& receive_memory() { return *receive_memory_; }
  Copier& copier() { return copier_; }
  WordWaits& word_waits() { return word_waits_; }
  // Where what peers did wrong is counted and told.
  Audit& audit() { return audit_; }
  // The background, which serves all links; its thread starts with the first of them.
  // RESOURCE_EXHAUSTED.
  Result<Poller*> background();
  // A thread of its own for what a kernel may block for seconds: each timer set here is a blocking
  // task.
  Result<Poller*> blocking_tasks();
  // It shuts down: blocking tasks that are still due are left undone.
  bool leaving() const { return leaving_.load(std::memory_order_acquire); }
  // The kinds of transports, best first.
  std::span<const std::unique_ptr<Kind>> kinds() const { return kinds_; }
  // Null: there is none of that name.
  Kind* kind(std::string_view name) const;

  // Has all links, those of now and those to come, keep traces of so many events; 0: none.
  void trace(size_t events);

  TraceFile& trace_file() { return *trace_file_; }

  // A link, as far as the runtime knows it.
  class Subscriber {
   public:
    // The arena has dropped slabs. By any thread, without a lock of the link's.
    virtual void slabs_dropped() = 0;
    // As Trace::keep(); also when it moves in while traces are kept.
    virtual void keep_trace(size_t events) = 0;
    // Once: the runtime shuts down.
    virtual void leave_trace() noexcept = 0;

   protected:
    ~Subscriber() = default;
  };
  void subscribe(Subscriber& subscriber);
  void unsubscribe(Subscriber& subscriber);
  // Memory of the arena or the pool has been used: what then lies idle for a minute goes back to
  // the system.
  void memory_used() {
    if (!trimming_.load(std::memory_order_relaxed)) schedule_trim();
  }
  // What has been idle since before then goes back now. What was posted has its minute.
  void trim(Nanos idle_before) noexcept;

 private:
  static constexpr Nanos kIdle = 60 * kSecond;

  static Result<std::unique_ptr<Runtime>> create();
  Result<Poller*> poller_of(std::unique_ptr<Background>& thread, const char* name)
      TW_REQUIRES(mutex_);
  void schedule_trim();
  void trim_in_time();

  Settings settings_;
  LinkTable link_table_;
  Status link_table_status_;
  OnlineThresholds online_thresholds_;
  wire::InstanceId instance_{};
  std::optional<TraceFile> trace_file_;
  Ref<Arena> arena_;
  Ref<Pool> pool_;
  Ref<ReceiveMemory> receive_memory_;
  std::optional<SharedMemories> shared_memories_;
  Copier copier_;
  WordWaits word_waits_;
  Audit audit_;
  std::atomic<bool> leaving_{false};
  Mutex mutex_;  // guards the next two
  std::unique_ptr<Background> background_ TW_GUARDED_BY(mutex_);
  std::unique_ptr<Background> blocking_tasks_ TW_GUARDED_BY(mutex_);
  std::vector<std::unique_ptr<Kind>> kinds_;
  std::atomic<bool> trimming_{false};  // a timer is set
  Mutex tenants_mutex_;                // guards what follows; taken before a link's locks
  std::unordered_set<Subscriber*> subscribers_ TW_GUARDED_BY(tenants_mutex_);
  uint64_t drops_told_ TW_GUARDED_BY(tenants_mutex_) = 0;
  size_t traced_ TW_GUARDED_BY(tenants_mutex_) = 0;  // events that each link keeps
};

}  // namespace tw

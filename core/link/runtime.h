// What all links of a process share.
#pragma once

#include <memory>
#include <mutex>

#include "base/settings.h"
#include "engine/background.h"
#include "memory/arena.h"
#include "memory/pool.h"
#include "wire/hello.h"

namespace tw {

// One per process, made at first use, never destroyed: links and views may outlive main(). A forked
// child gets a fresh one, and what it inherited is left alone.
class Runtime {
 public:
  // INVALID_ARGUMENT: a TENSORWIRE_* variable is wrong.
  static Result<Runtime*> get();
  // Joins the background thread; the runtime must not be used afterwards. For the end of the
  // interpreter.
  static void shut_down();

  const Settings& settings() const { return settings_; }
  const wire::InstanceId& instance() const { return instance_; }
  wire::Hello hello() const { return wire::local_hello(instance_, settings_.stream_window_bytes); }
  Arena& arena() { return *arena_; }
  Pool& pool() { return *pool_; }
  // The background thread starts with the first link.
  Result<Poller*> background();

 private:
  static Result<std::unique_ptr<Runtime>> create();

  Settings settings_;
  wire::InstanceId instance_{};
  Ref<Arena> arena_;
  Ref<Pool> pool_;
  std::mutex mutex_;  // guards background_
  std::unique_ptr<Background> background_;
};

}  // namespace tw

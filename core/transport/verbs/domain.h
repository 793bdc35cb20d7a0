// SPDX-License-Identifier: Apache-2.0
// One opened device: its protection domain, what is registered in it, and what happens to it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/fork.h"
#include "base/mutex.h"
#include "base/ref.h"
#include "base/status.h"
#include "engine/poller.h"
#include "memory/slab.h"
#include "transport/transport.h"
#include "transport/verbs/device.h"
#include "transport/verbs/settings.h"

struct ibv_context;
struct ibv_cq;
struct ibv_mr;
struct ibv_mw;
struct ibv_pd;
struct ibv_send_wr;

namespace tw::verbs {

class Domain;

// What a registration permits; a set of bits.
using Access = uint32_t;
inline constexpr Access kLocalWrite = 1;   // this end's receives and fetches may write it
inline constexpr Access kRemoteRead = 2;   // peers of the protection domain may read all of it
inline constexpr Access kBindable = 4;     // memory windows may be bound to parts of it
inline constexpr Access kRemoteWrite = 8;  // with kLocalWrite, as the two atomics
inline constexpr Access kRemoteUpdate = 16;

// Memory that the device knows; pinned until the last reference goes. In a forked child nothing is
// given back.
class Registration final : public RefCounted {
 public:
  std::byte* data() const { return data_; }
  size_t size() const { return size_; }
  uint32_t local_key() const { return local_key_; }
  uint32_t remote_key() const { return remote_key_; }
  ibv_mr* handle() const { return region_; }

 private:
  friend class Domain;
  Registration(Ref<Domain> domain, ibv_mr* region, std::byte* data, size_t size, Hold hold,
               bool temporary);
  void dispose() noexcept override;

  const Birthplace home_;
  const Ref<Domain> domain_;
  ibv_mr* const region_;
  std::byte* const data_;
  const size_t size_;
  const uint32_t local_key_;
  const uint32_t remote_key_;
  const Hold hold_;  // keeps the memory mapped
  const bool temporary_;
};

// One link's part in a registration that all links share which let their peers at the same memory,
// each by a window. One thread at a time.
class SharedRegistration final {
 public:
  SharedRegistration() = default;
  SharedRegistration(SharedRegistration&& other) noexcept
      : domain_(std::move(other.domain_)), memory_(std::move(other.memory_)) {}
  SharedRegistration& operator=(SharedRegistration&& other) noexcept {
    std::swap(domain_, other.domain_);
    std::swap(memory_, other.memory_);
    return *this;
  }
  ~SharedRegistration() { close(); }

  const Ref<Registration>& memory() const { return memory_; }
  // To be called before the link lets go of the memory: once all have, no other link joins in. The
  // registration itself stays as long as this object and the windows that are bound to it.
  void close();

 private:
  friend class Domain;
  SharedRegistration(Ref<Domain> domain, Ref<Registration> memory)
      : domain_(std::move(domain)), memory_(std::move(memory)) {}

  Ref<Domain> domain_;  // null: closed
  Ref<Registration> memory_;
};

// A memory window of type 2: lets the peer of one queue pair, and nobody else, at a part of a
// registration. One thread at a time. The device refuses the key once the window has gone.
class Window final : public RefCounted {
 public:
  // The key under which the peer may come once the last bind has completed.
  uint32_t key() const { return key_; }
  // The request that binds it to [data, data + size) of `memory`, which has to be kBindable and,
  // for writes and atomics, kLocalWrite; all of it, where the device's windows are not exact.
  // key() is the new key from now on, and `memory` is kept until the next bind or the window's end.
  ibv_send_wr bind(Ref<Registration> memory, std::byte* data, size_t size, Rights rights);

 private:
  friend class Domain;
  Window(Ref<Domain> domain, ibv_mw* window);
  void dispose() noexcept override;

  const Birthplace home_;
  const Ref<Domain> domain_;
  ibv_mw* const window_;
  uint32_t key_;
  Ref<Registration> memory_;
};

// Something that happened to the device outside of any work request.
struct AsyncEvent {
  enum class Kind : uint8_t {
    kDeviceLost,   // nothing on this device works any more
    kPortDown,     // `port`
    kPortUp,       // `port`
    kPortChanged,  // `port`: other LID, GIDs or partition keys
    kQueuePair,    // `queue_pair` (its number) is in the error state
    kCompletions,  // `completions` has overrun: all queue pairs on it are lost
  };
  Kind kind;
  uint8_t port = 0;
  uint32_t queue_pair = 0;
  const ibv_cq* completions = nullptr;
  Status why;  // kUnavailable and a sentence; ok for kPortUp and kPortChanged
};

// Told of every event of a domain by the background thread, without any lock of the domain's.
class Observer : public RefCounted {
 public:
  virtual void on_event(const AsyncEvent& event) = 0;
};

struct DomainStats {
  size_t registrations = 0;  // alive
  size_t pinned = 0;         // bytes of those
  size_t temporary = 0;      // alive, of single foreign buffers
  uint64_t temporary_made = 0;
  size_t windows = 0;  // alive
};

// Whether memory that the device knows survives a fork() of this process.
enum class ForkSafety : uint8_t {
  kKernel,        // the kernel copies such pages for the child: nothing to do
  kNotInherited,  // the child does not have them, but for the arena's, which are shared anyway
  kNone,          // somebody in this process used RDMA before: do not fork
};
// Asks for it; before anything is registered.
ForkSafety protect_forks(const Library& library);

// Thread-safe. Everything that is made in it keeps it, and it keeps its registered slabs: close()
// it in the end.
class Domain final : public Listed<> {
 public:
  // Opens the device of that name. UNAVAILABLE, RESOURCE_EXHAUSTED, NOT_FOUND.
  static Result<Ref<Domain>> open(const Library& library, const std::string& device,
                                  const Settings& settings);

  const Library& library() const { return library_; }
  const Device& device() const { return device_; }  // as it was when it was opened
  ibv_context* context() const { return context_; }
  ibv_pd* handle() const { return domain_; }
  // Bytes that a queue pair of this device sends inline, at most `settings.inline_bytes`.
  uint32_t inline_bytes() const { return inline_bytes_; }
  // As the port is now. UNAVAILABLE: the device is gone.
  Result<DevicePort> port(uint8_t number) const;

  // The slab's one registration, made by whoever asks first: kLocalWrite, kRemoteRead and, where
  // the device has windows, kBindable. RESOURCE_EXHAUSTED names the limit and how to raise it.
  Result<Ref<Registration>> slab(Slab& slab);
  // The slabs that the arena has dropped since are let go of; call it when the arena says so.
  void slabs_dropped();
  // What windows are bound to that is in no slab: one registration, kLocalWrite and kBindable, for
  // all links that let their peers at just these bytes. A link joins in only while another keeps
  // the memory where it is, and has not closed its share: so these are the same bytes.
  Result<SharedRegistration> share(std::byte* data, size_t size);
  // A buffer that is in no slab; `hold` keeps it mapped, or the caller does. kBindable counts only
  // where the device has windows. RESOURCE_EXHAUSTED, INVALID_ARGUMENT (not this process's memory,
  // or read-only and kLocalWrite asked for).
  Result<Ref<Registration>> add(std::byte* data, size_t size, Access access, Hold hold = {});
  // The same for the time of one fetch or operation, counted apart.
  Result<Ref<Registration>> add_temporary(std::byte* data, size_t size, Access access,
                                          Hold hold = {});
  // UNIMPLEMENTED where the device has none; RESOURCE_EXHAUSTED.
  Result<Ref<Window>> window();

  // Reports the device's events from now on. The poller must outlive the domain.
  Status watch(Poller& poller);
  // Lets go of the slabs and reports no more events. What others hold stays until they let go;
  // nothing new can be registered.
  void close();
  // No new on_event starts for an observer after forget(); one under way may still finish.
  void observe(Ref<Observer> observer);
  void forget(Observer& observer);
  // The device is gone for good; open it anew.
  bool lost() const { return lost_.load(std::memory_order_acquire); }

  DomainStats stats() const;

 private:
  friend class Registration;
  friend class SharedRegistration;
  friend class Window;
  using Bytes = std::pair<const std::byte*, size_t>;
  struct Shared {
    Registration* memory;  // those that share it keep it
    size_t links;
  };
  class AsyncEvents;
  Domain(const Library& library, Device device, ibv_context* context, ibv_pd* domain,
         uint32_t inline_bytes, ForkSafety forks);
  ~Domain() override;
  void dispose() noexcept override;
  Result<Ref<Registration>> make(std::byte* data, size_t size, Access access, Hold hold,
                                 bool temporary);
  // Whether the device has let go of it.
  bool unmake(const Registration& registration) noexcept;
  bool unmake(ibv_mw* window) noexcept;
  void leave(const Registration& shared) noexcept;
  Status refused(size_t size, int error) const;
  std::vector<Ref<Registration>> take_dropped() TW_REQUIRES(slabs_mutex_);
  void handle_events(uint32_t events);
  void tell(const AsyncEvent& event);

  const Birthplace home_;
  const Library& library_;
  const Device device_;
  ibv_context* const context_;
  ibv_pd* const domain_;
  const uint32_t inline_bytes_;
  const ForkSafety forks_;
  std::atomic<bool> lost_{false};
  Mutex slabs_mutex_;  // guards the next two; held while a slab is pinned
  // They keep their slab.
  std::map<const Slab*, Ref<Registration>> slabs_ TW_GUARDED_BY(slabs_mutex_);
  bool closed_ TW_GUARDED_BY(slabs_mutex_) = false;
  mutable Mutex mutex_;  // guards what follows
  std::map<Bytes, Shared> shared_ TW_GUARDED_BY(mutex_);
  std::map<Observer*, Ref<Observer>> observers_ TW_GUARDED_BY(mutex_);
  Ref<AsyncEvents> async_ TW_GUARDED_BY(mutex_);
  DomainStats stats_ TW_GUARDED_BY(mutex_);
};

}  // namespace tw::verbs

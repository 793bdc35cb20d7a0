// SPDX-License-Identifier: Apache-2.0
#include "transport/verbs/domain.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <utility>

#include "base/mutex.h"
#include "base/text.h"
#include "transport/verbs/library.h"

namespace tw::verbs {
namespace {

// Hands what it holds to the next owner, or undoes it.
template <class T>
using Held = std::unique_ptr<T, int (*)(T*)>;

// How many bytes a queue pair of this domain takes inline: no attribute says, so one is made.
uint32_t probe_inline(const Library& library, ibv_context* context, ibv_pd* domain,
                      uint32_t wanted) {
  const Held<ibv_cq> queue(library.create_cq(context, 1, nullptr, nullptr, 0), library.destroy_cq);
  if (!queue) return 0;
  for (; wanted > 0; wanted /= 2) {
    ibv_qp_init_attr attributes{};
    attributes.send_cq = queue.get();
    attributes.recv_cq = queue.get();
    attributes.qp_type = IBV_QPT_RC;
    attributes.cap = {1, 1, 1, 1, wanted};
    const Held<ibv_qp> pair(library.create_qp(domain, &attributes), library.destroy_qp);
    if (pair) return std::min(wanted, attributes.cap.max_inline_data);
  }
  return 0;
}

int verbs_access(Access access) {
  int flags = 0;
  if (access & kLocalWrite) flags |= IBV_ACCESS_LOCAL_WRITE;
  if (access & kRemoteRead) flags |= IBV_ACCESS_REMOTE_READ;
  if (access & kRemoteWrite) flags |= IBV_ACCESS_REMOTE_WRITE;
  if (access & kRemoteUpdate) flags |= IBV_ACCESS_REMOTE_ATOMIC;
  if (access & kBindable) flags |= IBV_ACCESS_MW_BIND;
  return flags;
}

// The device has gone, and everything that it knew with it.
bool gone(int error) { return error == EIO || error == ENODEV; }

}  // namespace

ForkSafety protect_forks(const Library& library) {
  const auto state = [&] {
    return library.is_fork_initialized ? library.is_fork_initialized() : IBV_FORK_DISABLED;
  };
  if (state() == IBV_FORK_UNNEEDED) return ForkSafety::kKernel;
  if (state() == IBV_FORK_ENABLED || library.fork_init() == 0) return ForkSafety::kNotInherited;
  return ForkSafety::kNone;
}

// ---- the domain ----

// The poller's end of a domain, which it does not keep.
class Domain::AsyncEvents final : public Watcher {
 public:
  AsyncEvents(Domain& domain, Poller& poller) : domain_(&domain), poller_(poller) {}

  Status start() {
    const MutexLock lock(mutex_);
    auto watch = poller_.watch(domain_->context_->async_fd, EPOLLIN, Ref<Watcher>::share(this));
    if (!watch) return watch.status();
    watch_ = *watch;
    return {};
  }

  void stop() {
    const MutexLock lock(mutex_);
    if (!domain_) return;
    if (watch_ != 0) poller_.unwatch(watch_, domain_->context_->async_fd);
    domain_ = nullptr;
  }

 private:
  void on_event(uint32_t, uint32_t events) override {
    Ref<Domain> domain;
    {
      const MutexLock lock(mutex_);
      if (domain_ && domain_->try_retain()) domain = Ref<Domain>::adopt(domain_);
    }
    if (domain) domain->handle_events(events);
  }

  Mutex mutex_;
  Domain* domain_ TW_GUARDED_BY(mutex_);  // null after stop()
  Poller& poller_;
  Poller::Watch watch_ TW_GUARDED_BY(mutex_) = 0;  // ids begin at 1
};

Result<Ref<Domain>> Domain::open(const Library& library, const std::string& name,
                                 const Settings& settings) {
  int count = 0;
  errno = 0;
  const std::unique_ptr<ibv_device*, void (*)(ibv_device**)> list(library.get_device_list(&count),
                                                                  library.free_device_list);
  if (!list) return errno_status(Code::kUnavailable, "cannot list RDMA devices", errno);
  ibv_device* found = nullptr;
  for (int i = 0; i < count; ++i)
    if (library.get_device_name(list.get()[i]) == name) found = list.get()[i];
  if (!found) return Status{Code::kNotFound, text({"RDMA device ", name, " is not there"})};

  const ForkSafety forks = protect_forks(library);
  errno = 0;
  Held<ibv_context> context(library.open_device(found), library.close_device);
  if (!context)
    return errno_status(Code::kUnavailable, text({"cannot open RDMA device ", name}), errno);
  auto device = query(library, context.get(), name);
  if (!device) return device.status();
  Held<ibv_pd> domain(library.alloc_pd(context.get()), library.dealloc_pd);
  if (!domain) {
    return errno_status(Code::kResourceExhausted,
                        text({"cannot make a protection domain on RDMA device ", name}), errno);
  }
  const int flags = fcntl(context->async_fd, F_GETFL);
  if (flags < 0 || fcntl(context->async_fd, F_SETFL, flags | O_NONBLOCK) != 0)
    return errno_status(Code::kUnavailable, text({"the events of RDMA device ", name}), errno);
  const uint32_t inline_bytes =
      probe_inline(library, context.get(), domain.get(), settings.inline_bytes);
  return Ref<Domain>::adopt(new Domain(library, std::move(*device), context.release(),
                                       domain.release(), inline_bytes, forks));
}

Domain::Domain(const Library& library, Device device, ibv_context* context, ibv_pd* domain,
               uint32_t inline_bytes, ForkSafety forks)
    : library_(library),
      device_(std::move(device)),
      context_(context),
      domain_(domain),
      inline_bytes_(inline_bytes),
      forks_(forks) {}

void Domain::dispose() noexcept {
  if (home_.here()) delete this;
}

Domain::~Domain() {
  if (async_) async_->stop();
  library_.dealloc_pd(domain_);
  library_.close_device(context_);
}

void Domain::close() {
  if (!home_.here()) return;
  Ref<AsyncEvents> async;
  {
    const MutexLock lock(mutex_);
    async = std::move(async_);
  }
  if (async) async->stop();
  std::map<const Slab*, Ref<Registration>> slabs;  // let go without the lock
  const MutexLock lock(slabs_mutex_);
  closed_ = true;
  slabs.swap(slabs_);
}

Result<DevicePort> Domain::port(uint8_t number) const {
  if (lost()) return Status{Code::kUnavailable, text({"RDMA device ", device_.name, " is gone"})};
  return query_port(library_, context_, device_.name, number);
}

DomainStats Domain::stats() const {
  const MutexLock lock(mutex_);
  return stats_;
}

// ---- memory ----

Result<Ref<Registration>> Domain::slab(Slab& slab) {
  std::vector<Ref<Registration>> dropped;  // let go without the lock
  const MutexLock lock(slabs_mutex_);
  if (auto it = slabs_.find(&slab); it != slabs_.end()) return it->second;
  if (closed_) {
    return Status{Code::kUnavailable, text({"RDMA device ", device_.name, " has been closed"})};
  }
  dropped = take_dropped();
  auto made = make(slab.base(), slab.size(), kLocalWrite | kRemoteRead | kBindable,
                   Ref<Slab>::share(&slab), false);
  if (!made) return made.status();
  // Slabs are shared mappings, which a fork cannot tear from the device: children keep them.
  if (forks_ == ForkSafety::kNotInherited) madvise(slab.base(), slab.size(), MADV_DOFORK);
  slabs_.emplace(&slab, *made);
  return *made;
}

std::vector<Ref<Registration>> Domain::take_dropped() {
  std::vector<Ref<Registration>> dropped;
  for (auto it = slabs_.begin(); it != slabs_.end();) {
    if (it->first->dropped()) {
      dropped.push_back(std::move(it->second));
      it = slabs_.erase(it);
    } else {
      ++it;
    }
  }
  return dropped;
}

void Domain::slabs_dropped() {
  std::vector<Ref<Registration>> dropped;  // let go without the lock
  const MutexLock lock(slabs_mutex_);
  dropped = take_dropped();
}

Result<SharedRegistration> Domain::share(std::byte* data, size_t size) {
  if (!home_.here()) return make(data, size, 0, {}, false).status();  // which says why not
  const auto part = [this](Shared& shared) {
    shared.links += 1;
    return SharedRegistration(Ref<Domain>::share(this), Ref<Registration>::share(shared.memory));
  };
  if (!lost()) {
    const MutexLock lock(mutex_);
    if (const auto it = shared_.find({data, size}); it != shared_.end()) return part(it->second);
  }
  // Without the lock: to pin gigabytes takes seconds. If another link has been faster meanwhile,
  // this one joins in there, and what it has made goes again.
  auto made = make(data, size, kLocalWrite | kBindable, {}, false);
  if (!made) return made.status();
  const MutexLock lock(mutex_);
  return part(shared_.try_emplace({data, size}, Shared{made->get(), 0}).first->second);
}

void Domain::leave(const Registration& shared) noexcept {
  if (!home_.here()) return;
  const MutexLock lock(mutex_);
  const auto it = shared_.find({shared.data(), shared.size()});
  if (--it->second.links == 0) shared_.erase(it);
}

void SharedRegistration::close() {
  if (const Ref<Domain> domain = std::exchange(domain_, nullptr)) domain->leave(*memory_);
}

Result<Ref<Registration>> Domain::add(std::byte* data, size_t size, Access access, Hold hold) {
  return make(data, size, access, std::move(hold), false);
}

Result<Ref<Registration>> Domain::add_temporary(std::byte* data, size_t size, Access access,
                                                Hold hold) {
  return make(data, size, access, std::move(hold), true);
}

Result<Ref<Registration>> Domain::make(std::byte* data, size_t size, Access access, Hold hold,
                                       bool temporary) {
  if (!home_.here()) {
    return Status{Code::kFailedPrecondition,
                  "this RDMA device was opened before fork() and belongs to the parent process"};
  }
  if (lost()) return Status{Code::kUnavailable, text({"RDMA device ", device_.name, " is gone"})};
  if (size == 0) return Status{Code::kInvalidArgument, "no memory of 0 bytes can be registered"};
  if (!device_.windows) access &= ~kBindable;
  errno = 0;
  ibv_mr* const region = library_.reg_mr(domain_, data, size, verbs_access(access));
  if (!region) return refused(size, errno);
  {
    const MutexLock lock(mutex_);
    stats_.registrations += 1;
    stats_.pinned += size;
    stats_.temporary += temporary;
    stats_.temporary_made += temporary;
  }
  return Ref<Registration>::adopt(
      new Registration(Ref<Domain>::share(this), region, data, size, std::move(hold), temporary));
}

Status Domain::refused(size_t size, int error) const {
  const std::string what =
      text({"RDMA device ", device_.name, " could not register ", size, " bytes"});
  if (error == ENOMEM || error == EPERM || error == EAGAIN) {
    rlimit limit{};
    getrlimit(RLIMIT_MEMLOCK, &limit);
    if (limit.rlim_cur == RLIM_INFINITY) {
      return errno_status(Code::kResourceExhausted,
                          text({what,
                                " (locked memory is not limited, so the host or the device "
                                "has no more)"}),
                          error);
    }
    return {Code::kResourceExhausted,
            text({what, ": this process may lock no more than ", limit.rlim_cur,
                  " bytes of memory. Raise the limit: `ulimit -l unlimited` in the shell that "
                  "starts it, LimitMEMLOCK=infinity in its systemd unit, `docker run --ulimit "
                  "memlock=-1`, or \"* - memlock unlimited\" in /etc/security/limits.conf"})};
  }
  if (error == EFAULT || error == EINVAL) {
    return errno_status(Code::kInvalidArgument,
                        text({what, " (not mapped here, or read-only memory to be written)"}),
                        error);
  }
  return errno_status(gone(error) ? Code::kUnavailable : Code::kResourceExhausted, what, error);
}

bool Domain::unmake(const Registration& registration) noexcept {
  const int error = library_.dereg_mr(registration.region_);
  if (error != 0 && !gone(error) && !lost()) return false;
  const MutexLock lock(mutex_);
  stats_.registrations -= 1;
  stats_.pinned -= registration.size_;
  stats_.temporary -= registration.temporary_;
  return true;
}

Registration::Registration(Ref<Domain> domain, ibv_mr* region, std::byte* data, size_t size,
                           Hold hold, bool temporary)
    : domain_(std::move(domain)),
      region_(region),
      data_(data),
      size_(size),
      local_key_(region->lkey),
      remote_key_(region->rkey),
      hold_(std::move(hold)),
      temporary_(temporary) {}

void Registration::dispose() noexcept {
  // What a device may still be reading or writing is not given back.
  if (home_.here() && domain_->unmake(*this)) delete this;
}

// ---- windows ----

Result<Ref<Window>> Domain::window() {
  if (!device_.windows) {
    return Status{Code::kUnimplemented,
                  text({"RDMA device ", device_.name, " has no memory windows of type 2"})};
  }
  if (!home_.here()) {
    return Status{Code::kFailedPrecondition,
                  "this RDMA device was opened before fork() and belongs to the parent process"};
  }
  errno = 0;
  ibv_mw* const window = ibv_alloc_mw(domain_, IBV_MW_TYPE_2);
  if (!window) {
    const int error = errno;
    return errno_status(gone(error) ? Code::kUnavailable : Code::kResourceExhausted,
                        text({"no memory window on RDMA device ", device_.name}), error);
  }
  {
    const MutexLock lock(mutex_);
    stats_.windows += 1;
  }
  return Ref<Window>::adopt(new Window(Ref<Domain>::share(this), window));
}

bool Domain::unmake(ibv_mw* window) noexcept {
  const int error = ibv_dealloc_mw(window);
  if (error != 0 && !gone(error) && !lost()) return false;
  const MutexLock lock(mutex_);
  stats_.windows -= 1;
  return true;
}

Window::Window(Ref<Domain> domain, ibv_mw* window)
    : domain_(std::move(domain)), window_(window), key_(window->rkey) {}

void Window::dispose() noexcept {
  if (home_.here() && domain_->unmake(window_)) delete this;
}

ibv_send_wr Window::bind(Ref<Registration> memory, std::byte* data, size_t size, Rights rights) {
  memory_ = std::move(memory);
  // The last byte of a key of type 2 is the owner's to choose: a new one for each bind, so that an
  // old key does not open the new region.
  // The request names the key that the device knows as well, which the library reads there.
  window_->rkey = key_;
  key_ = ibv_inc_rkey(key_);
  unsigned access = 0;
  if (rights & kMayRead) access |= IBV_ACCESS_REMOTE_READ;
  if (rights & kMayWrite) access |= IBV_ACCESS_REMOTE_WRITE;
  if (rights & kMayUpdate) access |= IBV_ACCESS_REMOTE_ATOMIC;
  ibv_send_wr request{};
  request.opcode = IBV_WR_BIND_MW;
  request.bind_mw.mw = window_;
  request.bind_mw.rkey = key_;
  request.bind_mw.bind_info = {memory_->handle(), reinterpret_cast<uint64_t>(data), size, access};
  return request;
}

// ---- events ----

Status Domain::watch(Poller& poller) {
  auto async = make_ref<AsyncEvents>(*this, poller);
  {
    const MutexLock lock(mutex_);
    async_ = async;  // ahead of the first event, which may be the last
  }
  return async->start();
}

void Domain::observe(Ref<Observer> observer) {
  const MutexLock lock(mutex_);
  Observer* const key = observer.get();
  observers_.insert_or_assign(key, std::move(observer));
}

void Domain::forget(Observer& observer) {
  Ref<Observer> last;  // let go without the lock
  const MutexLock lock(mutex_);
  if (auto it = observers_.find(&observer); it != observers_.end()) {
    last = std::move(it->second);
    observers_.erase(it);
  }
}

void Domain::handle_events(uint32_t events) {
  ibv_async_event event{};
  while (library_.get_async_event(context_, &event) == 0) {
    const std::string what =
        text({"RDMA device ", device_.name, ": ", library_.event_type_str(event.event_type)});
    const Status broken{Code::kUnavailable, what};
    const auto port = static_cast<uint8_t>(event.element.port_num);
    AsyncEvent told;
    bool known = true;
    switch (event.event_type) {
      case IBV_EVENT_DEVICE_FATAL:
        told = {AsyncEvent::Kind::kDeviceLost, 0, 0, nullptr, broken};
        lost_.store(true, std::memory_order_release);
        break;
      case IBV_EVENT_PORT_ERR:
        told = {AsyncEvent::Kind::kPortDown, port, 0, nullptr, broken};
        break;
      case IBV_EVENT_PORT_ACTIVE:
        told = {AsyncEvent::Kind::kPortUp, port, 0, nullptr, {}};
        break;
      case IBV_EVENT_LID_CHANGE:
      case IBV_EVENT_PKEY_CHANGE:
      case IBV_EVENT_GID_CHANGE:
      case IBV_EVENT_CLIENT_REREGISTER:
        told = {AsyncEvent::Kind::kPortChanged, port, 0, nullptr, {}};
        break;
      case IBV_EVENT_QP_FATAL:
      case IBV_EVENT_QP_REQ_ERR:
      case IBV_EVENT_QP_ACCESS_ERR:
        // Read before the acknowledgement: the queue pair is not destroyed until then.
        told = {AsyncEvent::Kind::kQueuePair, 0, event.element.qp->qp_num, nullptr, broken};
        break;
      case IBV_EVENT_CQ_ERR:
        told = {AsyncEvent::Kind::kCompletions, 0, 0, event.element.cq, broken};
        break;
      default:
        known = false;
    }
    library_.ack_async_event(&event);
    if (known) tell(told);
  }
  const bool open = (events & (EPOLLHUP | EPOLLERR)) == 0 && (errno == EAGAIN || errno == EINTR);
  if (open) return;
  if (!lost_.exchange(true, std::memory_order_acq_rel)) {
    tell({AsyncEvent::Kind::kDeviceLost,
          0,
          0,
          nullptr,
          {Code::kUnavailable, text({"RDMA device ", device_.name, " has been removed"})}});
  }
  Ref<AsyncEvents> async;
  {
    const MutexLock lock(mutex_);
    async = async_;
  }
  if (async) async->stop();
}

void Domain::tell(const AsyncEvent& event) {
  std::vector<Ref<Observer>> observers;
  {
    const MutexLock lock(mutex_);
    for (const auto& [key, observer] : observers_) observers.push_back(observer);
  }
  for (const auto& observer : observers) observer->on_event(event);
}

}  // namespace tw::verbs

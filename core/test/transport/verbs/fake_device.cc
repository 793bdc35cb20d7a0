// SPDX-License-Identifier: Apache-2.0
#include "test/transport/verbs/fake_device.h"

#include <arpa/inet.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace tw::verbs {
namespace {

FakeHost* g_host = nullptr;

union ibv_gid parse(const std::string& address) {
  union ibv_gid gid{};
  inet_pton(AF_INET6, address.c_str(), gid.raw);
  return gid;
}

}  // namespace

struct FakeHost::Opened {
  ibv_context context{};  // first: the two are cast to each other
  ibv_device device{};
  std::string name;
  std::deque<ibv_async_event> events;
  ibv_qp pair{};  // the one that events are about
};

// The functions of the table; they find the host by g_host, as the real ones find the kernel.
struct FakeFunctions {
  using Lock = std::lock_guard<std::mutex>;

  static FakeHost::Opened& of(ibv_context* context) {
    return *reinterpret_cast<FakeHost::Opened*>(context);
  }
  static FakeDevice* device_of(ibv_context* context) { return g_host->find(of(context).name); }
  static bool removed(ibv_context* context) {
    const auto& names = g_host->removed_;
    return std::find(names.begin(), names.end(), of(context).name) != names.end();
  }
  static void fill(ibv_device& device, const FakeDevice& from) {
    device.node_type = from.node;
    device.transport_type = from.transport;
    std::strncpy(device.name, from.name.c_str(), sizeof device.name - 1);
  }

  static ibv_device** get_device_list(int* count) {
    Lock lock(g_host->mutex_);
    if (g_host->list_error != 0) {
      errno = g_host->list_error;
      return nullptr;
    }
    auto** const list = new ibv_device* [g_host->devices.size() + 1] {};
    size_t n = 0;
    for (const FakeDevice& device : g_host->devices) {
      g_host->listed_.push_back(std::make_unique<ibv_device>());
      fill(*g_host->listed_.back(), device);
      list[n++] = g_host->listed_.back().get();
    }
    g_host->counts_.lists += 1;
    *count = static_cast<int>(n);
    return list;
  }
  static void free_device_list(ibv_device** list) {
    Lock lock(g_host->mutex_);
    g_host->counts_.lists -= 1;
    delete[] list;
  }
  static const char* get_device_name(ibv_device* device) { return device->name; }

  static ibv_context* open_device(ibv_device* device) {
    Lock lock(g_host->mutex_);
    const FakeDevice* const from = g_host->find(device->name);
    if (!from || from->open_error != 0) {
      errno = from ? from->open_error : ENODEV;
      return nullptr;
    }
    auto* const opened = new FakeHost::Opened;
    opened->name = from->name;
    fill(opened->device, *from);
    opened->context.device = &opened->device;
    opened->context.async_fd = eventfd(0, EFD_CLOEXEC | EFD_SEMAPHORE);
    opened->context.ops.alloc_mw = alloc_mw;
    opened->context.ops.dealloc_mw = dealloc_mw;
    g_host->opened_.push_back(opened);
    g_host->counts_.contexts += 1;
    return &opened->context;
  }
  static int close_device(ibv_context* context) {
    Lock lock(g_host->mutex_);
    std::erase(g_host->opened_, &of(context));
    g_host->counts_.contexts -= 1;
    ::close(context->async_fd);
    delete &of(context);
    return 0;
  }
  static int query_device(ibv_context* context, ibv_device_attr* out) {
    Lock lock(g_host->mutex_);
    const FakeDevice* const device = device_of(context);
    if (!device || removed(context)) return EIO;
    *out = {};
    out->max_mr_size = UINT64_MAX;
    out->max_qp = 1000;
    out->max_qp_wr = 4096;
    out->max_cqe = 65536;
    out->max_sge = 30;
    out->max_mw = 1000;
    out->max_qp_rd_atom = 16;
    out->max_qp_init_rd_atom = 500;  // more than its field can say
    out->atomic_cap = device->atomics;
    out->device_cap_flags = device->flags;
    out->vendor_id = device->vendor;
    out->phys_port_cnt = static_cast<uint8_t>(device->ports.size());
    return 0;
  }
  static const FakePort* port_of(ibv_context* context, uint32_t number) {
    const FakeDevice* const device = device_of(context);
    if (!device || removed(context) || number < 1 || number > device->ports.size()) return nullptr;
    return &device->ports[number - 1];
  }
  static int query_port(ibv_context* context, uint8_t number, _compat_ibv_port_attr* compat) {
    Lock lock(g_host->mutex_);
    const FakePort* const port = port_of(context, number);
    if (!port) return EIO;
    auto* const out = reinterpret_cast<ibv_port_attr*>(compat);
    out->state = port->state;
    out->max_mtu = IBV_MTU_4096;
    out->active_mtu = port->mtu;
    out->gid_tbl_len = 256;
    out->max_msg_sz = 1U << 30;
    out->pkey_tbl_len = 128;
    out->lid = port->lid;
    out->active_width = port->width;
    out->active_speed = port->speed;
    out->link_layer = port->link_layer;
    return 0;
  }
  static const FakeGid* gid_of(ibv_context* context, uint32_t number, uint32_t index) {
    const FakePort* const port = port_of(context, number);
    if (!port) return nullptr;
    for (const FakeGid& gid : port->gids)
      if (gid.index == static_cast<int>(index)) return &gid;
    return nullptr;
  }
  static int query_gid(ibv_context* context, uint8_t port, int index, ibv_gid* out) {
    Lock lock(g_host->mutex_);
    const FakeGid* const gid = gid_of(context, port, static_cast<uint32_t>(index));
    *out = gid ? parse(gid->address) : ibv_gid{};
    return 0;
  }
  static int query_gid_ex(ibv_context* context, uint32_t port, uint32_t index, ibv_gid_entry* out,
                          uint32_t, size_t) {
    Lock lock(g_host->mutex_);
    const FakeGid* const gid = gid_of(context, port, index);
    if (!gid) return ENODATA;
    *out = {parse(gid->address), index, port, gid->type, 0};
    return 0;
  }

  static int get_async_event(ibv_context* context, ibv_async_event* out) {
    uint64_t one;
    if (read(context->async_fd, &one, sizeof one) < 0) return -1;
    Lock lock(g_host->mutex_);
    if (removed(context) && of(context).events.empty()) {
      errno = EIO;
      return -1;
    }
    *out = of(context).events.front();
    of(context).events.pop_front();
    g_host->counts_.unacknowledged += 1;
    return 0;
  }
  static void ack_async_event(ibv_async_event*) {
    Lock lock(g_host->mutex_);
    g_host->counts_.unacknowledged -= 1;
  }

  static ibv_pd* alloc_pd(ibv_context* context) {
    Lock lock(g_host->mutex_);
    g_host->counts_.domains += 1;
    return new ibv_pd{context, 1};
  }
  static int dealloc_pd(ibv_pd* domain) {
    Lock lock(g_host->mutex_);
    g_host->counts_.domains -= 1;
    delete domain;
    return 0;
  }
  static ibv_mr* reg_mr(ibv_pd* domain, void* data, size_t size, int access) {
    Lock lock(g_host->mutex_);
    FakeHost::Counts& counts = g_host->counts_;
    if (size > g_host->lockable - std::min(counts.pinned, g_host->lockable)) {
      errno = g_host->registration_error;
      return nullptr;
    }
    counts.regions += 1;
    counts.registered += 1;
    counts.pinned += size;
    counts.last_access = access;
    const auto key = static_cast<uint32_t>(counts.registered);
    return g_host->regions_
        .emplace_back(new ibv_mr{domain->context, domain, data, size, key, key, key + 0x1000})
        .get();
  }
  static int dereg_mr(ibv_mr* region) {
    Lock lock(g_host->mutex_);
    if (g_host->deregistration_error != 0) return g_host->deregistration_error;
    g_host->counts_.regions -= 1;
    g_host->counts_.pinned -= region->length;
    std::erase_if(g_host->regions_, [&](const auto& held) { return held.get() == region; });
    return 0;
  }
  static ibv_mw* alloc_mw(ibv_pd* domain, ibv_mw_type type) {
    Lock lock(g_host->mutex_);
    g_host->counts_.windows += 1;
    return new ibv_mw{domain->context, domain, 0x4400ff, 1, type};
  }
  static int dealloc_mw(ibv_mw* window) {
    Lock lock(g_host->mutex_);
    g_host->counts_.windows -= 1;
    delete window;
    return 0;
  }

  static ibv_cq* create_cq(ibv_context* context, int, void*, ibv_comp_channel*, int) {
    Lock lock(g_host->mutex_);
    g_host->counts_.queues += 1;
    auto* const queue = new ibv_cq{};
    queue->context = context;
    return queue;
  }
  static int destroy_cq(ibv_cq* queue) {
    Lock lock(g_host->mutex_);
    g_host->counts_.queues -= 1;
    delete queue;
    return 0;
  }
  static ibv_qp* create_qp(ibv_pd* domain, ibv_qp_init_attr* attributes) {
    Lock lock(g_host->mutex_);
    const FakeDevice* const device = device_of(domain->context);
    if (attributes->cap.max_inline_data > device->max_inline) {
      errno = EINVAL;
      return nullptr;
    }
    attributes->cap.max_inline_data = device->max_inline;  // as mlx5: what there is room for
    g_host->counts_.pairs += 1;
    auto* const pair = new ibv_qp{};
    pair->context = domain->context;
    return pair;
  }
  static int destroy_qp(ibv_qp* pair) {
    Lock lock(g_host->mutex_);
    g_host->counts_.pairs -= 1;
    delete pair;
    return 0;
  }

  static const char* wc_status_str(ibv_wc_status) { return "a status"; }
  static const char* event_type_str(ibv_event_type) { return "an event"; }
  static int fork_init() {
    Lock lock(g_host->mutex_);
    g_host->counts_.fork_inits += 1;
    return g_host->fork_init_error;
  }
  static ibv_fork_status is_fork_initialized() { return g_host->forks; }

  static std::optional<std::string> attribute(const std::string& path) {
    Lock lock(g_host->mutex_);
    const auto it = g_host->attributes.find(path);
    if (it == g_host->attributes.end()) return std::nullopt;
    return it->second;
  }
};

FakeHost::FakeHost(std::vector<FakeDevice> with) : devices(std::move(with)) {
  using F = FakeFunctions;
  g_host = this;
  for (const FakeDevice& device : devices)
    attributes["/sys/class/infiniband/" + device.name + "/device/numa_node"] =
        std::to_string(device.numa_node);
  library_.get_device_list = F::get_device_list;
  library_.free_device_list = F::free_device_list;
  library_.get_device_name = F::get_device_name;
  library_.open_device = F::open_device;
  library_.close_device = F::close_device;
  library_.query_device = F::query_device;
  library_.compat_query_port = F::query_port;
  library_.query_gid = F::query_gid;
  library_.get_async_event = F::get_async_event;
  library_.ack_async_event = F::ack_async_event;
  library_.alloc_pd = F::alloc_pd;
  library_.dealloc_pd = F::dealloc_pd;
  library_.reg_mr = F::reg_mr;
  library_.dereg_mr = F::dereg_mr;
  library_.create_cq = F::create_cq;
  library_.destroy_cq = F::destroy_cq;
  library_.create_qp = F::create_qp;
  library_.destroy_qp = F::destroy_qp;
  library_.wc_status_str = F::wc_status_str;
  library_.event_type_str = F::event_type_str;
  library_.fork_init = F::fork_init;
  library_.query_gid_ex = F::query_gid_ex;
  library_.is_fork_initialized = F::is_fork_initialized;
  library_.attribute = F::attribute;
}

FakeHost::~FakeHost() { g_host = nullptr; }

FakeDevice* FakeHost::find(const std::string& name) {
  for (FakeDevice& device : devices)
    if (device.name == name) return &device;
  return nullptr;
}

void FakeHost::report(const std::string& device, ibv_event_type type, int port) {
  std::lock_guard lock(mutex_);
  for (Opened* opened : opened_) {
    if (opened->name != device) continue;
    ibv_async_event event{};
    event.event_type = type;
    event.element.port_num = port;
    opened->events.push_back(event);
    eventfd_write(opened->context.async_fd, 1);
  }
}

void FakeHost::report_queue_pair(const std::string& device, ibv_event_type type, uint32_t number) {
  std::lock_guard lock(mutex_);
  for (Opened* opened : opened_) {
    if (opened->name != device) continue;
    opened->pair.qp_num = number;
    ibv_async_event event{};
    event.event_type = type;
    event.element.qp = &opened->pair;
    opened->events.push_back(event);
    eventfd_write(opened->context.async_fd, 1);
  }
}

void FakeHost::remove(const std::string& device) {
  std::lock_guard lock(mutex_);
  removed_.push_back(device);
  std::erase_if(devices, [&](const FakeDevice& one) { return one.name == device; });
  for (Opened* opened : opened_)
    if (opened->name == device) eventfd_write(opened->context.async_fd, 1);
}

FakeHost::Counts FakeHost::counts() {
  std::lock_guard lock(mutex_);
  return counts_;
}

FakePort infiniband_port(uint16_t lid, const std::string& gid) {
  FakePort port;
  port.link_layer = IBV_LINK_LAYER_INFINIBAND;
  port.lid = lid;
  port.speed = 64;  // HDR
  port.gids = {{0, gid, IBV_GID_TYPE_IB}};
  return port;
}

FakePort roce_port(std::vector<FakeGid> gids) {
  FakePort port;
  port.gids = std::move(gids);
  return port;
}

}  // namespace tw::verbs

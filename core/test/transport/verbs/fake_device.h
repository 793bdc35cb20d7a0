// SPDX-License-Identifier: Apache-2.0
// A host with RDMA devices that are not there: what Soft-RoCE cannot show. Devices, ports and
// addresses are data; registrations and windows are counted; transfers are not simulated.
#pragma once

#include <array>
#include <atomic>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "transport/verbs/library.h"

namespace tw::verbs {

struct FakeGid {
  int index = 0;
  std::string address;  // as inet_pton(3) reads it
  uint32_t type = IBV_GID_TYPE_ROCE_V2;
};

struct FakePort {
  ibv_port_state state = IBV_PORT_ACTIVE;
  uint8_t link_layer = IBV_LINK_LAYER_ETHERNET;
  uint16_t lid = 0;
  ibv_mtu mtu = IBV_MTU_4096;
  uint8_t width = 2;   // 4X
  uint8_t speed = 32;  // EDR
  std::vector<FakeGid> gids;
};

struct FakeDevice {
  std::string name;
  std::vector<FakePort> ports;
  ibv_node_type node = IBV_NODE_CA;
  ibv_transport_type transport = IBV_TRANSPORT_IB;
  ibv_atomic_cap atomics = IBV_ATOMIC_HCA;
  unsigned flags = IBV_DEVICE_MEM_WINDOW_TYPE_2B;
  uint32_t vendor = 0x15b3;
  uint32_t max_inline = 256;
  int open_error = 0;
  int numa_node = -1;
};

FakePort infiniband_port(uint16_t lid, const std::string& gid = "fe80::1:2:3:4");
FakePort roce_port(std::vector<FakeGid> gids);

// One at a time. Its table is in force while it lives.
class FakeHost {
 public:
  explicit FakeHost(std::vector<FakeDevice> devices = {});
  ~FakeHost();

  const Library& library() const { return library_; }
  Library& table() { return library_; }

  // Change them between calls of the code under test.
  std::vector<FakeDevice> devices;
  std::map<std::string, std::string> attributes;  // below /sys
  int list_error = 0;                             // instead of a list
  size_t lockable = SIZE_MAX;                     // bytes; past it registrations fail
  int registration_error = ENOMEM;                // with this
  int deregistration_error = 0;
  ibv_fork_status forks = IBV_FORK_UNNEEDED;
  int fork_init_error = 0;

  // Every open context of `device` reports it.
  void report(const std::string& device, ibv_event_type type, int port = 0);
  void report_queue_pair(const std::string& device, ibv_event_type type, uint32_t number);
  // Its contexts fail from now on.
  void remove(const std::string& device);

  struct Counts {
    int lists = 0, contexts = 0, domains = 0, regions = 0, windows = 0, queues = 0, pairs = 0;
    int registered = 0;      // ever
    int unacknowledged = 0;  // events
    int last_access = 0;     // flags of the last registration
    int fork_inits = 0;
    size_t pinned = 0;
    friend bool operator==(const Counts&, const Counts&) = default;
  };
  Counts counts();

 private:
  friend struct FakeFunctions;
  struct Opened;

  FakeDevice* find(const std::string& name);

  Library library_;
  std::mutex mutex_;  // guards what follows
  Counts counts_;
  std::vector<std::unique_ptr<ibv_device>> listed_;
  std::vector<Opened*> opened_;
  std::vector<std::string> removed_;
  std::vector<std::unique_ptr<ibv_mr>> regions_;  // also those whose deregistration failed
};

}  // namespace tw::verbs

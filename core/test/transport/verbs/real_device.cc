// SPDX-License-Identifier: Apache-2.0
// What only a device can answer. Where there is none these tests say so and are skipped; Soft-RoCE
// will do: modprobe rdma_rxe; rdma link add rxe0 type rxe netdev lo
#include <doctest/doctest.h>
#include <linux/capability.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <memory>
#include <optional>

#include "memory/arena.h"
#include "test/memory/slab_watch.h"
#include "test/not_tried.h"
#include "test/transport/verbs/fake_device.h"
#include "transport/verbs/context.h"

namespace tw::verbs {
namespace {

struct Opened {
  std::unique_ptr<Poller> poller;
  Ref<Context> context;
  Ref<Domain> domain;
  Rail rail;
};

std::optional<Opened> open() {
  auto library = Library::get();
  if (!library) {
    test::not_tried(library.status().details());
    return std::nullopt;
  }
  auto poller = Poller::create();
  REQUIRE(poller.ok());
  auto context = Context::open(**library, {}, **poller);
  if (!context) {
    test::not_tried(context.status().details());
    return std::nullopt;
  }
  auto rails = (*context)->rails();
  REQUIRE(rails.ok());
  return Opened{std::move(*poller), *context, rails->front().domain, rails->front().rail};
}

template <class T>
using Held = std::unique_ptr<T, int (*)(T*)>;

// Two queue pairs of this process that are connected to each other.
class Pairs {
 public:
  explicit Pairs(const Opened& opened)
      : library_(opened.domain->library()),
        queue_(library_.create_cq(opened.domain->context(), 64, nullptr, nullptr, 0),
               library_.destroy_cq),
        near_(make(opened)),
        far_(make(opened)) {
    connect(near_.get(), far_->qp_num, opened);
    connect(far_.get(), near_->qp_num, opened);
  }

  ibv_qp* near() { return near_.get(); }
  ibv_qp* far() { return far_.get(); }

  // How a request has ended.
  ibv_wc_status run(ibv_qp* pair, ibv_send_wr& request) {
    request.send_flags = IBV_SEND_SIGNALED;
    ibv_send_wr* bad = nullptr;
    REQUIRE(ibv_post_send(pair, &request, &bad) == 0);
    const Nanos deadline = now() + 20 * kSecond;
    ibv_wc done{};
    while (now() < deadline)
      if (ibv_poll_cq(queue_.get(), 1, &done) == 1) return done.status;
    FAIL("a work request did not complete");
    return IBV_WC_GENERAL_ERR;
  }

  ibv_wc_status transfer(ibv_wr_opcode opcode, const Registration& local, size_t size,
                         const std::byte* remote, uint32_t key) {
    ibv_sge piece{reinterpret_cast<uint64_t>(local.data()), static_cast<uint32_t>(size),
                  local.local_key()};
    ibv_send_wr request{};
    request.opcode = opcode;
    request.sg_list = &piece;
    request.num_sge = 1;
    request.wr.rdma.remote_addr = reinterpret_cast<uint64_t>(remote);
    request.wr.rdma.rkey = key;
    return run(near(), request);
  }

 private:
  Held<ibv_qp> make(const Opened& opened) {
    ibv_qp_init_attr attributes{};
    attributes.send_cq = queue_.get();
    attributes.recv_cq = queue_.get();
    attributes.qp_type = IBV_QPT_RC;
    attributes.cap = {8, 8, 1, 1, 0};
    Held<ibv_qp> pair(library_.create_qp(opened.domain->handle(), &attributes),
                      library_.destroy_qp);
    REQUIRE(pair);
    return pair;
  }

  void connect(ibv_qp* pair, uint32_t peer, const Opened& opened) {
    const DevicePort& port = opened.rail.port;
    ibv_qp_attr attributes{};
    attributes.qp_state = IBV_QPS_INIT;
    attributes.port_num = port.number;
    attributes.qp_access_flags =
        IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;
    REQUIRE(library_.modify_qp(
                pair, &attributes,
                IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) == 0);
    attributes.qp_state = IBV_QPS_RTR;
    attributes.path_mtu = static_cast<ibv_mtu>(mtu_code(port.mtu));
    attributes.dest_qp_num = peer;
    attributes.max_dest_rd_atomic = 4;
    attributes.min_rnr_timer = 12;
    attributes.ah_attr.port_num = port.number;
    attributes.ah_attr.dlid = port.lid;
    attributes.ah_attr.is_global = needs_global_route(opened.rail, opened.rail.gid.bytes);
    attributes.ah_attr.grh.sgid_index = opened.rail.gid.index;
    attributes.ah_attr.grh.hop_limit = 64;
    std::memcpy(attributes.ah_attr.grh.dgid.raw, opened.rail.gid.bytes.data(), 16);
    REQUIRE(library_.modify_qp(pair, &attributes,
                               IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                                   IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
                                   IBV_QP_MIN_RNR_TIMER) == 0);
    attributes.qp_state = IBV_QPS_RTS;
    attributes.timeout = 14;
    attributes.retry_cnt = 6;
    attributes.rnr_retry = 6;
    attributes.max_rd_atomic = 4;
    REQUIRE(library_.modify_qp(pair, &attributes,
                               IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                                   IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC) == 0);
  }

  const Library& library_;
  Held<ibv_cq> queue_;
  Held<ibv_qp> near_;
  Held<ibv_qp> far_;
};

TEST_SUITE("verbs device") {
  TEST_CASE("device: the arena is one registration for each slab, however many tensors") {
    auto opened = open();
    if (!opened) return;
    MESSAGE("device " << opened->rail.device << ", GID " << opened->rail.gid.to_string() << " ("
                      << name(opened->rail.gid.type) << "), MTU " << opened->rail.port.mtu
                      << ", inline " << opened->domain->inline_bytes() << ", READs "
                      << int{opened->domain->device().reads_served} << ", windows "
                      << opened->domain->device().windows << ", exact "
                      << opened->domain->device().exact_windows << ", atomics "
                      << opened->domain->device().atomics);
    auto arena = make_ref<Arena>(size_t{64} << 20, size_t{16} << 20);
    std::vector<Ref<Block>> blocks;
    for (int i = 0; i < 1000; ++i) {
      auto block = arena->allocate(20'000);
      REQUIRE(block.ok());
      auto registered = opened->domain->slab((*block)->slab());
      REQUIRE(registered.ok());
      const std::byte* const begin = (*registered)->data();
      CHECK(begin <= (*block)->data());
      CHECK((*block)->data() + (*block)->size() <= begin + (*registered)->size());
      blocks.push_back(std::move(*block));
    }
    const ArenaStats arena_stats = arena->stats();
    CHECK(arena_stats.slabs == 2);
    CHECK(opened->domain->stats().registrations == arena_stats.slabs);
    CHECK(opened->domain->stats().pinned == arena_stats.reserved);
    blocks.clear();
    arena->trim();
    opened->context->slabs_dropped();
    CHECK(opened->domain->stats().registrations == 0);
    CHECK(opened->domain->stats().pinned == 0);
  }

  TEST_CASE("device: a peer of the protection domain reads a slab, and writes none of it") {
    auto opened = open();
    if (!opened) return;
    auto slab = Slab::make(0, 1, size_t{4} << 20);
    REQUIRE(slab.ok());
    std::memset((*slab)->base(), 'r', (*slab)->size());
    auto remote = opened->domain->slab(**slab);
    REQUIRE(remote.ok());
    std::vector<std::byte> to(size_t{1} << 20);
    auto local = opened->domain->add_temporary(to.data(), to.size(), kLocalWrite);
    REQUIRE(local.ok());
    Pairs pairs(*opened);
    const std::byte* const from = (*slab)->base() + 12345;
    CHECK(pairs.transfer(IBV_WR_RDMA_READ, **local, to.size(), from, (*remote)->remote_key()) ==
          IBV_WC_SUCCESS);
    CHECK(std::memcmp(to.data(), from, to.size()) == 0);
    std::memset(to.data(), 'w', to.size());
    CHECK(pairs.transfer(IBV_WR_RDMA_WRITE, **local, 100, from, (*remote)->remote_key()) ==
          IBV_WC_REM_ACCESS_ERR);
    CHECK(*from == std::byte{'r'});
    CHECK(opened->domain->stats().temporary == 1);
    local = Status{};
    CHECK(opened->domain->stats().temporary == 0);
  }

  TEST_CASE("device: a window opens a part with some rights, to one queue pair, while it lives") {
    auto opened = open();
    if (!opened) return;
    if (!opened->domain->device().windows)
      return test::not_tried("this device has no memory windows of type 2");
    auto slab = Slab::make(0, 1, 16 * page_size());
    REQUIRE(slab.ok());
    auto memory = opened->domain->slab(**slab);
    REQUIRE(memory.ok());
    std::byte* const part = (*slab)->base() + 4096;
    std::memset(part, 'p', 4096);
    if (!opened->domain->device().exact_windows) {
      memory = opened->domain->add(part, 4096, kLocalWrite | kBindable);
      REQUIRE(memory.ok());
    }
    std::vector<std::byte> to(8192);
    auto local = opened->domain->add(to.data(), to.size(), kLocalWrite);
    REQUIRE(local.ok());

    struct Row {
      const char* what;
      Rights rights;
      ibv_wr_opcode opcode;
      ptrdiff_t offset;
      size_t size;
      bool gone;
      ibv_wc_status ends;
    };
    for (const Row& row : {
             Row{"read inside", kMayRead, IBV_WR_RDMA_READ, 0, 4096, false, IBV_WC_SUCCESS},
             Row{"read one byte past the end", kMayRead, IBV_WR_RDMA_READ, 0, 4097, false,
                 IBV_WC_REM_ACCESS_ERR},
             Row{"read one byte ahead", kMayRead, IBV_WR_RDMA_READ, -1, 2, false,
                 IBV_WC_REM_ACCESS_ERR},
             Row{"write where reads are permitted", kMayRead, IBV_WR_RDMA_WRITE, 0, 8, false,
                 IBV_WC_REM_ACCESS_ERR},
             Row{"write where it is permitted", kMayWrite, IBV_WR_RDMA_WRITE, 0, 8, false,
                 IBV_WC_SUCCESS},
             Row{"read after it has gone", kMayRead, IBV_WR_RDMA_READ, 0, 8, true,
                 IBV_WC_REM_ACCESS_ERR},
         }) {
      INFO(row.what);
      Pairs pairs(*opened);  // a refused access breaks both
      auto window = opened->domain->window();
      REQUIRE(window.ok());
      ibv_send_wr bind = (*window)->bind(*memory, part, 4096, row.rights);
      REQUIRE(pairs.run(pairs.far(), bind) == IBV_WC_SUCCESS);
      const uint32_t key = (*window)->key();
      if (row.gone) window = Status{};
      CHECK(pairs.transfer(row.opcode, **local, row.size, part + row.offset, key) == row.ends);
    }

    // Not by another queue pair, where the device binds windows to one (type 2B).
    Pairs pairs(*opened);
    Pairs others(*opened);
    auto window = opened->domain->window();
    REQUIRE(window.ok());
    ibv_send_wr bind = (*window)->bind(*memory, part, 4096, kMayRead);
    REQUIRE(pairs.run(pairs.far(), bind) == IBV_WC_SUCCESS);
    CHECK(others.transfer(IBV_WR_RDMA_READ, **local, 8, part, (*window)->key()) ==
          IBV_WC_REM_ACCESS_ERR);
    CHECK(pairs.transfer(IBV_WR_RDMA_READ, **local, 8, part, (*window)->key()) == IBV_WC_SUCCESS);
    window = Status{};
    CHECK(opened->domain->stats().windows == 0);
  }

  TEST_CASE("device: nothing is left after close") {
    auto opened = open();
    if (!opened) return;
    auto slab = Slab::make(0, 1, 16 * page_size());
    REQUIRE(slab.ok());
    for (int i = 0; i < 20; ++i) {
      auto held = opened->domain->add((*slab)->base(), 4096, kLocalWrite | kRemoteRead);
      auto memory = opened->domain->slab(**slab);
      REQUIRE(held.ok());
      REQUIRE(memory.ok());
      if (opened->domain->device().windows) REQUIRE(opened->domain->window().ok());
    }
    opened->context = nullptr;
    const DomainStats stats = opened->domain->stats();
    CHECK(stats.registrations == 0);
    CHECK(stats.pinned == 0);
    CHECK(stats.windows == 0);
    const test::SlabWatch watch(**slab);
    slab = Status{};
    CHECK(watch.gone());
  }

  TEST_CASE("device: the limit on locked memory is named where it is too low") {
    if (!open()) return;
    const pid_t child = fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      // Root may lock what it likes.
      __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
      __user_cap_data_struct rights[2] = {};
      if (syscall(SYS_capget, &header, rights) != 0) _exit(1);
      for (auto* set : {&rights[0].effective, &rights[0].permitted, &rights[0].inheritable})
        *set &= ~(1U << CAP_IPC_LOCK);
      if (syscall(SYS_capset, &header, rights) != 0) _exit(2);
      const rlimit limit{65536, 65536};
      if (setrlimit(RLIMIT_MEMLOCK, &limit) != 0) _exit(3);
      auto poller = Poller::create();
      auto context = Context::open(**Library::get(), {}, **poller);
      if (!context) _exit(4);
      auto slab = Slab::make(0, 1, size_t{1} << 20);
      const auto refused = (*context)->rails()->front().domain->slab(**slab);
      if (refused.ok()) _exit(5);
      if (refused.status().code() != Code::kResourceExhausted) _exit(6);
      if (refused.status().details().find("65536 bytes") == std::string::npos) _exit(7);
      _exit(0);
    }
    int status = 0;
    REQUIRE(waitpid(child, &status, 0) == child);
    REQUIRE(WIFEXITED(status));
    CHECK(WEXITSTATUS(status) == 0);
  }

  TEST_CASE("device: a child that forks off leaves its parent's transfers alone") {
    auto opened = open();
    if (!opened) return;
    const ForkSafety safety = protect_forks(opened->domain->library());
    MESSAGE("forks: " << (safety == ForkSafety::kKernel         ? "the kernel copies"
                          : safety == ForkSafety::kNotInherited ? "not inherited"
                                                                : "not safe"));
    auto slab = Slab::make(0, 1, 16 * page_size());
    REQUIRE(slab.ok());
    std::memset((*slab)->base(), 's', (*slab)->size());
    auto remote = opened->domain->slab(**slab);
    std::vector<std::byte> to(4 * page_size());
    auto local = opened->domain->add(to.data(), to.size(), kLocalWrite);
    REQUIRE(remote.ok());
    REQUIRE(local.ok());
    Pairs pairs(*opened);
    int done[2];
    REQUIRE(pipe(done) == 0);
    const pid_t child = fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      const bool kept = (*slab)->base()[0] == std::byte{'s'};
      remote = Status{};
      local = Status{};
      opened.reset();
      char go;
      close(done[1]);
      const ssize_t n = read(done[0], &go, 1);  // until the parent has read
      _exit(kept && n == 0 ? 0 : 1);
    }
    // After a fork a write of the parent's must not part its page from what the device knows.
    std::memset(to.data(), 0, to.size());
    CHECK(pairs.transfer(IBV_WR_RDMA_READ, **local, to.size(), (*slab)->base(),
                         (*remote)->remote_key()) == IBV_WC_SUCCESS);
    CHECK(std::memcmp(to.data(), (*slab)->base(), to.size()) == 0);
    close(done[1]);
    close(done[0]);
    int status = 0;
    REQUIRE(waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status));
    CHECK(WEXITSTATUS(status) == 0);
  }
}

}  // namespace
}  // namespace tw::verbs

// SPDX-License-Identifier: Apache-2.0
#include "memory/mapping.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "memory/arena.h"
#include "memory/huge_pages.h"
#include "memory/private_pages.h"
#include "test/units.h"

namespace tw {
namespace {

using test::kMiB;

// Counts what comes home.
class Ledger final : public LeaseReturn {
 public:
  void lease_done(uint64_t id) noexcept override { ids.push_back(id); }
  std::vector<uint64_t> ids;
};

Fd duplicate(int fd) { return Fd(fcntl(fd, F_DUPFD_CLOEXEC, 0)); }

SlabAnnouncement announcement(const Slab& slab) {
  return {slab.index(), slab.generation(), slab.size()};
}

// An owner's arena and a reader's view of it, in one process.
struct Ends {
  Ref<Arena> arena = make_ref<Arena>(64 * kMiB, 16 * kMiB);
  Ref<PeerArena> peer = make_ref<PeerArena>();
  Ref<Ledger> ledger = make_ref<Ledger>();

  Ref<Block> block(size_t size, char fill) {
    auto block = arena->allocate(size);
    REQUIRE(block.ok());
    std::memset((*block)->data(), fill, size);
    return std::move(*block);
  }
  void share(const Slab& slab) {
    REQUIRE(peer->add(duplicate(slab.fd()), announcement(slab)).ok());
  }
  Ref<LeasedView> view(const RegionRef& region, uint64_t id) {
    auto located = peer->locate(region);
    REQUIRE(located.ok());
    auto view = LeasedView::make(*located, ledger, id);
    REQUIRE(view.ok());
    return std::move(*view);
  }
};

char at(const Ref<LeasedView>& view, size_t i) { return static_cast<char>(view->bytes()[i]); }

// What code that ignores a read-only flag does.
void scribble(const Ref<LeasedView>& view, size_t i, char value) {
  const_cast<std::byte&>(view->bytes()[i]) = static_cast<std::byte>(value);
}

TEST_CASE("lease: a view shows the owner's bytes and gives the lease back once") {
  Ends ends;
  auto block = ends.block(3 * page_size(), 'a');
  ends.share(block->slab());
  auto view = ends.view(block->region(block->data() + 10, 100), 7);
  CHECK(view->id() == 7);
  CHECK(view->bytes().size() == 100);
  CHECK(view->bytes().data() != block->data() + 10);
  CHECK(at(view, 0) == 'a');
  block->data()[10] = std::byte{'b'};
  CHECK(at(view, 0) == 'b');
  auto other = view;
  view = nullptr;
  CHECK(ends.ledger->ids.empty());
  other = nullptr;
  CHECK(ends.ledger->ids == std::vector<uint64_t>{7});
}

TEST_CASE("lease: private writes stay private and are gone for the next view") {
  const size_t page = page_size();
  Ends ends;
  auto left = ends.block(page, 'l');
  auto block = ends.block(4 * page, 'a');
  auto right = ends.block(page, 'r');
  ends.share(block->slab());
  auto before = ends.view(left->region(), 1);
  auto view = ends.view(block->region(), 2);
  auto after = ends.view(right->region(), 3);
  before->expose();
  view->expose();
  after->expose();
  scribble(before, 0, 'X');
  scribble(view, page + 5, 'Y');
  scribble(view, 4 * page - 1, 'Y');
  scribble(after, 0, 'Z');
  CHECK(at(view, page + 5) == 'Y');
  CHECK(block->data()[page + 5] == std::byte{'a'});
  CHECK(left->data()[0] == std::byte{'l'});

  view = nullptr;
  CHECK(ends.ledger->ids == std::vector<uint64_t>{2});
  CHECK(at(before, 0) == 'X');
  CHECK(at(after, 0) == 'Z');
  std::memset(block->data(), 'b', block->size());
  view = ends.view(block->region(), 4);
  for (size_t i : {size_t{0}, page + 5, page + 6, 4 * page - 1}) CHECK(at(view, i) == 'b');
}

TEST_CASE("lease: private writes into huge pages stay private, page by page") {
  Ends ends;
  auto block = ends.arena->allocate(2 * kHugePage);
  REQUIRE(block.ok());
  for (const size_t at : {size_t{0}, kHugePage}) make_shared_huge_page((*block)->data() + at);
  std::memset((*block)->data(), 'a', (*block)->size());
  ends.share((*block)->slab());
  const size_t written = kHugePage + 3 * page_size();
  for (const uint64_t round : {1, 2}) {
    CAPTURE(round);
    auto view = ends.view((*block)->region(), round);
    view->expose();
    auto* const bytes = const_cast<std::byte*>(view->bytes().data());
    CHECK(reinterpret_cast<uintptr_t>(bytes) % kHugePage == 0);
    CHECK(bytes[written] == std::byte{'a'});
    bytes[written] = std::byte{'b'};
    CHECK(bytes[written - 1] == std::byte{'a'});
    CHECK((*block)->data()[written] == std::byte{'a'});
    (*block)->data()[2 * page_size()] = std::byte{'c'};  // elsewhere the owner's bytes are seen
    CHECK(bytes[2 * page_size()] == std::byte{'c'});
    view = nullptr;
    CHECK(ends.ledger->ids.size() == round);
  }
}

TEST_CASE("lease: views that were not exposed cost no scan, and drop nothing") {
  Ends ends;
  auto block = ends.block(page_size(), 'a');
  ends.share(block->slab());
  auto view = ends.view(block->region(), 1);
  scribble(view, 0,
           'X');  // nobody was given the bytes, so this cannot happen; it shows the scan's absence
  view = nullptr;
  CHECK(at(ends.view(block->region(), 2), 0) == 'X');
}

TEST_CASE("lease: overlapping views") {
  const size_t page = page_size();
  Ends ends;
  auto block = ends.block(8 * page, 'a');
  ends.share(block->slab());
  auto first = ends.view(block->region(block->data(), 3 * page + 10), 1);
  first->expose();

  SUBCASE("a view that comes while its bytes are clean shares the mapping") {
    auto second = ends.view(block->region(block->data() + 3 * page + 20, 2 * page), 2);
    CHECK(second->bytes().data() == first->bytes().data() + 3 * page + 20);
    second->expose();
    scribble(second, 0, 'Y');
    first = nullptr;
    CHECK(at(second, 0) == 'Y');  // the page in common is not dropped under a live view
    second = nullptr;
    CHECK(at(ends.view(block->region(), 3), 3 * page + 20) == 'a');
    CHECK(ends.ledger->ids == std::vector<uint64_t>{1, 2, 3});
  }
  SUBCASE("a view that comes when there are private writes is fresh all the same") {
    scribble(first, 5, 'X');
    auto second = ends.view(block->region(block->data() + 5, 10), 2);
    CHECK(at(second, 0) == 'a');
    block->data()[5] = std::byte{'b'};
    CHECK(at(second, 0) == 'b');
    CHECK(at(first, 5) == 'X');
    second->expose();
    scribble(second, 0, 'S');
    CHECK(at(first, 5) == 'X');
    second = nullptr;
    CHECK(at(first, 5) == 'X');
    CHECK(ends.ledger->ids == std::vector<uint64_t>{2});
  }
  SUBCASE("a chain of overlaps is cleaned when the last view goes") {
    auto last = ends.view(block->region(block->data() + 5 * page, page), 2);
    auto middle = ends.view(block->region(block->data() + 2 * page, 4 * page), 3);
    middle->expose();
    scribble(first, 1, 'X');
    scribble(middle, 2 * page, 'X');
    first = nullptr;
    middle = nullptr;
    CHECK(at(last, 0) == 'a');
    last = nullptr;
    auto all = ends.view(block->region(), 4);
    for (size_t i = 0; i < all->bytes().size(); ++i) REQUIRE(at(all, i) == 'a');
  }
}

TEST_CASE("lease: a separated view shares its writes with nobody") {
  Ends ends;
  const auto block = ends.block(kMiB, 'a');
  ends.share(block->slab());
  const auto write = [](const Ref<LeasedView>& view, size_t i, char c) {
    const_cast<std::byte*>(view->bytes().data())[i] = static_cast<std::byte>(c);
  };
  SUBCASE("the first of two") {
    const auto first = ends.view(block->region(), 1);
    REQUIRE(first->separate().ok());
    const auto second = ends.view(block->region(), 2);
    write(first, 5, 'X');
    CHECK(at(first, 5) == 'X');
    CHECK(at(second, 5) == 'a');
  }
  SUBCASE("the second of two") {
    const auto first = ends.view(block->region(), 1);
    first->expose();
    const auto second = ends.view(block->region(), 2);
    REQUIRE(second->separate().ok());
    write(second, 5, 'X');
    CHECK(at(second, 5) == 'X');
    CHECK(at(first, 5) == 'a');
    CHECK(at(ends.view(block->region(), 3), 5) == 'a');
  }
  SUBCASE("gone with the view") {
    auto first = ends.view(block->region(), 1);
    REQUIRE(first->separate().ok());
    write(first, 5, 'X');
    first = nullptr;
    CHECK(at(ends.view(block->region(), 2), 5) == 'a');
  }
  CHECK(static_cast<char>(block->data()[5]) == 'a');
}

TEST_CASE("lease: what can go back is found by its bytes") {
  const size_t page = page_size();
  Ends ends;
  auto block = ends.block(4 * page, 'a'), other = ends.block(page, 'b');
  ends.share(block->slab());
  auto view = ends.view(block->region(block->data() + 8, 3 * page), 1);
  const std::span<const std::byte> bytes = view->bytes();
  const std::vector<std::byte> elsewhere(page);
  const auto found = [&](std::span<const std::byte> of) { return ends.peer->held(of).get(); };
  CHECK(found(bytes) == view.get());
  CHECK(found(bytes.subspan(page, 10)) == view.get());
  CHECK(view->region(bytes.subspan(page)).offset == block->region().offset + 8 + page);
  CHECK(view->region(bytes.subspan(page)).length == 2 * page);
  // Not all of it, memory that nobody has on lease, and memory of this process.
  CHECK(found({bytes.data() - 1, 2}) == nullptr);
  CHECK(found({bytes.data(), bytes.size() + 1}) == nullptr);
  CHECK(found({bytes.data() + bytes.size(), 1}) == nullptr);
  CHECK(found(elsewhere) == nullptr);
  CHECK(found({block->data(), page}) == nullptr);

  SUBCASE("where nothing was written") {
    view->expose();
    const std::vector<std::byte> fault(64 * page, std::byte{1});
    CHECK(found(bytes) == view.get());
    scribble(view, page + 5, 'X');
    CHECK(found(bytes) == nullptr);
    CHECK(found(bytes.subspan(2 * page)) == view.get());
    CHECK(found(bytes.subspan(page + 100, 10)) == nullptr);  // the same page
  }
  SUBCASE("of several views") {
    auto third = ends.view(block->region(block->data() + 3 * page, page), 3);
    auto second = ends.view(block->region(block->data() + page, 3 * page), 2);
    CHECK(found(bytes) == view.get());
    CHECK(found(second->bytes()) == second.get());
    const auto common = second->bytes().first(page);
    CHECK(found(common));
    view = nullptr;
    CHECK(found(common) == second.get());
    CHECK(found(second->bytes().last(page)));
    second = nullptr;
    CHECK(found(common) == nullptr);
    CHECK(found(third->bytes()) == third.get());
  }
  SUBCASE("that is not separate") {
    CHECK(view->separate().ok());
    CHECK(found(view->bytes()) == nullptr);
  }
  SUBCASE("while it lives") {
    view = nullptr;
    CHECK(found(bytes) == nullptr);
  }
}

TEST_CASE("lease: an empty region needs no page") {
  Ends ends;
  auto block = ends.block(page_size(), 'a');
  ends.share(block->slab());
  const Slab& slab = block->slab();
  auto view = ends.view({slab.index(), slab.generation(), slab.size(), 0}, 1);
  CHECK(view->bytes().empty());
  view->expose();
  view = nullptr;
  CHECK(ends.ledger->ids == std::vector<uint64_t>{1});
}

TEST_CASE("lease: each way of finding private pages") {
  const size_t page = page_size();
  Ends ends;
  auto block = ends.block(200 * page, 'a');
  const auto slab = duplicate(block->slab().fd());
  auto map = MemoryMap::map_lazily(slab.get(), 200 * page, MAP_PRIVATE);
  REQUIRE(map.ok());
  std::byte* const data = map->data();
  // In the mapping of the whole slab the block begins at the start.
  REQUIRE(block->region().offset == 0);
  for (const PageScan how : {PageScan::kIoctl, PageScan::kRead, PageScan::kNone}) {
    CAPTURE(static_cast<int>(how));
    const bool exact = how != PageScan::kNone;
    CHECK(has_private_pages(data, 200 * page, how) == !exact);
    volatile char sink = 0;
    for (size_t i = 0; i < 200; i += 2) sink = static_cast<char>(data[i * page]);
    static_cast<void>(sink);
    CHECK(has_private_pages(data, 200 * page, how) == !exact);
    for (size_t i = 0; i < 200; i += 2) data[i * page] = std::byte{'X'};  // 100 runs of one page
    CHECK(has_private_pages(data, 200 * page, how));
    CHECK(has_private_pages(data + 198 * page, page, how));
    CHECK(has_private_pages(data + 199 * page, page, how) == !exact);
    drop_private_pages(data, 100 * page, how);
    for (size_t i = 0; i < 200; ++i)
      REQUIRE(data[i * page] == std::byte(i % 2 == 0 && i >= 100 ? 'X' : 'a'));
    drop_private_pages(data, 200 * page, how);
    CHECK(has_private_pages(data, 200 * page, how) == !exact);
    CHECK(data[198 * page] == std::byte{'a'});
  }
}

TEST_CASE("lease: a process that locks all its memory still sees the owner's writes") {
  auto arena = make_ref<Arena>(kMiB, kMiB);
  auto block = arena->allocate(page_size());
  REQUIRE(block.ok());
  Block& shared = **block;
  shared.data()[0] = std::byte{'a'};
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    if (mlockall(MCL_FUTURE) != 0) _exit(3);
    auto peer = make_ref<PeerArena>();
    if (!peer->add(duplicate(shared.slab().fd()), announcement(shared.slab())).ok()) _exit(2);
    auto located = peer->locate(shared.region());
    shared.data()[0] = std::byte{'b'};  // inherited and shared with the owner
    _exit(located.ok() && located->bytes[0] == std::byte{'b'} ? 0 : 1);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  REQUIRE(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
}

TEST_CASE("lease: a forked child gives nothing back") {
  Ends ends;
  auto block = ends.block(page_size(), 'a');
  ends.share(block->slab());
  auto view = ends.view(block->region(), 1);
  view->expose();
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    view = nullptr;
    _exit(ends.ledger->ids.empty() ? 0 : 1);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(status == 0);
  view = nullptr;
  CHECK(ends.ledger->ids == std::vector<uint64_t>{1});
}

// What an owner process sends along with its slab's descriptor.
struct Introduction {
  SlabAnnouncement slab;
  RegionRef region;
};

void send_with_fd(int socket, const Introduction& introduction, int fd) {
  iovec data{const_cast<Introduction*>(&introduction), sizeof introduction};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof fd)] = {};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  cmsghdr* const header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof fd);
  std::memcpy(CMSG_DATA(header), &fd, sizeof fd);
  if (sendmsg(socket, &message, 0) < 0) _exit(1);
}

Fd receive_with_fd(int socket, Introduction& introduction) {
  iovec data{&introduction, sizeof introduction};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  REQUIRE(recvmsg(socket, &message, MSG_CMSG_CLOEXEC) == sizeof introduction);
  int fd = -1;
  REQUIRE(CMSG_FIRSTHDR(&message));
  std::memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof fd);
  return Fd(fd);
}

TEST_CASE("lease: what a killed owner lent stays readable until the last view goes") {
  int sockets[2];
  REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets) == 0);
  const Fd ours(sockets[0]);
  Fd theirs(sockets[1]);
  const pid_t owner = fork();
  REQUIRE(owner >= 0);
  if (owner == 0) {
    auto arena = make_ref<Arena>(64 * kMiB, 16 * kMiB);
    auto block = arena->allocate(kMiB);
    if (!block) _exit(1);
    std::memset((*block)->data(), 'o', kMiB);
    const Slab& slab = (*block)->slab();
    send_with_fd(theirs.get(), {announcement(slab), (*block)->region()}, slab.fd());
    for (;;) pause();
  }
  theirs.reset();
  Introduction introduction;
  Fd slab = receive_with_fd(ours.get(), introduction);
  auto peer = make_ref<PeerArena>();
  REQUIRE(peer->add(std::move(slab), introduction.slab).ok());
  auto located = peer->locate(introduction.region);
  REQUIRE(located.ok());
  auto ledger = make_ref<Ledger>();
  auto view = LeasedView::make(*located, ledger, 1);
  REQUIRE(view.ok());

  REQUIRE(kill(owner, SIGKILL) == 0);
  REQUIRE(waitpid(owner, nullptr, 0) == owner);
  REQUIRE(peer->drop(introduction.slab.index, introduction.slab.generation).ok());
  located = Status();
  peer = nullptr;
  size_t sum = 0;
  for (const std::byte b : (*view)->bytes()) sum += b == std::byte{'o'};
  CHECK(sum == kMiB);
  view = Status();
  CHECK(ledger->ids.size() == 1);
}

TEST_CASE("private pages: a page fault of any thread is counted, reading again is none") {
  constexpr size_t kPages = 256;
  const size_t page = page_size();
  auto map = MemoryMap::map_lazily(-1, 2 * kPages * page, MAP_PRIVATE | MAP_ANONYMOUS);
  REQUIRE(map.ok());
  REQUIRE(madvise(map->data(), 2 * kPages * page, MADV_NOHUGEPAGE) == 0);
  volatile std::byte* const data = map->data();
  const auto write = [&](size_t from) {
    for (size_t i = 0; i < kPages; i++) data[(from + i) * page] = std::byte{1};
  };
  const uint64_t start = page_faults();
  REQUIRE(start != 0);
  write(0);
  const uint64_t written = page_faults();
  CHECK(written >= start + kPages);
  std::thread(write, kPages).join();
  const uint64_t before = page_faults();
  CHECK(before >= written + kPages);
  size_t seen = 0;
  for (size_t i = 0; i < 2 * kPages; i++) seen += static_cast<size_t>(data[i * page]);
  // The process may fault elsewhere meanwhile: an allocator's pages, a thread that ends.
  CHECK(page_faults() < before + kPages);
  CHECK(seen == 2 * kPages);
}

}  // namespace
}  // namespace tw

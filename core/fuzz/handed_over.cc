// SPDX-License-Identifier: Apache-2.0
// What a peer hands over beside the rings of shared memory: slabs, memory in them and memory of its
// own, and regions that name it. What is mapped lies within what was handed over, or the link ends.
#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <map>
#include <memory>
#include <optional>
#include <set>

#include "fuzz/fuzz.h"
#include "memory/memfd.h"
#include "transport/shm/ring.h"
#include "transport/shm/shm.h"

namespace tw {
namespace {

using fuzz::require;

constexpr size_t kCapacity = 4096;

Fd file_of(size_t size, int seals) {
  Fd file = make_memfd("fuzz", size).value();
  require(seal_memfd(file.get(), seals).ok(), "a file is sealed");
  return file;
}

// The files of all peers: they are sealed, so that no peer leaves another one anything.
struct Files {
  const Fd rings = file_of(ring_memory_size(kCapacity), kSharedSeals);
  const Ref<Slab> slab = Slab::make(0, 0, 4 * page_size()).value();
  const Fd memory = file_of(3 * page_size(), kSharedSeals);
  const Fd door = file_of(page_size(), kSharedSeals);
  const Fd no_door = file_of(page_size(), F_SEAL_SHRINK);
};

const Files& files() {
  static const Files all;
  return all;
}

class Peer {
 public:
  Peer() {
    int ends[2];
    require(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) == 0,
            "there are sockets");
    socket_.reset(ends[0]);
    ShmMessage rings;
    rings.frame.size = kCapacity;
    rings.descriptors.emplace_back(dup(files().rings.get()));
    end_ = ShmTransport::accept(Fd(ends[1]), std::move(rings), {}).value();
  }

  // One frame, or one question. False: the link has ended.
  bool step(fuzz::Input& input) {
    const uint8_t what = input.byte() % 8;
    const uint32_t slab = input.byte() % 2, generation = input.byte() % 3;
    const uint64_t region = 1 + input.byte() % 3u;
    wire::ShmFrame frame;
    frame.slab = slab;
    frame.generation = generation;
    switch (what) {
      case 0: {
        frame.type = wire::ShmFrameType::kSlab;
        const bool lies = input.byte() >= 250;
        frame.size = files().slab->size() + (lies ? page_size() : 0);
        if (!said(frame, files().slab->fd())) return false;
        // A newer one takes the place of an older one.
        require(!lies && (!live_[slab] || *live_[slab] < generation),
                "a slab is as announced, and new");
        live_[slab] = generation;
        return true;
      }
      case 1:
        frame.type = wire::ShmFrameType::kSlabGone;
        if (!said(frame)) return false;
        require(live_[slab] == generation, "a slab goes that was there");
        live_[slab].reset();
        return true;
      case 2:
      case 3: {
        frame.type = wire::ShmFrameType::kBlock;
        frame.size = region;
        const bool lies = input.byte() >= 250;
        if (!said(frame, lies ? files().no_door.get() : files().door.get())) return false;
        require(!lies && live_[slab] == generation, "memory lies in a slab that is there");
        require(!own_.contains(region) && blocks_.insert(region).second, "it comes once");
        return true;
      }
      case 4:
        frame.type = wire::ShmFrameType::kRegion;
        frame.slab = static_cast<uint32_t>(region);
        frame.generation = 0;
        frame.size = 3 * page_size();
        if (!said(frame, files().memory.get(), files().door.get())) return false;
        require(!blocks_.contains(region) && own_.insert(region).second, "it comes once");
        return true;
      case 5:
        return take(region);
      case 6:
        return take_block(region, number(input), number(input));
      default: {
        // Of any type, with a number of descriptors that it does not have.
        frame.type = static_cast<wire::ShmFrameType>(input.byte() % 9);
        frame.size = 1;
        require(wire::descriptors_of(frame) == 1 ? !said(frame) : !said(frame, files().door.get()),
                "nonsense ends the link");
        return false;
      }
    }
  }

 private:
  // Around the ends of the slab's pages; huge ones below zero.
  static uint64_t number(fuzz::Input& input) {
    const uint8_t page = input.byte();
    return page % 6 * page_size() +
           static_cast<uint64_t>(int64_t{static_cast<int8_t>(input.byte())});
  }

  template <class... Descriptor>
  bool said(const wire::ShmFrame& frame, Descriptor... descriptors) {
    const std::array<int, sizeof...(descriptors)> list{descriptors...};
    require(send_shm_frame(socket_.get(), frame, list).ok(), "a frame is sent");
    const auto taken = end_->take_over(99);
    if (taken) {
      require(!taken->memory, "nobody has handed that over");
      return true;
    }
    judge(taken.status());
    return false;
  }

  bool take(uint64_t region) {
    const auto taken = end_->take_over(region);
    require(taken.ok(), "to ask breaks nothing");
    require(static_cast<bool>(taken->memory) == (own_.erase(region) == 1), "it is handed out once");
    require(taken->why_not.ok() == static_cast<bool>(taken->memory), "nothing comes with a reason");
    if (taken->memory) touch(*taken->memory);
    return true;
  }

  bool take_block(uint64_t region, uint64_t offset, uint64_t length) {
    const auto taken = end_->take_over(region, offset, length);
    const bool there = blocks_.erase(region) == 1;
    const uint64_t size = files().slab->size();
    const bool fits = length != 0 && length <= size && offset <= size - length;
    if (!taken) {
      require(there && !fits, "what fits is no error");
      judge(taken.status());
      return false;
    }
    require(static_cast<bool>(taken->memory) == there, "it is handed out once");
    require(taken->why_not.ok() == there, "nothing comes with a reason");
    if (!there) return true;
    const MappedMemory& memory = *taken->memory;
    require(fits && memory.size() == length && !memory.writable(), "it is what was named");
    touch(memory);
    return true;
  }

  static void touch(const MappedMemory& memory) {
    std::byte sum{};
    for (size_t i = 0; i < memory.size(); i += 512) sum |= memory.data()[i];
    require((sum | memory.data()[memory.size() - 1]) == std::byte{}, "all of it can be read");
  }
  static void judge(const Status& status) {
    fuzz::require_sentence(status);
    require(status.code() == Code::kInternal || status.code() == Code::kInvalidArgument,
            "the only error is a broken protocol");
  }

  Fd socket_;
  std::unique_ptr<Transport> end_;
  std::map<uint32_t, std::optional<uint32_t>> live_;  // by slab, its generation
  std::set<uint64_t> blocks_, own_;                   // regions that nobody has asked for
};

void one(fuzz::Input input) {
  Peer peer;
  while (!input.empty() && peer.step(input)) {
  }
}

}  // namespace
}  // namespace tw

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  tw::one({data, size});
  return 0;
}

// SPDX-License-Identifier: Apache-2.0
#include "test/model/ring_programs.h"

#include <algorithm>
#include <memory>
#include <numeric>

namespace tw::model {
namespace {

std::vector<uint8_t> numbers(size_t from, size_t n) {
  std::vector<uint8_t> out(n);
  std::iota(out.begin(), out.end(), static_cast<uint8_t>(from));
  return out;
}

}  // namespace

void one_way(Program& program, SleepStyle style, size_t capacity,
             const std::vector<size_t>& messages, size_t room) {
  auto memory = std::make_shared<SharedMemory>(capacity);
  program.thread([=] {
    End end(*memory, 0, style);
    size_t sent = 1;
    for (const size_t size : messages) {
      end.send(numbers(sent, size), sent);
      sent += size;
    }
  });
  program.thread([=] {
    End end(*memory, 1, style);
    const size_t total = std::accumulate(messages.begin(), messages.end(), size_t{0});
    std::vector<uint8_t> bytes(room);
    for (size_t received = 0; received < total;) {
      end.checkpoint(received);
      const size_t n = end.read(bytes.data(), room);
      for (size_t i = 0; i < n; ++i) require(bytes[i] == ++received, "bytes out of order");
      if (n == 0) end.sleep();
    }
  });
}

void both_ways(Program& program, SleepStyle style, std::array<size_t, 2> bytes) {
  auto memory = std::make_shared<SharedMemory>(1);
  for (int side = 0; side < 2; ++side) {
    const size_t mine = bytes[static_cast<size_t>(side)];
    const size_t theirs = bytes[static_cast<size_t>(1 - side)];
    program.thread([=] {
      End end(*memory, side, style);
      const auto out = numbers(1, mine);
      size_t sent = 0;
      size_t received = 0;
      std::vector<uint8_t> in(theirs);
      while (sent < mine || received < theirs) {
        end.checkpoint(sent, received);
        const size_t moved_out = sent < mine ? end.write(out.data() + sent, mine - sent) : 0;
        const size_t moved_in = end.read(in.data(), in.size());
        for (size_t i = 0; i < moved_in; ++i) require(in[i] == ++received, "bytes out of order");
        sent += moved_out;
        if (moved_out + moved_in == 0) end.sleep();
      }
    });
  }
}

void lend(Program& program, SleepStyle style) {
  auto memory = std::make_shared<SharedMemory>(1);
  program.thread([=] {
    End end(*memory, 0, style);
    for (uint8_t round = 1; round <= 2; ++round) {
      for (Plain& byte : memory->lent) byte.write(round);
      end.send({round}, 2 * round);
      require(end.receive(2 * round + 1) == round, "another lease came home");
    }
    for (Plain& byte : memory->lent) byte.write(0);
  });
  program.thread([=] {
    End end(*memory, 1, style);
    for (uint8_t round = 1; round <= 2; ++round) {
      require(end.receive(2 * round) == round, "another descriptor");
      for (const Plain& byte : memory->lent) require(byte.read() == round, "stale payload");
      end.send({round}, 2 * round + 1);
    }
  });
}

// The two threads share one RingPair but none of its plain fields, so each may have a copy as long
// as the atomics are the same. Whenever the driver has slept it has the sender try again.
void driver_beside_sender(Program& program, SleepStyle style) {
  constexpr unsigned kEnd = 1;
  constexpr uint8_t kRetry = 2;  // bells
  constexpr uint8_t kTried = 3;
  constexpr size_t kBytes = 2;  // one more than there is room for
  auto memory = std::make_shared<SharedMemory>(1);
  auto done = std::make_shared<Plain>();

  program.thread([=] {
    std::optional<Shared> sharing(kEnd);
    End end(*memory, 0, style);
    sharing.reset();
    const auto bytes = numbers(1, kBytes);
    size_t sent = end.write(bytes.data(), bytes.size());
    while (sent != kBytes) {
      end.checkpoint(sent);
      wait(kRetry);
      sent += end.write(bytes.data() + sent, bytes.size() - sent);
      if (sent != kBytes) ring(kTried);
    }
    done->write(1);
    ring(kTried);
    ring(0);  // the driver may be asleep for good reason
  });
  program.thread([=] {
    std::optional<Shared> sharing(kEnd);
    End end(*memory, 0, style);
    sharing.reset();
    do {
      end.checkpoint(0);
      end.sleep();
      ring(kRetry);
      wait(kTried);
    } while (done->read() == 0);
  });
  program.thread([=] {
    End end(*memory, 1, style);
    require(end.receive(0) == 1, "bytes out of order");  // and makes room for all the others
  });
}

}  // namespace tw::model

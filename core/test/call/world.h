// SPDX-License-Identifier: Apache-2.0
// A server with its dispatcher and workers, and clients of it, in one process: real listeners,
// admissions, handshakes, links and calls, over each transport.
#pragma once

#include <doctest/doctest.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <list>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "call/blocking.h"
#include "link/staging.h"
#include "test/engine/patience.h"
#include "test/transport/pair.h"

namespace tw::test {

struct ShmWay {
  static constexpr const char* kName = "shm";
};
struct TcpWay {
  static constexpr const char* kName = "tcp";
};
struct LoopWay {
  static constexpr const char* kName = "loop";
};
// Large segments are fetched; without listener and handshake.
struct ReadWay {
  static constexpr const char* kName = "read";
};
// The end that accepted begins the calls, and the one that connected serves them.
struct TurnedWay {
  static constexpr const char* kName = "turned";
};
// The tables of transports: each case that takes a Way runs once for each. By the listener, and all
// that carry links.
#define TENSORWIRE_WAYS tw::test::ShmWay, tw::test::TcpWay
#define TENSORWIRE_LINKS TENSORWIRE_WAYS, tw::test::ReadWay, tw::test::LoopWay, tw::test::TurnedWay

inline Runtime& runtime() {
  auto got = Runtime::get();
  REQUIRE(got.ok());
  return **got;
}

// What an event queue has, at most `room` tokens.
inline Waited take_tokens(EventQueue& queue, std::vector<uint64_t>& tokens, size_t room,
                          Nanos deadline) {
  tokens.resize(room);
  size_t count = 0;
  const Waited taken = queue.take(tokens, count, deadline);
  tokens.resize(count);
  return taken;
}

inline std::vector<Ref<ServerPort>> ports_of(const Server& server) {
  std::vector<Ref<ServerPort>> ports;
  server.each_port([&](ServerPort& port) { ports.push_back(Ref<ServerPort>::share(&port)); });
  return ports;
}

// ---- payload ----
// payload

// Bytes that neighbours, and messages with another seed, do not have.
inline std::vector<std::byte> bytes_of(size_t size, uint32_t seed = 0) {
  std::vector<std::byte> bytes(size);
  for (size_t i = 0; i < size; ++i)
    bytes[i] = static_cast<std::byte>((i * 131 + seed * 17) ^ (i >> 9));
  return bytes;
}

inline bool same(const InSegment& got, std::span<const std::byte> expected) {
  return got.size == expected.size() &&
         (got.size == 0 || std::memcmp(got.data, expected.data(), got.size) == 0);
}

inline OutSegment out(std::span<const std::byte> bytes) {
  OutSegment segment;
  segment.data = bytes.data();
  segment.size = bytes.size();
  return segment;
}

inline std::vector<OutSegment> outs(std::span<const InSegment> segments) {
  std::vector<OutSegment> list;
  for (const InSegment& segment : segments) list.push_back(out({segment.data, segment.size}));
  return list;
}

// Too much to be copied: such a segment of arena memory is lent.
constexpr size_t kLent = 1 << 20;

// Arena memory with these bytes.
inline Ref<Block> block_of(std::span<const std::byte> bytes) {
  auto block = runtime().arena().allocate(bytes.size());
  REQUIRE(block.ok());
  std::memcpy((*block)->data(), bytes.data(), bytes.size());
  return std::move(*block);
}

// Hands things from one thread to another.
template <class T>
class Slot {
 public:
  void put(T thing) {
    {
      std::lock_guard lock(mutex_);
      things_.push_back(std::move(thing));
    }
    changed_.notify_all();
  }
  T take() {
    std::optional<T> thing = take_within(60 * kSecond);
    REQUIRE(thing.has_value());
    return std::move(*thing);
  }
  std::optional<T> take_within(Nanos time) {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, std::chrono::nanoseconds(time),
                           [this] { return !things_.empty(); }))
      return std::nullopt;
    std::optional<T> thing = std::move(things_.front());
    things_.pop_front();
    return thing;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<T> things_;
};

// ---- client ----
// client

struct Reply {
  Code code = Code::kOk;
  std::string details;
  decltype(InMessage::segments) segments;
  size_t payload_bytes = 0;
  ReceivedMetadata initial, trailing;
};

using Entries = std::vector<wire::MetadataEntry>;

inline Reply unary(CallPort& port, std::string_view method, std::vector<OutSegment> segments,
                   Nanos deadline = patience(), const Entries& metadata = {}) {
  Reply reply;
  Beginning beginning;
  beginning.method = method;
  beginning.metadata = metadata;
  beginning.payload = true;
  beginning.segments = segments;
  Ref<ClientCall> call;
  if (const auto done = unary(port, beginning, {deadline}, call); !done) {
    reply.code = done.status().code();
    reply.details = done.status().details();
    return reply;
  }
  REQUIRE(call->ended());
  InMessage message;
  if (call->take(message)) {
    reply.segments = std::move(message.segments);
    reply.payload_bytes = message.payload_bytes;
  }
  reply.initial = call->initial();
  reply.code = call->outcome().code;
  reply.details = call->outcome().details;
  reply.trailing = call->outcome().trailing;
  return reply;
}

// A wait of a test's own: running out of patience fails it, whoever waits.
inline bool in_time(Waited waited) {
  CHECK(waited != Waited::kTimeout);
  return waited == Waited::kDone;
}

// A started call whose messages follow one by one.
inline Ref<ClientCall> start(CallPort& port, std::string_view method, Nanos deadline = kForever,
                             const Entries& metadata = {}, bool until_read = false) {
  Beginning beginning;
  beginning.method = method;
  beginning.metadata = metadata;
  beginning.until_read = until_read;
  Ref<ClientCall> call;
  REQUIRE(start(port, beginning, {deadline}, call).ok());
  return call;
}

// Attempts with more and more time, until it was enough for what has to come before the deadline: a
// machine that has much else to do may let any deadline pass.
template <class Try>
void until_enough(Nanos time, Try&& attempt) {
  while (!attempt(time)) {
    REQUIRE(time < 60 * kSecond);
    time *= 4;
  }
}

// One message of a stream; false: the call has ended.
inline bool sent(const Result<bool>& done) {
  if (!done) CHECK(done.status().code() != Code::kDeadlineExceeded);
  return done.ok();
}

inline bool send(ClientCall& call, std::vector<OutSegment> segments, bool end = false) {
  return sent(send(call, segments, end, {patience()}));
}

inline bool send(ServerCall& call, std::vector<OutSegment> segments) {
  return sent(send(call, segments, {patience()}));
}

// The next message; false: none any more.
inline bool receive(Call& call, InMessage& message) {
  if (call.take(message)) return true;
  return in_time(call.wait_message(patience())) && call.take(message);
}

// ---- server ----
// server

inline bool finish(ServerCall& call, Code code = Code::kOk, std::string_view details = {},
                   const Entries& trailing = {}) {
  return call.finish(code, details, trailing);
}

inline bool answer(ServerCall& call, std::vector<OutSegment> segments,
                   const Entries& trailing = {}) {
  stage(call.link(), segments);
  return call.finish(Code::kOk, {}, trailing, true, segments);
}

inline void echo(ServerCall& call) {
  InMessage request;
  if (!receive(call, request)) return;
  answer(call, outs(request.segments));
}

// Takes links in, and serves nothing on them.
class Acceptor {
 public:
  explicit Acceptor(uint64_t max_message)
      : server_(Server::create(max_message).value()), driver_([this] {
          std::vector<Ref<ServerCall>> calls;
          while (server_->next(calls, 64, kForever) != Waited::kClosed) calls.clear();
        }) {}
  ~Acceptor() {
    server_->close();
    driver_.join();
  }
  Acceptor(const Acceptor&) = delete;
  Acceptor& operator=(const Acceptor&) = delete;

  Ref<CallPort> accept(meet::Connected connected) {
    server_->arrived(std::move(connected));
    auto ports = ports_of(*server_);
    REQUIRE(ports.size() == 1);
    return ports.front();
  }

 private:
  const Ref<Server> server_;
  std::thread driver_;
};

// A server, the thread in next(), and workers that run the handler for each call.
class House {
 public:
  // Handles one call, and may return the next one of the same link.
  using Handler = std::function<Ref<ServerCall>(Ref<ServerCall>)>;

  explicit House(Handler handler, int workers = 4,
                 uint64_t max_message = runtime().settings().max_message_bytes)
      : handler_(std::move(handler)),
        max_message_(max_message),
        server_(Server::create(max_message).value()) {
    auto path = server_->listener().listen_local();
    REQUIRE(path.ok());
    shm_ = "shm:" + *path;
    auto port = server_->listener().listen_tcp("127.0.0.1", 0);
    REQUIRE(port.ok());
    tcp_ = "tcp:127.0.0.1:" + std::to_string(*port);
    dispatcher_ = std::thread([this] { dispatch(); });
    for (int i = 0; i < workers; ++i) workers_.emplace_back([this] { work(); });
  }
  explicit House(void (*handler)(ServerCall&), int workers = 4)
      : House(
            [handler](Ref<ServerCall> call) {
              handler(*call);
              return Ref<ServerCall>{};
            },
            workers) {}
  ~House() {
    close();
    for (auto& worker : workers_) worker.join();
  }

  Server& server() { return *server_; }
  const std::string& shm() const { return shm_; }
  const std::string& tcp() const { return tcp_; }

  meet::Invitation invitation(std::string_view way, int connections = 1, Nanos ttl = 30 * kSecond) {
    auto ticket = server_->listener().admit(runtime().hello(), connections, ttl);
    REQUIRE(ticket.ok());
    meet::Invitation in;
    const bool local = runtime().kind(way)->socket() == Kind::Socket::kUnix;
    const std::string& door = local ? shm_ : tcp_;
    in.address = std::string(way) + door.substr(door.find(':'));
    in.session = ticket->session;
    in.secret = ticket->secret;
    in.instance = server_->instance();
    in.hello = runtime().hello();
    return in;
  }

  template <class Way>
  Ref<CallPort> connect(uint64_t max_message = runtime().settings().max_message_bytes,
                        uint64_t stream_window = wire::kMaxStreamWindow) {
    if constexpr (std::is_same_v<Way, TurnedWay>) {
      TransportPair pair = Shm::make(shm::Settings{runtime().settings()});
      meet::Connected theirs{std::move(pair.b), this_process()};
      theirs.peer.stream_window = std::min(theirs.peer.stream_window, stream_window);
      auto joined = server_->join({std::move(pair.a), this_process()}, max_message_);
      REQUIRE_MESSAGE(joined.ok(), joined.status().details());
      return acceptors_.emplace_back(max_message).accept(std::move(theirs));
    }
    auto connected = dial<Way>();
    REQUIRE_MESSAGE(connected.ok(), connected.status().details());
    auto& credit = connected->peer.stream_window;
    credit = std::min(credit, stream_window);
    auto link =
        CallPort::create(runtime(), std::move(connected->transport), std::move(connected->peer),
                         max_message, Link::Role::kClient, thresholds);
    REQUIRE(link.ok());
    return std::move(*link);
  }

  // Of the newest link of ReadWay: what plays its hardware, and the seeming death of one end.
  Ref<ReadDevice> device;
  shm::Settings read_settings{runtime().settings()};  // of the next
  Wanted thresholds;                                  // of links to come, but for TurnedWay's
  enum class End : uint8_t { kClient, kServer };
  void die(End end) {
    const uint64_t one = 1;
    REQUIRE(write(pidfds_[static_cast<size_t>(end)].get(), &one, sizeof one) == sizeof one);
  }

  // Ends the server and its dispatcher; handlers that are under way find their calls ended.
  void close() {
    if (!dispatcher_.joinable()) return;
    server_->close();
    dispatcher_.join();
    {
      std::lock_guard lock(mutex_);
      closed_ = true;
    }
    changed_.notify_all();
  }

 private:
  template <class Way>
  Result<meet::Connected> dial() {
    if constexpr (std::is_same_v<Way, ReadWay>) {
      device = make_ref<ReadDevice>();
      TransportPair pair = Read::make(read_settings, device);
      for (Fd& pidfd : pidfds_) pidfd = Fd(eventfd(0, EFD_CLOEXEC));
      const auto peer = [&](End end) {
        Peer other = this_process();
        other.pidfd = Fd(dup(pidfds_[static_cast<size_t>(end)].get()));
        return other;
      };
      server_->arrived({std::move(pair.b), peer(End::kClient)});
      return meet::Connected{std::move(pair.a), peer(End::kServer)};
    } else {
      return meet::connect(runtime(), invitation(Way::kName), patience());
    }
  }

  static Peer this_process() {
    Peer peer;
    peer.address = "unix:";
    peer.pid = getpid();
    return peer;
  }

  void dispatch() {
    std::vector<Ref<ServerCall>> calls;
    for (;;) {
      try {
        if (server_->next(calls, 64, kForever) == Waited::kClosed) return;
        std::lock_guard lock(mutex_);
        for (auto& call : calls) queue_.push_back(std::move(call));
      } catch (const std::bad_alloc&) {  // its own, as the ABI has it
      }
      calls.clear();
      changed_.notify_all();
    }
  }

  void work() {
    for (;;) {
      Ref<ServerCall> call;
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [this] { return closed_ || !queue_.empty(); });
        if (queue_.empty()) return;
        call = std::move(queue_.front());
        queue_.pop_front();
      }
      while (call) call = handler_(std::move(call));
    }
  }

  const Handler handler_;
  const uint64_t max_message_;
  const Ref<Server> server_;
  std::list<Acceptor> acceptors_;
  Fd pidfds_[2];
  std::string shm_, tcp_;
  std::thread dispatcher_;
  std::vector<std::thread> workers_;
  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::deque<Ref<ServerCall>> queue_;
  bool closed_ = false;
};

// A server whose calls the test takes and serves.
struct Open {
  Open()
      : house(
            [this](Ref<ServerCall> call) {
              calls.put(std::move(call));
              return Ref<ServerCall>{};
            },
            1) {}
  ~Open() { house.close(); }
  Slot<Ref<ServerCall>> calls;
  House house;
};

// Ends a link when its test does.
struct Closing {
  explicit Closing(Ref<CallPort> of) : link(std::move(of)) {}
  ~Closing() { link->link().close({Code::kCancelled, "the test is over"}); }
  CallPort* operator->() const { return link.get(); }
  CallPort& operator*() const { return *link; }
  const Ref<CallPort> link;
};

// Whether all arena memory beyond what was in use at the beginning has come home. Cases before may
// give theirs back meanwhile, so only a block itself tells that it is still on lease.
class ArenaWatch {
 public:
  bool restored() const {
    return eventually([this] { return runtime().arena().stats().used <= before_; });
  }

 private:
  const size_t before_ = runtime().arena().stats().used;
};

}  // namespace tw::test

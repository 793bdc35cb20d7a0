// SPDX-License-Identifier: Apache-2.0
// Servers and clients through the C ABI alone, in one process.
#pragma once

#include <doctest/doctest.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "tensorwire.h"
#include "test/engine/patience.h"

namespace tw::test::abi {

struct Shm {
  static constexpr const char* kName = "shm";
};
struct Tcp {
  static constexpr const char* kName = "tcp";
};
#define TENSORWIRE_ABI_WAYS tw::test::abi::Shm, tw::test::abi::Tcp

template <auto release>
struct Release {
  template <class T>
  void operator()(T* handle) const {
    release(handle);
  }
};
using Buffer = std::unique_ptr<tw_buffer, Release<tw_buffer_release>>;
using Message = std::unique_ptr<tw_message, Release<tw_message_release>>;
using Metadata = std::unique_ptr<tw_metadata, Release<tw_metadata_release>>;
using Link = std::unique_ptr<tw_link, Release<tw_link_release>>;
using Peer = std::unique_ptr<tw_peer, Release<tw_peer_release>>;
using Call = std::unique_ptr<tw_client_call, Release<tw_call_release>>;
using Served = std::unique_ptr<tw_server_call, Release<tw_call_release>>;
using Events = std::unique_ptr<tw_events, Release<tw_events_release>>;

// Running out of it fails a test.
inline constexpr tw_wait kPatience{60'000'000'000, nullptr, nullptr};
inline constexpr tw_wait kAtOnce{0, nullptr, nullptr};
inline constexpr tw_payload kNothing{};

inline std::string text_of(size_t size, unsigned seed = 0) {
  std::string text(size, '\0');
  for (size_t i = 0; i < size; ++i) text[i] = static_cast<char>((i * 131 + seed * 17) ^ (i >> 9));
  return text;
}

// A message of these segments, which must stay alive.
struct Payload {
  explicit Payload(const std::vector<std::string_view>& parts) {
    for (const auto part : parts) list.push_back({part.data(), part.size()});
  }
  operator tw_payload() const {  // implicit
    static const tw_segment none{};
    tw_payload out{};
    out.segments = list.empty() ? &none : list.data();
    out.count = list.size();
    return out;
  }
  std::vector<tw_segment> list;
};

inline std::string_view segment(const Message& message, size_t index = 0) {
  const tw_segment segment = tw_message_segment(message.get(), index);
  return {static_cast<const char*>(segment.data), segment.size};
}

struct Stats {
  std::string transport;
  std::map<std::string, uint64_t> values;
};
inline void visit_stats(void* stats, const tw_statistics* found) {
  auto& out = *static_cast<Stats*>(stats);
  out.transport = found->transport;
  size_t count;
  const tw_counter* const counters = tw_link_counters(&count);
  REQUIRE(found->count == count);
  for (size_t i = 0; i < count; ++i) out.values[counters[i].name] = found->values[i];
}
// A number of the memory's.
inline size_t arena(std::string_view name) {
  size_t count;
  const tw_counter* const counters = tw_memory_counters(&count);
  std::vector<uint64_t> values(count);
  REQUIRE(tw_arena(values.data(), count) == count);
  for (size_t i = 0; i < count; ++i)
    if (counters[i].name == name) return values[i];
  FAIL("no such number");
  return 0;
}
inline size_t arena_used() { return arena("used"); }

// All of them.
inline std::string_view details_of(const tw_client_call* call) {
  const char* details = nullptr;
  size_t size = 0;
  tw_call_details(call, &details, &size);
  return {details, size};
}

struct Reply {
  int code = TW_CODE_OK;
  std::string details;
  Message message;
  Metadata initial, trailing;
};

inline Reply unary(tw_peer* peer, std::string_view method, const tw_payload& payload,
                   const tw_wait* wait = &kPatience, const tw_pairs& metadata = {}) {
  tw_reply reply{};
  tw_status status{};
  Reply out;
  out.code = tw_peer_unary_into(peer, method.data(), method.size(), metadata, payload, nullptr, 0,
                                wait, &reply, &status);
  if (out.code != TW_CODE_OK) out.details = status.details;
  if (const Call call{reply.cut}) out.details = details_of(call.get());
  out.message.reset(reply.message);
  out.initial.reset(reply.initial);
  out.trailing.reset(reply.trailing);
  return out;
}

inline bool echoes(tw_link* link, size_t size = 1000) {
  const std::string text = text_of(size);
  const Reply reply = unary(link, "/t/Echo", Payload({text}));
  return reply.code == TW_CODE_OK && reply.message && segment(reply.message) == text;
}

inline Call start(tw_peer* peer, std::string_view method, const tw_wait* wait = nullptr) {
  tw_client_call* call = nullptr;
  REQUIRE(tw_peer_start(peer, method.data(), method.size(), {}, kNothing, 0, wait, &call,
                        nullptr) == TW_OK);
  return Call(call);
}

inline std::string_view method_of(tw_server_call* call) {
  const char* method;
  size_t size;
  tw_call_method(call, &method, &size);
  return {method, size};
}

inline Message receive(tw_call* call) {
  tw_message* message = nullptr;
  CHECK(tw_call_receive(call, &kPatience, &message, nullptr) == TW_OK);
  return Message(message);
}

inline int finish(tw_server_call* call, int code = TW_CODE_OK, std::string_view details = {},
                  const tw_payload& payload = kNothing, tw_server_call** next = nullptr) {
  return tw_call_finish(call, code, details.data(), details.size(), {}, payload, next, nullptr);
}

// Sends back what came.
inline void echo(tw_server_call* call, tw_server_call** next = nullptr) {
  const Message message = receive(call);
  if (!message) {
    (void)finish(call, TW_CODE_OK, {}, kNothing, next);
    return;
  }
  std::vector<std::string_view> parts;
  for (size_t i = 0; i < tw_message_count(message.get()); ++i) parts.push_back(segment(message, i));
  (void)finish(call, TW_CODE_OK, {}, Payload(parts), next);
}

// A server whose calls the test takes itself.
class Server {
 public:
  Server() {
    REQUIRE(tw_server_create(-1, &server_, nullptr) == TW_OK);
    char path[128];
    REQUIRE(tw_server_listen_local(server_, path, sizeof path, nullptr) == TW_OK);
    shm_ = "shm:" + std::string(path);
    int port = 0;
    REQUIRE(tw_server_listen_tcp(server_, "127.0.0.1", 0, &port, nullptr) == TW_OK);
    tcp_ = "tcp:127.0.0.1:" + std::to_string(port);
  }
  ~Server() { release(); }
  void release() {
    if (server_) tw_server_release(std::exchange(server_, nullptr));
  }
  tw_server* get() const { return server_; }

  // The next call, taken by this thread; null when the server was closed.
  Served next() {
    tw_server_call* call = nullptr;
    size_t count = 0;
    const int code = tw_server_next(server_, &kPatience, &call, 1, &count, nullptr);
    if (code != TW_OK) return nullptr;
    REQUIRE(count == 1);
    return Served(call);
  }

  // Drives the server on another thread until it has connected.
  Link connect(const char* way) {
    std::atomic<bool> done{false};
    std::thread driver([&] {
      const tw_wait briefly{1'000'000, nullptr, nullptr};
      while (!done) {
        tw_server_call* call;
        size_t count;
        (void)tw_server_next(server_, &briefly, &call, 1, &count, nullptr);
      }
    });
    Link link = dial(way);
    done = true;
    driver.join();
    return link;
  }

  // The same while somebody else drives the server.
  Link dial(const char* way, tw_server* serves = nullptr) {
    tw_link* link = nullptr;
    tw_status status{};
    REQUIRE_MESSAGE(try_dial(way, serves, &link, &status) == TW_OK, status.details);
    return Link(link);
  }
  int try_dial(const char* way, tw_server* serves, tw_link** link, tw_status* status) {
    uint8_t hello[TW_HELLO_SIZE], session[TW_SESSION_SIZE], secret[TW_SECRET_SIZE],
        instance[TW_INSTANCE_SIZE];
    REQUIRE(tw_hello(hello, nullptr) == TW_OK);
    REQUIRE(tw_server_admit(server_, hello, sizeof hello, "", 1, 60'000'000'000, session, secret,
                            nullptr) == TW_OK);
    tw_server_instance(server_, instance);
    const std::string& address = std::string_view(way) == "shm" ? shm_ : tcp_;
    const tw_invitation invitation{address.c_str(), session,      secret, instance,
                                   hello,           sizeof hello, -1,     {-1, -1, -1}};
    return tw_connect(&invitation, serves, kPatience.timeout_ns, link, status);
  }

 private:
  tw_server* server_ = nullptr;
  std::string shm_, tcp_;
};

// A server that handles each call on a thread of its own.
class House {
 public:
  using Handler = std::function<void(Served)>;
  explicit House(Handler handler = [](Served call) { echo(call.get()); })
      : handler_(std::move(handler)), dispatcher_([this] {
          while (Served call = server_.next()) handlers_.emplace_back(handler_, std::move(call));
        }) {}
  ~House() { close(); }
  void close() {
    if (!dispatcher_.joinable()) return;
    tw_server_close(server_.get());
    dispatcher_.join();
    for (auto& thread : handlers_) thread.join();
    handlers_.clear();
  }
  Server& server() { return server_; }
  Link dial(const char* way, tw_server* serves = nullptr) { return server_.dial(way, serves); }

 private:
  Server server_;
  const Handler handler_;
  std::vector<std::thread> handlers_;  // the dispatcher's until it has been joined
  std::thread dispatcher_;             // last: it uses all of the above
};

// How often owners were told.
struct Told {
  std::atomic<int>& times = tally();
  tw_owner owner() {
    return {[](void* tally) { ++*static_cast<std::atomic<int>*>(tally); }, &times};
  }
};

// A link with the server's call on it, and each end's peer: `here` is the client's.
struct Ends {
  explicit Ends(const char* way)
      : house([this](Served fresh) {
          std::unique_lock lock(mutex);
          held = std::move(fresh);
          there.reset(tw_call_process(held.get()));
          ready = true;
        }),
        link(house.dial(way)),
        here(tw_peer_share(link.get())),
        call(start(link.get(), "/t/Hold")) {
    REQUIRE(eventually([&] {
      std::unique_lock lock(mutex);
      return ready;
    }));
  }
  ~Ends() {
    call.reset();
    held.reset();
  }

  std::mutex mutex;
  bool ready = false;
  Served held;
  Peer there;
  House house;
  Link link;
  Peer here;
  Call call;
};

}  // namespace tw::test::abi

// SPDX-License-Identifier: Apache-2.0
// Reads the settings from the environment: one table row for each of them.
#include "base/settings.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <optional>
#include <string_view>

#include "base/text.h"
#include "base/usable_memory.h"

namespace tw {
namespace {

constexpr uint64_t kKi = uint64_t{1} << 10;
constexpr uint64_t kMi = uint64_t{1} << 20;
constexpr uint64_t kGi = uint64_t{1} << 30;
constexpr uint64_t kTi = uint64_t{1} << 40;

struct Variable {
  const char* name;
  std::string_view value;
};

// What a number has to be beside lying in its range.
enum class Shape { kAny, kPowerOfTwo, kMultipleOfGb };

struct Range {
  uint64_t lowest;
  uint64_t highest;
  Shape shape = Shape::kAny;
};

// An empty variable counts as one that is not set.
std::optional<Variable> lookup(const char* name) {
  const char* value = std::getenv(name);  // NOLINT(concurrency-mt-unsafe): once, at the start
  if (value == nullptr || *value == '\0') return std::nullopt;
  return Variable{name, value};
}

std::optional<uint64_t> parse_number(std::string_view digits) {
  uint64_t number = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  if (error != std::errc{} || end != digits.data() + digits.size()) return std::nullopt;
  return number;
}

// "4096", "4K", "4kb", "4 KiB": K, M, G and T are powers of 1024 however they are spelled.
std::optional<uint64_t> parse_size(std::string_view value) {
  const size_t end_of_digits = value.find_first_not_of("0123456789");
  const auto number = parse_number(value.substr(0, end_of_digits));
  if (!number || end_of_digits == std::string_view::npos) return number;
  std::string unit;
  for (const char c : value.substr(end_of_digits)) {
    if (c != ' ') unit += c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
  }
  uint64_t factor = 1;
  if (unit != "B") {
    const size_t power = unit.empty() ? std::string::npos : std::string("KMGT").find(unit[0]);
    const std::string rest = unit.empty() ? unit : unit.substr(1);
    if (power == std::string::npos || !(rest.empty() || rest == "B" || rest == "IB")) {
      return std::nullopt;
    }
    factor = uint64_t{1} << (10 * (power + 1));
  }
  if (*number > UINT64_MAX / factor) return UINT64_MAX;
  return *number * factor;
}

Status refuse(const Variable& variable, std::string_view permitted) {
  return {Code::kInvalidArgument,
          text({variable.name, "=", quoted(variable.value), " is not permitted: set ", permitted})};
}

bool fits(uint64_t number, const Range& range) {
  if (number < range.lowest || number > range.highest) return false;
  switch (range.shape) {
    case Shape::kAny:
      return true;
    case Shape::kPowerOfTwo:
      return (number & (number - 1)) == 0;
    case Shape::kMultipleOfGb:
      return number % kGi == 0;
  }
  return false;
}

std::string_view shape_text(Shape shape) {
  switch (shape) {
    case Shape::kAny:
      return "";
    case Shape::kPowerOfTwo:
      return ", a power of two";
    case Shape::kMultipleOfGb:
      return ", a multiple of 1073741824 (1 GB)";
  }
  return "";
}

std::string_view trimmed(std::string_view entry) {
  const size_t begin = entry.find_first_not_of(' ');
  if (begin == std::string_view::npos) return {};
  return entry.substr(begin, entry.find_last_not_of(' ') - begin + 1);
}

// "mlx5_0" or "mlx5_0:1".
bool device_entry(std::string_view entry) {
  const size_t colon = entry.find(':');
  const std::string_view name = entry.substr(0, colon);
  constexpr std::string_view kPermitted =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-";
  if (name.empty() || name.size() > 63) return false;
  if (name.find_first_not_of(kPermitted) != std::string_view::npos) return false;
  if (colon == std::string_view::npos) return true;
  const auto port = parse_number(entry.substr(colon + 1));
  return port && *port >= 1 && *port <= 255;
}

class Environment {
 public:
  // The first of two names that is set wins. False: neither is.
  bool size(size_t& out, const char* name, const Range& range, const char* guide_name = nullptr,
            const Range& guide_range = {}) {
    if (const auto variable = lookup(name)) {
      store(out, *variable, parse_size(variable->value), range);
    } else if (const auto guide = guide_name ? lookup(guide_name) : std::nullopt) {
      store(out, *guide, parse_size(guide->value), guide_range);
    } else {
      return false;
    }
    return true;
  }

  template <class T>
  void number(T& out, const char* name, const Range& range, T unit = 1) {
    const auto variable = lookup(name);
    if (!variable) return;
    const auto parsed = parse_number(variable->value);
    if (parsed && fits(*parsed, range)) {
      out = static_cast<T>(static_cast<T>(*parsed) * unit);
    } else {
      fail(refuse(*variable, text({"a whole number from ", range.lowest, " to ", range.highest,
                                   shape_text(range.shape)})));
    }
  }

  // Names of RDMA devices, each with a port or without.
  void devices(std::vector<std::string>& out, const char* name, const char* guide_name) {
    auto variable = lookup(name);
    if (!variable) variable = lookup(guide_name);
    if (!variable) return;
    std::vector<std::string> list;
    for (std::string_view rest = variable->value;;) {
      const size_t comma = rest.find(',');
      const std::string_view entry = trimmed(rest.substr(0, comma));
      if (!device_entry(entry)) {
        fail(refuse(*variable,
                    "names of RDMA devices (as ibv_devices lists them) with commas "
                    "between, each with :<port> behind it if you like"));
        return;
      }
      list.emplace_back(entry);
      if (comma == std::string_view::npos) break;
      rest.remove_prefix(comma + 1);
    }
    out = std::move(list);
  }

  // An absolute path, without slashes at its end.
  void folder(std::string& out, const char* name, size_t longest) {
    const auto variable = lookup(name);
    if (!variable) return;
    const size_t end = variable->value.find_last_not_of('/');
    const std::string_view value = variable->value.substr(0, end + 1);
    if (variable->value.front() == '/' && !value.empty() && value.size() <= longest) {
      out = value;
    } else {
      fail(refuse(*variable,
                  text({"the absolute path of a folder, of ", longest, " bytes at most"})));
    }
  }

  // The name of a congestion control, as the kernel spells them (at most 15 characters).
  void congestion(std::string& out, const char* name) {
    const auto variable = lookup(name);
    if (!variable) return;
    const bool good = variable->value.size() <= 15 &&
                      variable->value.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789_-") ==
                          std::string_view::npos;
    if (good) {
      out = variable->value;
    } else {
      fail(refuse(*variable,
                  "auto, system, or a name out of net.ipv4.tcp_available_congestion_control"));
    }
  }

  Status status;

 private:
  void store(size_t& out, const Variable& variable, std::optional<uint64_t> parsed,
             const Range& range) {
    if (parsed && fits(*parsed, range)) {
      out = *parsed;
      return;
    }
    fail(refuse(variable, text({"bytes, with K, M, G or T (of 1024) if you like, from ",
                                size_text(range.lowest), " to ", size_text(range.highest),
                                shape_text(range.shape)})));
  }

  void fail(Status why) {
    if (status.ok()) status = std::move(why);
  }
};

}  // namespace

Result<Settings> settings_from_environment() {
  Settings s;
  Environment from;
  // A coalesced or eager message is copied through bounded staging; beyond these sizes the copy
  // costs more than a rendezvous. A chunk may not exceed what a frame of the wire format carries.
  constexpr Range kCoalesce{0, kMi};
  constexpr Range kChunk{64 * kKi, 64 * kMi};
  from.size(s.coalesce_bytes, "TENSORWIRE_COALESCE_BYTES", kCoalesce, "TF_RDMA_ACC_SIZE",
            kCoalesce);
  from.size(s.eager_bytes, "TENSORWIRE_EAGER_BYTES", {0, kMi});
  from.size(s.chunk_bytes, "TENSORWIRE_CHUNK_BYTES", kChunk, "TF_RDMA_CHUNK_SIZE", kChunk);
  s.buffer_bytes = arena_share(usable_memory());
  const bool sized = from.size(s.buffer_bytes, "TENSORWIRE_BUFFER_BYTES", {kMi, kTi},
                               "TF_RDMA_BUF_SIZE", {kGi, kTi, Shape::kMultipleOfGb});
  s.unread_bytes = sized ? s.buffer_bytes : std::min(s.buffer_bytes, s.unread_bytes);
  s.pool_bytes = sized ? std::max(s.buffer_bytes, s.pool_bytes) : s.unread_bytes;
  from.size(s.pool_bytes, "TENSORWIRE_POOL_BYTES", {0, kTi});
  from.size(s.max_message_bytes, "TENSORWIRE_MAX_MESSAGE_BYTES", {kKi, 16 * kGi});
  from.size(s.stream_window_bytes, "TENSORWIRE_STREAM_WINDOW_BYTES", {64 * kKi, kGi});
  from.size(s.ring_bytes, "TENSORWIRE_RING_BYTES", {16 * kKi, 64 * kMi, Shape::kPowerOfTwo});
  from.number(s.spin, "TENSORWIRE_SPIN_US", {0, 10'000}, kMicrosecond);
  from.number(s.stall, "TENSORWIRE_STALL_SECONDS", {0, 86'400}, kSecond);
  from.number(s.trace_events, "TENSORWIRE_TRACE", {0, 10'000'000});
  if (const auto folder = lookup("TENSORWIRE_TRACE_FOLDER")) s.trace_folder = folder->value;
  from.folder(s.runtime_dir, "TENSORWIRE_RUNTIME_DIR", kLongestRuntimeDir);
  from.congestion(s.tcp_congestion, "TENSORWIRE_TCP_CONGESTION");
  from.devices(s.verbs_devices, "TENSORWIRE_VERBS_DEVICE", "TF_RDMA_DEV_NAME");
  from.number(s.verbs_gid_index, "TENSORWIRE_VERBS_GID_INDEX", {0, 255});
  from.number(s.verbs_pkey_index, "TENSORWIRE_VERBS_PKEY_INDEX", {0, 65535});
  from.number(s.verbs_mtu, "TENSORWIRE_VERBS_MTU", {256, 4096, Shape::kPowerOfTwo});
  from.number(s.verbs_service_level, "TENSORWIRE_VERBS_SERVICE_LEVEL", {0, 15});
  from.number(s.verbs_traffic_class, "TENSORWIRE_VERBS_TRAFFIC_CLASS", {0, 255});
  from.number(s.verbs_queue_depth, "TENSORWIRE_VERBS_QUEUE_DEPTH", {8, 4096});
  // 0 would wait for ever, and so would 7 retries.
  from.number(s.verbs_timeout, "TENSORWIRE_VERBS_TIMEOUT", {1, 31});
  from.number(s.verbs_retry_count, "TENSORWIRE_VERBS_RETRY_COUNT", {0, 6});
  from.number(s.verbs_inline_bytes, "TENSORWIRE_VERBS_INLINE_BYTES", {0, 1024});
  from.number(s.verbs_qps, "TENSORWIRE_VERBS_QPS", {1, 16});
  from.number(s.verbs_cqs, "TENSORWIRE_VERBS_CQS", {1, 64});
  if (!from.status.ok()) return from.status;
  return s;
}

}  // namespace tw

// SPDX-License-Identifier: Apache-2.0
#include "base/settings.h"

#include <algorithm>

#include "base/usable_memory.h"

namespace tw {
namespace {

using setting::Size, setting::Whole, setting::Words;

constexpr uint64_t kKi = uint64_t{1} << 10;
constexpr uint64_t kMi = uint64_t{1} << 20;
constexpr uint64_t kGi = uint64_t{1} << 30;
constexpr uint64_t kTi = uint64_t{1} << 40;

// An absolute path, without slashes at its end.
bool read_runtime_dir(std::string_view value, std::string& meant) {
  meant = value.substr(0, value.find_last_not_of('/') + 1);
  return value.front() == '/' && !meant.empty() && meant.size() <= kLongestRuntimeDir;
}
static_assert(kLongestRuntimeDir == 82, "what is permitted says so");

constexpr Setting kBuffer{
    "buffer_bytes",
    "TENSORWIRE_BUFFER_BYTES",
    Size{kMi, kTi},
    "the most memory that the arena holds. What finds no room there, or no lease, is pushed in "
    "chunks instead: slower, but nothing waits. Also the most that waits for a client which does "
    "not take its replies; where it is not set, that is 1G, or the arena's size if that is smaller",
    "a share of the memory",
    "TF_RDMA_BUF_SIZE",
    Size{kGi, kTi, setting::Shape::kMultipleOfGb}};
constexpr Setting kPool{
    "pool_bytes", "TENSORWIRE_POOL_BYTES", Size{0, kTi},
    "receive buffers that are kept to be used again, and again as much posted for bytes",
    "the size of the arena where that is set, and 1G at least; else 1G, or the arena's size if "
    "that is smaller"};

constexpr Setting kShared{
    "shared_memory_bytes", "TENSORWIRE_SHARED_MEMORY_BYTES", Size{kMi, kTi},
    "the most memory that is made for peers to access, as that of a remote host, beside the arena",
    "as TENSORWIRE_BUFFER_BYTES"};

constexpr Setting kCoalesce{
    "coalesce_bytes", "TENSORWIRE_COALESCE_BYTES",
    kCoalesceSizes,   "consecutive segments up to this size share a send. Less than 16K is best",
    nullptr,          "TF_RDMA_ACC_SIZE",
    kCoalesceSizes};
constexpr Setting kEager{"eager_bytes", "TENSORWIRE_EAGER_BYTES", kEagerSizes,
                         "up to this size, or to TENSORWIRE_COALESCE_BYTES if that is larger, a "
                         "segment is copied along. Larger ones go by lease, by RDMA reads, or in "
                         "chunks. By RDMA nothing below 4K is read, however low this is",
                         "16K; over shared memory 8K"};
constexpr Setting kChunk{
    "chunk_bytes",
    "TENSORWIRE_CHUNK_BYTES",
    kChunkSizes,
    "the pieces in which large segments travel between hosts: by RDMA of this size, several "
    "under way together; by TCP one after the other, and small messages pass between. Shared "
    "memory does not cut them",
    "4M; by TCP 1M",
    "TF_RDMA_CHUNK_SIZE",
    kChunkSizes};

bool read_link_tuning(std::string_view value, std::string&) {
  return value == "auto" || value == "off" || value.find('/') != std::string_view::npos;
}

bool read_tune_online(std::string_view value, std::string&) {
  return value == "on" || value == "off";
}

constexpr SettingOf<Settings> kSettings[] = {
    {&Settings::runtime_dir,
     {"runtime_dir", "TENSORWIRE_RUNTIME_DIR",
      Words{"the absolute path of a folder, of 82 bytes at most", read_runtime_dir},
      "of a server: the folder in which it makes its socket for shared memory; one that cannot be "
      "used is an error. Of a client: where it looks for the server's socket that is not at the "
      "path which the server has told, because the folder is mounted elsewhere",
      "XDG_RUNTIME_DIR, else /tmp"}},
    {&Settings::buffer_bytes, kBuffer},
    {&Settings::pool_bytes, kPool},
    {&Settings::shared_memory_bytes, kShared},
    {&Settings::max_message_bytes,
     {"max_message_bytes", "TENSORWIRE_MAX_MESSAGE_BYTES", Size{kKi, 16 * kGi},
      "the largest message that is accepted. grpc.max_receive_message_length of a channel or "
      "server wins"}},
    {&Settings::stream_window_bytes,
     {"stream_window_bytes", "TENSORWIRE_STREAM_WINDOW_BYTES", Size{64 * kKi, kGi},
      "what a stream may have under way before its receiver takes it"}},
    {&Settings::coalesce_bytes, kCoalesce},
    {&Settings::eager_bytes, kEager},
    {&Settings::chunk_bytes, kChunk},
    {&Settings::link_tuning,
     {"link_tuning", "TENSORWIRE_LINK_TUNING",
      Words{"auto, off or the path of a table, with a /", read_link_tuning},
      "the table of tensorwire tune links, which says the three sizes above for links of a "
      "transport where nobody sets them. auto: links.table in the folder tensorwire of "
      "XDG_CACHE_HOME, or of ~/.cache, where that is there",
      "auto"}},
    {&Settings::tune_online,
     {"tune_online", "TENSORWIRE_TUNE_ONLINE", Words{"on or off", read_tune_online},
      "on: where nobody sets TENSORWIRE_EAGER_BYTES, some calls whose size is close to it go the "
      "other way, and links take a size by which calls are faster. off: it stays while a link "
      "lives"}},
    {&Settings::stall,
     {"stall_seconds", "TENSORWIRE_STALL_SECONDS", Whole{0, 86'400, setting::Shape::kAny, kSecond},
      "a link is lost when its peer takes nothing for so many seconds of what waits for it; 0: "
      "never"}},
    {&Settings::silence,
     {"silence_seconds", "TENSORWIRE_SILENCE_SECONDS",
      Whole{1, 3'600, setting::Shape::kAny, kSecond},
      "a link between hosts is lost when the peer's host answers nothing for so many seconds"}},
    {&Settings::group_silence,
     {"group_silence_seconds", "TENSORWIRE_GROUP_SILENCE_SECONDS",
      Whole{0, 3'600, setting::Shape::kAny, kSecond},
      "the same of links over TCP between ranks of a group, while one waits for others. 0: as "
      "TENSORWIRE_SILENCE_SECONDS"}},
    {&Settings::spin,
     {"spin_us", "TENSORWIRE_SPIN_US", Whole{0, 10'000, setting::Shape::kAny, kMicrosecond},
      "how many microseconds a waiting thread polls at most before it sleeps"}},
    {&Settings::trace_events,
     {"trace_events", "TENSORWIRE_TRACE", Whole{0, 10'000'000},
      "protocol steps that each link keeps"}},
    {&Settings::trace_folder,
     {"trace_folder", "TENSORWIRE_TRACE_FOLDER", Words{"a folder"},
      "where links leave their traces when they end"}},
};

}  // namespace

Result<Settings> settings_from_environment() {
  Settings s;
  if (Status status = read_settings(kSettings, s); !status.ok()) return status;
  const bool sized = is_set(kBuffer);
  if (!sized) s.buffer_bytes = arena_share(usable_memory());
  s.coalesce_given = is_set(kCoalesce);
  s.eager_given = is_set(kEager);
  s.chunk_given = is_set(kChunk);
  const Settings usual;
  s.unread_bytes = sized ? s.buffer_bytes : std::min(s.buffer_bytes, usual.unread_bytes);
  if (!is_set(kPool))
    s.pool_bytes = sized ? std::max(s.buffer_bytes, usual.pool_bytes) : s.unread_bytes;
  if (!is_set(kShared)) s.shared_memory_bytes = s.buffer_bytes;
  return s;
}

void each_setting(const Settings& in_force, const VisitSetting& visit) {
  each_setting(kSettings, in_force, visit);
}

}  // namespace tw

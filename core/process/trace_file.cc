// SPDX-License-Identifier: Apache-2.0
#include "process/trace_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string_view>

namespace tw {
namespace {

const char* direction(bool sent) { return sent ? "sent" : "received"; }

bool write_all(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(fd, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return false;
    bytes.remove_prefix(static_cast<size_t>(n));
  }
  return true;
}

// A new file, never one that is there, nor what a link of that name leads to: whoever may write to
// the folder must not choose what this process writes to. Of an earlier process with this number
// there may be one.
Fd new_file(const std::string& folder) {
  constexpr int kTries = 100;
  for (int i = 0; i < kTries; ++i) {
    const std::string path = folder + "/" + std::to_string(getpid()) +
                             (i == 0 ? "" : "-" + std::to_string(i)) + ".jsonl";
    Fd file(
        open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_APPEND | O_CLOEXEC, 0600));
    if (file || errno != EEXIST) return file;
  }
  return {};
}

}  // namespace

std::string quoted_json(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += static_cast<unsigned char>(c) < 0x20 ? '?' : c;
  }
  return out + '"';
}

std::string trace_line(const TracedLink& link, const Trace::Record& record) {
  std::string out = "{\"pid\":" + std::to_string(getpid()) + ",\"role\":" + quoted_json(link.role) +
                    ",\"transport\":" + quoted_json(link.transport) +
                    ",\"peer\":" + quoted_json(link.peer) +
                    ",\"total\":" + std::to_string(record.total) + ",\"thresholds\":{";
  for (size_t i = 0; i < kThresholds; ++i)
    out += (i == 0 ? "" : ",") + quoted_json(name_of(static_cast<Threshold>(i))) + ":[" +
           std::to_string(link.thresholds.bytes[i]) + "," +
           quoted_json(name_of(link.thresholds.sources[i])) + "]";
  out += "},\"steps\":{";
  for (const bool sent : {true, false}) {
    out += sent ? "" : ",";
    out += quoted_json(direction(sent)) + ":{";
    bool first = true;
    for (size_t i = 0; i < kTraceSteps; ++i) {
      const Trace::Sum& sum = record.sums[sent][i];
      if (sum.count == 0) continue;
      if (!first) out += ',';
      first = false;
      out += quoted_json(name_of(static_cast<TraceStep>(i))) + ":[" + std::to_string(sum.count) +
             "," + std::to_string(sum.bytes) + "]";
    }
    out += '}';
  }
  out += "},\"events\":[";
  for (const TraceEvent& event : record.events) {
    if (&event != record.events.data()) out += ',';
    out += '[' + std::to_string(event.time) + ',' + quoted_json(direction(event.sent)) + ',' +
           quoted_json(name_of(event.step));
    for (const uint64_t number :
         {event.stream, event.message, uint64_t{event.segment}, event.bytes, event.id})
      out += ',' + std::to_string(number);
    out += ']';
  }
  return out + "]}\n";
}

void TraceFile::add(const TracedLink& link, const Trace::Record& record) {
  if (wanted()) add(trace_line(link, record));
}

void TraceFile::add(std::string_view line) {
  if (!wanted()) return;
  const MutexLock lock(mutex_);
  if (failed_) return;
  if (!file_) file_ = new_file(folder_);
  if (file_ && write_all(file_.get(), line)) return;
  failed_ = true;
  std::fprintf(stderr, "tensorwire: cannot write a trace into %s: %s\n", folder_.c_str(),
               std::strerror(errno));
}

}  // namespace tw

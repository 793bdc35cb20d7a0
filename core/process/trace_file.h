// SPDX-License-Identifier: Apache-2.0
// Leaves the traces of ended links in a folder: a file for each process, in it a line of JSON for
// each link.
#pragma once

#include <string>
#include <string_view>

#include "base/fd.h"
#include "base/mutex.h"
#include "base/trace.h"
#include "message/thresholds.h"

namespace tw {

struct TracedLink {
  const char* role;  // of this end: client, server
  const char* transport;
  std::string peer;
  Thresholds thresholds{};
};

// Thread-safe. Whoever cannot write says so once, on stderr: nobody waits for what is left here.
class TraceFile {
 public:
  // Empty: nothing is left anywhere.
  explicit TraceFile(std::string folder) : folder_(std::move(folder)) {}

  bool wanted() const { return !folder_.empty(); }
  void add(const TracedLink& link, const Trace::Record& record);
  // A line of JSON, with the process's id in it, of what else there is to tell.
  void add(std::string_view line);

 private:
  const std::string folder_;
  Mutex mutex_;  // guards what follows
  Fd file_ TW_GUARDED_BY(mutex_);
  bool failed_ TW_GUARDED_BY(mutex_) = false;
};

std::string quoted_json(std::string_view text);

// As one line. Thresholds: name to [bytes, source]; steps: name to [count, bytes]; events: [time
// ns, "sent" or "received", step, stream, message, segment, bytes, id].
std::string trace_line(const TracedLink& link, const Trace::Record& record);

}  // namespace tw

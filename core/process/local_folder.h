// SPDX-License-Identifier: Apache-2.0
// A folder for a server's local socket, which only this user may enter.
#pragma once

#include <string>

#include "base/fd.h"
#include "base/fork.h"
#include "base/status.h"

namespace tw {

// Goes with the object, and what is in it; not in a forked child. Servers that are killed leave
// theirs behind, which the next one to make a folder removes: each carries a mark, an empty file
// that is written under a lock on the folder, and a living owner holds that lock. Whatever lacks
// the mark is somebody else's and left alone.
class LocalFolder {
 public:
  // Below base(wished). UNAVAILABLE.
  static Result<LocalFolder> make(const std::string& wished);
  // `wished` (Settings::runtime_dir), whatever it is; where that is empty XDG_RUNTIME_DIR, or /tmp
  // where that is not set, cannot be written to, or is too long for a socket's address.
  static std::string base(const std::string& wished);
  // Where the socket at `path` is found by who has its base at `wished`: another container, to
  // which the same folder is another path. Empty: nowhere else.
  static std::string elsewhere(const std::string& path, const std::string& wished);
  LocalFolder(LocalFolder&& other) noexcept = default;
  LocalFolder& operator=(LocalFolder&&) = delete;
  ~LocalFolder();

  // Of the one socket in it.
  std::string socket() const { return path_ + "/s"; }

 private:
  LocalFolder(std::string path, Fd lock) : path_(std::move(path)), lock_(std::move(lock)) {}

  Birthplace home_;
  std::string path_;
  Fd lock_;  // the folder itself, locked; empty once it was moved from
};

}  // namespace tw

// SPDX-License-Identifier: Apache-2.0
#include "process/local_folder.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <memory>
#include <string_view>

#include "base/settings.h"

namespace tw {
namespace {

constexpr std::string_view kPrefix = "tensorwire-link-";
constexpr char kSocket[] = "s";
constexpr char kMark[] = "tensorwire-link";
// Entries of the folder that all share. Whoever fills it delays a server's start by a tenth of a
// second at most.
constexpr int kMostEntries = 100'000;

static_assert(kLongestRuntimeDir + kPrefix.size() + sizeof "/XXXXXX/s" <=
              sizeof(sockaddr_un::sun_path));

bool usable(const std::string& base) {
  return base.starts_with('/') && base.size() <= kLongestRuntimeDir &&
         ::faccessat(AT_FDCWD, (base + "/.").c_str(), W_OK | X_OK, AT_EACCESS) == 0;
}

// Whether `folder` has an entry `name` that is of this user and of the kind `type` (S_IF...).
bool has(const Fd& folder, const char* name, mode_t type) {
  struct stat facts{};
  return ::fstatat(folder.get(), name, &facts, AT_SYMLINK_NOFOLLOW) == 0 &&
         facts.st_uid == ::geteuid() && (facts.st_mode & S_IFMT) == type;
}

bool marked(const Fd& folder) { return has(folder, kMark, S_IFREG); }

// The mark goes last, so that a removal that was cut short is finished by the next one.
void remove(const Fd& folder, const std::string& path) {
  if (has(folder, kSocket, S_IFSOCK)) ::unlinkat(folder.get(), kSocket, 0);
  ::unlinkat(folder.get(), kMark, 0);
  ::rmdir(path.c_str());
}

void remove_what_was_left(const std::string& base) {
  const std::unique_ptr<DIR, int (*)(DIR*)> list(::opendir(base.c_str()), ::closedir);
  if (!list) return;
  const Fd here(::fcntl(::dirfd(list.get()), F_DUPFD_CLOEXEC, 0));
  for (int i = 0; i < kMostEntries; ++i) {
    const dirent* const entry = ::readdir(list.get());
    if (!entry) return;
    if (!std::string_view(entry->d_name).starts_with(kPrefix)) continue;
    if (!has(here, entry->d_name, S_IFDIR)) continue;
    const Fd folder(
        ::openat(here.get(), entry->d_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    // A folder without a mark may be about to be locked by its maker. Once more under the lock:
    // another process may have been removing it.
    if (!folder || !marked(folder) || ::flock(folder.get(), LOCK_EX | LOCK_NB) != 0) continue;
    if (marked(folder)) remove(folder, base + "/" + entry->d_name);
  }
}

}  // namespace

std::string LocalFolder::base(const std::string& wished) {
  if (!wished.empty()) return wished;
  const char* const session = std::getenv("XDG_RUNTIME_DIR");
  std::string base = session ? session : "";
  while (base.ends_with('/')) base.pop_back();
  return usable(base) ? base : "/tmp";
}

std::string LocalFolder::elsewhere(const std::string& path, const std::string& wished) {
  const size_t socket = path.rfind('/');
  if (wished.empty() || socket == std::string::npos || socket == 0) return {};
  const size_t folder = path.rfind('/', socket - 1);
  if (folder == std::string::npos) return {};
  const std::string_view name = std::string_view(path).substr(folder + 1, socket - folder - 1);
  if (!name.starts_with(kPrefix) || path.substr(socket + 1) != kSocket) return {};
  std::string found = wished + path.substr(folder);
  return found == path ? std::string() : found;
}

Result<LocalFolder> LocalFolder::make(const std::string& wished) {
  const std::string base = LocalFolder::base(wished);
  remove_what_was_left(base);
  std::string path = base + "/" + std::string(kPrefix) + "XXXXXX";
  // mkdtemp makes it 0700.
  if (!::mkdtemp(path.data())) {
    const std::string who = wished.empty() ? "" : " (TENSORWIRE_RUNTIME_DIR)";
    return errno_status(Code::kUnavailable, "cannot make a folder like " + path + who, errno);
  }
  LocalFolder folder(std::move(path), Fd());
  folder.lock_.reset(::open(folder.path_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!folder.lock_ || ::flock(folder.lock_.get(), LOCK_EX | LOCK_NB) != 0 ||
      !Fd(::openat(folder.lock_.get(), kMark, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600))) {
    const int error = errno;
    if (!folder.lock_) ::rmdir(folder.path_.c_str());
    return errno_status(Code::kUnavailable, "cannot lock and mark " + folder.path_, error);
  }
  return folder;
}

LocalFolder::~LocalFolder() {
  if (lock_ && home_.here()) remove(lock_, path_);
}

}  // namespace tw

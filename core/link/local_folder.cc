#include "link/local_folder.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <ctime>
#include <memory>
#include <string_view>

namespace tw::link {
namespace {

constexpr std::string_view kPrefix = "tensorwire-";
constexpr int kMostLookedAt = 256;
// Between the making of a folder and its lock it looks like one that was left behind.
constexpr time_t kYoungSeconds = 60;

void remove(const Fd& folder, const std::string& path) {
  ::unlinkat(folder.get(), "s", 0);
  ::rmdir(path.c_str());
}

void remove_what_was_left(const std::string& base) {
  const std::unique_ptr<DIR, int (*)(DIR*)> list(::opendir(base.c_str()), ::closedir);
  if (!list) return;
  int looked_at = 0;
  while (const dirent* entry = ::readdir(list.get())) {
    if (!std::string_view(entry->d_name).starts_with(kPrefix)) continue;
    if (++looked_at > kMostLookedAt) return;
    const Fd folder(::openat(::dirfd(list.get()), entry->d_name,
                             O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    struct stat facts{};
    if (!folder || ::fstat(folder.get(), &facts) != 0 || facts.st_uid != ::geteuid()) continue;
    if (::time(nullptr) - facts.st_mtime < kYoungSeconds) continue;
    if (::flock(folder.get(), LOCK_EX | LOCK_NB) != 0) continue;
    remove(folder, base + "/" + entry->d_name);
  }
}

}  // namespace

Result<LocalFolder> LocalFolder::make() {
  const char* const wished = std::getenv("XDG_RUNTIME_DIR");
  std::string base = wished && *wished ? wished : "/tmp";
  const std::string name = "/" + std::string(kPrefix) + "XXXXXX";
  if (base.size() + name.size() + sizeof "/s" > sizeof(sockaddr_un::sun_path)) base = "/tmp";
  remove_what_was_left(base);
  std::string path = base + name;
  // mkdtemp makes it 0700.
  if (!::mkdtemp(path.data()))
    return errno_status(Code::kUnavailable, "cannot make a folder like " + path, errno);
  Fd lock(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!lock || ::flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
    const int error = errno;
    ::rmdir(path.c_str());
    return errno_status(Code::kUnavailable, "cannot lock " + path, error);
  }
  return LocalFolder(std::move(path), std::move(lock));
}

LocalFolder::~LocalFolder() {
  if (lock_ && home_.here()) remove(lock_, path_);
}

}  // namespace tw::link

// SPDX-License-Identifier: Apache-2.0
// Folders for sockets: what killed servers leave behind goes, and nothing else does.
#include "process/local_folder.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>

#include "test/process.h"

namespace tw::test {
namespace {

namespace fs = std::filesystem;
using Path = std::array<char, 200>;

// Where folders are made while this lives, for this process and its helpers.
class Base {
 public:
  Base() {
    char name[] = "/tmp/tensorwire-test-XXXXXX";
    REQUIRE(mkdtemp(name) != nullptr);
    path_ = name;
    if (const char* set = std::getenv("XDG_RUNTIME_DIR")) before_ = set;
    setenv("XDG_RUNTIME_DIR", path_.c_str(), 1);
  }
  ~Base() {
    if (before_.empty())
      unsetenv("XDG_RUNTIME_DIR");
    else
      setenv("XDG_RUNTIME_DIR", before_.c_str(), 1);
    fs::remove_all(path_);
  }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }
  std::set<std::string> names() const {
    std::set<std::string> out;
    for (const auto& entry : fs::directory_iterator(path_)) out.insert(entry.path().filename());
    return out;
  }

 private:
  std::string path_, before_;
};

void bind_socket(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.c_str(), path.size());
  const Fd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  REQUIRE(::bind(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
}

void write_file(const std::string& path) { REQUIRE(std::ofstream(path).put('x').good()); }

std::string folder_of(const LocalFolder& folder) {
  return fs::path(folder.socket()).parent_path().string();
}

// Makes a folder with its socket, as a server does, and leaves it when it is killed.
TEST_CASE("helper: owns a local folder" * doctest::skip()) {
  const auto folder = LocalFolder::make({});
  REQUIRE(folder.ok());
  bind_socket(folder->socket());
  Path path{};
  std::memcpy(path.data(), folder_of(*folder).data(), folder_of(*folder).size());
  write_thing(kToTest, path);
  read_thing<char>(kFromTest);
}

}  // namespace

TEST_CASE("local folder: it goes with its owner") {
  const Base base;
  {
    const auto folder = LocalFolder::make({});
    REQUIRE(folder.ok());
    bind_socket(folder->socket());
    CHECK(base.names().size() == 1);
    struct stat facts{};
    REQUIRE(stat(folder_of(*folder).c_str(), &facts) == 0);
    CHECK((facts.st_mode & 0777) == 0700);
  }
  CHECK(base.names().empty());
}

TEST_CASE("local folder: it is where it is wished, or not at all") {
  const Base base;
  fs::create_directory(base / "wished");
  {
    const auto folder = LocalFolder::make(base / "wished");
    REQUIRE(folder.ok());
    CHECK(fs::path(folder_of(*folder)).parent_path() == base / "wished");
  }
  const auto none = LocalFolder::make(base / "nowhere");
  REQUIRE_FALSE(none.ok());
  CHECK(none.status().code() == Code::kUnavailable);
  CHECK(none.status().details().find("(TENSORWIRE_RUNTIME_DIR)") != std::string::npos);
  CHECK(none.status().details().find(base / "nowhere") != std::string::npos);
}

TEST_CASE("local folder: a session's folder that is of no use gives way to /tmp") {
  const Base base;
  const std::string good = base / "";
  CHECK(LocalFolder::base({}) + "/" == good);
  setenv("XDG_RUNTIME_DIR", good.c_str(), 1);
  CHECK(LocalFolder::base({}) + "/" == good);
  write_file(base / "file");
  const std::string long_name(80, 'x');
  fs::create_directory(base / long_name);
  for (const std::string& bad :
       {base / "nowhere", base / "file", std::string("relative"), base / long_name}) {
    setenv("XDG_RUNTIME_DIR", bad.c_str(), 1);
    CHECK(LocalFolder::base({}) == "/tmp");
    const auto folder = LocalFolder::make({});
    REQUIRE(folder.ok());
    CHECK(folder_of(*folder).starts_with("/tmp/tensorwire-link-"));
  }
}

TEST_CASE("local folder: a socket is looked for elsewhere by the folder's own name only") {
  const std::string told = "/run/tw/tensorwire-link-ab12cd/s";
  CHECK(LocalFolder::elsewhere(told, "/mnt") == "/mnt/tensorwire-link-ab12cd/s");
  CHECK(LocalFolder::elsewhere(told, "/run/tw").empty());
  CHECK(LocalFolder::elsewhere(told, "").empty());
  for (const char* strange : {"", "s", "/s", "/run/docker.sock", "/run/other/s",
                              "tensorwire-link-a/s", "/run/tensorwire-link-ab12cd/other"})
    CHECK(LocalFolder::elsewhere(strange, "/mnt").empty());
}

TEST_CASE("local folder: what killed servers left behind is removed") {
  const Base base;
  Helper killed("owns a local folder"), alive("owns a local folder");
  const std::string left = killed.hear<Path>().data(), owned = alive.hear<Path>().data();
  killed.kill();
  CHECK(fs::exists(left));
  const auto next = LocalFolder::make({});
  REQUIRE(next.ok());
  CHECK_FALSE(fs::exists(left));
  CHECK(fs::exists(owned + "/s"));
}

TEST_CASE("local folder: what only looks like one is left alone") {
  const Base base;
  // Empty, with a user's file, and with a socket: as old as can be, and without a mark.
  fs::create_directory(base / "tensorwire-train-abc123");
  fs::create_directory(base / "tensorwire-mydata");
  write_file(base / "tensorwire-mydata/s");
  fs::create_directory(base / "tensorwire-link-abc123");
  bind_socket(base / "tensorwire-link-abc123/s");
  // A mark in a folder of another name, and one that is none of ours.
  fs::create_directory(base / "tensorwire-abc123");
  write_file(base / "tensorwire-abc123/tensorwire-link");
  fs::create_directories(base / "tensorwire-link-folder/tensorwire-link");
  fs::create_directory(base / "tensorwire-link-symbol");
  fs::create_symlink(base / "tensorwire-mydata/s", base / "tensorwire-link-symbol/tensorwire-link");
  // A link to a folder that has all of it.
  fs::create_directory(base / "elsewhere");
  write_file(base / "elsewhere/tensorwire-link");
  bind_socket(base / "elsewhere/s");
  fs::create_directory_symlink(base / "elsewhere", base / "tensorwire-link-away12");
  for (const auto& entry : fs::directory_iterator(base / ""))
    fs::last_write_time(entry.path(), fs::file_time_type::clock::now() - std::chrono::hours(24));
  const auto before = base.names();
  const auto folder = LocalFolder::make({});
  REQUIRE(folder.ok());
  auto after = base.names();
  after.erase(fs::path(folder_of(*folder)).filename());
  CHECK(after == before);
  CHECK(fs::exists(base / "tensorwire-mydata/s"));
  CHECK(fs::exists(base / "tensorwire-link-abc123/s"));
  CHECK(fs::exists(base / "elsewhere/s"));
}

TEST_CASE("local folder: a user's file in a folder that was left behind stays") {
  const Base base;
  Helper killed("owns a local folder");
  const std::string left = killed.hear<Path>().data();
  killed.kill();
  write_file(left + "/notes");
  REQUIRE(fs::remove(left + "/s"));
  write_file(left + "/s");
  REQUIRE(LocalFolder::make({}).ok());
  CHECK(fs::exists(left + "/notes"));
  CHECK(fs::exists(left + "/s"));
}

TEST_CASE("local folder: a crowd of others does not stop the sweep") {
  const Base base;
  Helper killed("owns a local folder");
  const std::string left = killed.hear<Path>().data();
  killed.kill();
  for (int i = 0; i < 300; ++i) {
    const std::string path = base / ("tensorwire-link-" + std::to_string(100'000 + i));
    fs::create_directory(path);
    write_file(path + "/tensorwire-link");
    // Another user's, as far as this process may give them away; else without a mark.
    if (geteuid() == 0) REQUIRE(chown(path.c_str(), 12345, 12345) == 0);
    if (geteuid() != 0) fs::remove(path + "/tensorwire-link");
  }
  const auto next = LocalFolder::make({});
  REQUIRE(next.ok());
  CHECK_FALSE(fs::exists(left));
  CHECK(base.names().size() == 301);
}

}  // namespace tw::test

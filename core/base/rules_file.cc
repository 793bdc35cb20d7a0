// SPDX-License-Identifier: Apache-2.0
#include "base/rules_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "base/fd.h"

namespace tw::rules {
namespace {

// Takes a word off the front; empty: there are no more.
std::string_view next_word(std::string_view& line) {
  constexpr std::string_view kBlank = " \t\r";
  line.remove_prefix(std::min(line.find_first_not_of(kBlank), line.size()));
  const std::string_view word = line.substr(0, line.find_first_of(kBlank));
  line.remove_prefix(word.size());
  return word;
}

}  // namespace

Status wrong(std::initializer_list<Piece> pieces) { return {Code::kInvalidArgument, text(pieces)}; }

std::optional<uint64_t> number(std::string_view word) {
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  if (error != std::errc() || end != word.data() + word.size()) return std::nullopt;
  return value;
}

std::string path_in_cache(std::string_view name) {
  if (const char* const cache = std::getenv("XDG_CACHE_HOME"); cache && *cache == '/')
    return text({cache, "/tensorwire/", name});
  const char* const home = std::getenv("HOME");
  return home && *home == '/' ? text({home, "/.cache/tensorwire/", name}) : std::string{};
}

Result<std::string> read(const std::string& path) {
  const Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file) {
    const bool absent = errno == ENOENT || errno == ENOTDIR;
    return Status{absent ? Code::kNotFound : Code::kInvalidArgument,
                  text({"it cannot be opened: ", std::strerror(errno)})};
  }
  struct stat found{};
  if (::fstat(file.get(), &found) != 0 || !S_ISREG(found.st_mode)) return wrong({"it is no file"});
  std::string all(kMostBytes + 1, '\0');  // one more: whether it is too large
  size_t size = 0;
  while (size < all.size()) {
    const ssize_t got = ::read(file.get(), all.data() + size, all.size() - size);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return wrong({"it cannot be read: ", std::strerror(errno)});
    if (got == 0) break;
    size += static_cast<size_t>(got);
  }
  all.resize(size);
  return all;
}

Status each(std::string_view text, std::span<const std::string_view> form, const Visit& visit) {
  if (text.size() > kMostBytes) return wrong({"it is larger than ", size_text(kMostBytes)});
  std::vector<std::string_view> words(form.size());
  for (int line_number = 1; !text.empty(); ++line_number) {
    const std::string_view whole = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(whole.size() + 1, text.size()));
    std::string_view line = whole.substr(0, whole.find('#'));
    for (std::string_view& word : words) word = next_word(line);
    if (words.front().empty()) continue;
    Status status;
    if (words.back().empty() || !next_word(line).empty()) {
      std::string all;
      for (const std::string_view word : form) (all += ' ') += word;
      status = wrong({"a rule is:", all});
    } else {
      status = visit(words);
    }
    if (!status.ok()) return wrong({"line ", line_number, ": ", status.details()});
  }
  return {};
}

}  // namespace tw::rules

#include "wire/hello.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>

#include "base/fd.h"
#include "wire/bytes.h"

namespace tw::wire {
namespace {

static_assert(sizeof(Hello) == kHelloSize && alignof(Hello) == 8);
static_assert(offsetof(Hello, magic) == 0);
static_assert(offsetof(Hello, lowest_version) == 8);
static_assert(offsetof(Hello, highest_version) == 10);
static_assert(offsetof(Hello, zero) == 12);
static_assert(offsetof(Hello, features) == 16);
static_assert(offsetof(Hello, required) == 24);
static_assert(offsetof(Hello, instance) == 32);
static_assert(offsetof(Hello, boot_id) == 48);
static_assert(offsetof(Hello, pid_namespace) == 64);
static_assert(offsetof(Hello, pid) == 72);
static_assert(offsetof(Hello, uid) == 76);
static_assert(offsetof(Hello, reserved) == 80);

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return -1;
}

// The kernel writes it as a UUID. Zero when it cannot be read, which equals no other host's.
std::array<uint8_t, 16> read_boot_id() {
  std::array<uint8_t, 16> id{};
  const Fd file(::open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC));
  std::array<char, 36> uuid;
  if (!file || ::read(file.get(), uuid.data(), uuid.size()) != ssize_t{uuid.size()}) return {};
  size_t digits = 0;
  for (const char c : uuid) {
    if (c == '-') continue;
    const int digit = hex_digit(c);
    if (digit < 0 || digits == 2 * id.size()) return {};
    id[digits / 2] = static_cast<uint8_t>(id[digits / 2] << 4 | digit);
    ++digits;
  }
  return digits == 2 * id.size() ? id : std::array<uint8_t, 16>{};
}

uint64_t read_pid_namespace() {
  struct stat facts{};
  return ::stat("/proc/self/ns/pid", &facts) == 0 ? facts.st_ino : 0;
}

Status no_hello(std::initializer_list<Piece> why) {
  return {Code::kInvalidArgument, "not a Hello: " + text(why)};
}

Status lacks(std::string_view who, std::string_view whom, uint64_t features) {
  std::string bits;
  for (int bit = 0; bit < 64; ++bit) {
    if ((features >> bit & 1) != 0) bits += text({bits.empty() ? "" : ", ", bit});
  }
  return {Code::kFailedPrecondition,
          text({who, " requires features that ", whom, " does not know: bits ", bits,
                "; use the same release of tensorwire at both ends"})};
}

}  // namespace

Hello local_hello(const InstanceId& instance) {
  Hello hello;
  hello.instance = instance;
  hello.boot_id = read_boot_id();
  hello.pid_namespace = read_pid_namespace();
  hello.pid = static_cast<uint32_t>(::getpid());
  hello.uid = ::geteuid();
  return hello;
}

void encode_hello(std::span<std::byte, kHelloSize> out, const Hello& hello) {
  store(out.data(), hello);
}

Result<Hello> decode_hello(std::span<const std::byte> bytes) {
  if (bytes.size() != kHelloSize) {
    return no_hello({"length is ", bytes.size(), ", expected ", kHelloSize});
  }
  auto hello = load<Hello>(bytes.data());
  if (hello.magic != kHelloMagic) {
    return no_hello({"magic is ", quoted({hello.magic.data(), hello.magic.size()})});
  }
  if (hello.lowest_version == 0) return no_hello({"lowest_version is 0"});
  if (hello.lowest_version > hello.highest_version) {
    return no_hello({"lowest_version is ", hello.lowest_version, ", above highest_version ",
                     hello.highest_version});
  }
  if (hello.zero != 0) return no_hello({"zero is ", hello.zero});
  if ((hello.required & ~hello.features) != 0) {
    return no_hello(
        {"required is ", hello.required, ", with bits that features ", hello.features, " lacks"});
  }
  hello.reserved = {};
  return hello;
}

Result<uint16_t> common_version(const Hello& ours, const Hello& theirs) {
  const uint16_t lowest = std::max(ours.lowest_version, theirs.lowest_version);
  const uint16_t highest = std::min(ours.highest_version, theirs.highest_version);
  if (lowest <= highest) return highest;
  return Status(Code::kFailedPrecondition,
                text({"no common version of the wire format: here ", ours.lowest_version, " to ",
                      ours.highest_version, ", the peer ", theirs.lowest_version, " to ",
                      theirs.highest_version}));
}

Status check_features(const Hello& ours, const Hello& theirs) {
  if (const uint64_t missing = theirs.required & ~ours.features) {
    return lacks("the peer", "this process", missing);
  }
  if (const uint64_t missing = ours.required & ~theirs.features) {
    return lacks("this process", "the peer", missing);
  }
  return {};
}

bool same_host(const Hello& a, const Hello& b) {
  return a.boot_id != decltype(a.boot_id){} && a.boot_id == b.boot_id && a.pid_namespace != 0 &&
         a.pid_namespace == b.pid_namespace;
}

bool same_user(const Hello& a, const Hello& b) { return a.uid == b.uid && a.uid != kOverflowUid; }

}  // namespace tw::wire

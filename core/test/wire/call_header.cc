// SPDX-License-Identifier: Apache-2.0
#include "wire/call_header.h"

#include <string>

#include "test/wire/support.h"

namespace tw::wire {
namespace {

using namespace call_flag;
using test::Bytes;
using test::check_says;
using test::hex;
using test::poke;
using test::Random;

Bytes encoded(const CallHeader& header) {
  Bytes bytes(call_header_size(header));
  REQUIRE(encode_call_header(bytes.data(), header) == bytes.data() + bytes.size());
  return bytes;
}

std::vector<MetadataEntry> entries(const MetadataView& view) {
  std::vector<MetadataEntry> out(view.begin(), view.end());
  CHECK(out.size() == view.size());
  CHECK(view.empty() == out.empty());
  return out;
}

constexpr std::string_view kKeys = "abcdefghijklmnopqrstuvwxyz0123456789-_.";

// Owns what a random header points to.
struct Sample {
  std::vector<std::string> texts;
  std::vector<MetadataEntry> initial;
  std::vector<MetadataEntry> trailing;
  CallHeader header;
};

void fill(std::vector<MetadataEntry>& out, std::vector<std::string>& texts, Random& random) {
  out.resize(random.up_to(5));
  for (auto& entry : out) {
    const bool binary = random.chance(30);
    std::string key = "k" + random.text(random.up_to(20), kKeys);
    if (binary) key += "-bin";
    std::string value;
    for (uint64_t left = random.up_to(40); left > 0; --left) {
      const bool text_only = !key.ends_with("-bin");
      value += static_cast<char>(text_only ? 0x20 + random.up_to(0x5e) : random.up_to(255));
    }
    entry.key = texts.emplace_back(std::move(key));
    entry.value = texts.emplace_back(std::move(value));
  }
}

void make_sample(Sample& sample, Random& random) {
  sample.texts.reserve(32);  // the views must stay good
  CallHeader& h = sample.header;
  h.flags = static_cast<uint8_t>(random.up_to(kAll));
  if (h.has(kCancel)) h.flags = kCancel;
  if (!h.has(kEnd)) h.flags = static_cast<uint8_t>(h.flags & ~kTrailing);
  if (h.flags == 0) h.flags = kPayload;
  if (h.has(kStart)) {
    h.method = sample.texts.emplace_back("/" + random.text(random.up_to(60), "aZ09._/ "));
    h.timeout_ns = random.number() >> 1;
  }
  if (h.has(kEnd) || h.has(kCancel)) {
    h.code = static_cast<Code>(random.up_to(16));
    h.details = sample.texts.emplace_back(random.text(random.up_to(60), kKeys) + "\xe2\x82\xac");
  }
  fill(sample.initial, sample.texts, random);
  fill(sample.trailing, sample.texts, random);
  h.initial = sample.initial;
  h.trailing = sample.trailing;
}

const std::vector<MetadataEntry> kInitialSample = {{"k", "v"}};
const std::vector<MetadataEntry> kTrailingSample = {{"t-bin", {"\xff\0", 2}}};

CallHeader sample_start() {
  CallHeader h;
  h.flags = kStart | kPayload | kEnd | kInitial;
  h.method = "/s/M";
  h.timeout_ns = 1000;
  h.initial = kInitialSample;
  return h;
}

CallHeader sample_end() {
  CallHeader h;
  h.flags = kEnd | kTrailing;
  h.code = Code::kNotFound;
  h.details = "no";
  h.trailing = kTrailingSample;
  return h;
}

TEST_CASE("call headers have the bytes of docs/wire-format.md") {
  CallHeader bare;
  bare.flags = kPayload;
  CHECK(encoded(bare) == hex("02 00 0000 00000000 0000000000000000"));
  CHECK(encoded(sample_start()) == hex("17 00 0400 00000000 e803000000000000 2f732f4d"
                                       "01000000 01000000 01000000 6b 76"));
  CHECK(encoded(sample_end()) == hex("24 05 0000 02000000 0000000000000000 6e6f"
                                     "01000000 05000000 02000000 742d62696e ff00"));
}

TEST_CASE("random call headers come back as they were sent") {
  Random random(1);
  for (int round = 0; round < 3000; ++round) {
    Sample sample;
    make_sample(sample, random);
    const CallHeader& h = sample.header;
    REQUIRE(check_metadata(h.initial).ok());
    REQUIRE(check_metadata(h.trailing).ok());
    if (h.has(kStart)) REQUIRE(check_method(h.method).ok());
    REQUIRE(check_details(h.details).ok());
    const Bytes bytes = encoded(h);
    const auto view = decode_call_header(bytes);
    REQUIRE(view.ok());
    CHECK(view->flags == h.flags);
    CHECK(view->code == h.code);
    CHECK(view->timeout_ns == h.timeout_ns);
    CHECK(view->method == h.method);
    CHECK(view->details == h.details);
    CHECK(entries(view->initial) ==
          (h.has(kInitial) ? sample.initial : decltype(sample.initial){}));
    CHECK(entries(view->trailing) ==
          (h.has(kTrailing) ? sample.trailing : decltype(sample.trailing){}));
  }
}

TEST_CASE("the longest timeout and every status code pass") {
  CallHeader start = sample_start();
  start.timeout_ns = (uint64_t{1} << 63) - 1;
  CHECK(decode_call_header(encoded(start))->timeout_ns == start.timeout_ns);
  CallHeader end = sample_end();
  for (int code = 0; code <= 16; ++code) {
    end.code = static_cast<Code>(code);
    CHECK(decode_call_header(encoded(end))->code == end.code);
  }
}

TEST_CASE("a call header that is cut anywhere, or too long, is refused") {
  for (const CallHeader& header : {sample_start(), sample_end()}) {
    const Bytes whole = encoded(header);
    for (size_t cut = 0; cut < whole.size(); ++cut) {
      INFO("cut to " << cut);
      check_says(decode_call_header(std::span(whole).first(cut)).status(), Code::kInternal,
                 {"protocol error: call header: "});
      const auto flags = decode_call_flags(std::span(whole).first(cut));
      CHECK(flags.ok() == (cut >= kCallFixedSize));
      if (flags) CHECK(*flags == header.flags);
    }
    Bytes longer = whole;
    longer.push_back({});
    check_says(decode_call_header(longer).status(), Code::kInternal, {"1 bytes too long"});
  }
}

TEST_CASE("every field of a call header is checked, and named when it is wrong") {
  struct Corruption {
    Bytes bytes;
    size_t offset;
    size_t width;
    uint64_t value;
    std::vector<std::string_view> words;
  };
  const Bytes start = encoded(sample_start());
  const Bytes end = encoded(sample_end());
  const std::vector<Corruption> corruptions = {
      {start, 0, 1, 0, {"flags are 0"}},
      {start, 0, 1, 0x57, {"flags are 87"}},
      {start, 0, 1, 0x1f, {"flags are 31", "CANCEL"}},
      {start, 0, 1, 0x33, {"flags are 51", "TRAILING without END"}},
      {start, 0, 1, 0x16, {"method_length is 4 without START"}},
      {start, 1, 1, 17, {"code is 17"}},
      {start, 2, 2, 0, {"method_length is 0 with START"}},
      {start, 2, 2, 5, {"initial metadata", "key_length"}},
      {start, 2, 2, 0xffff, {"method_length is 65535", "bytes are left"}},
      {start, 4, 4, 0xffffffff, {"details_length is 4294967295", "bytes are left"}},
      {start, 8, 8, uint64_t{1} << 63, {"timeout_ns is 9223372036854775808"}},
      {start, 17, 1, 0xff, {"method '/\\xff/M'", "UTF-8"}},
      {start, 20, 4, 2, {"initial metadata", "count is 2", "entry 1 is cut off"}},
      {start, 20, 4, 0xffffffff, {"initial metadata", "count is 4294967295"}},
      {start, 24, 4, 0, {"initial metadata", "key ''", "empty"}},
      {start, 24, 4, 3, {"initial metadata", "key_length is 3", "2 bytes are left"}},
      {start, 24, 4, 0xffffffff, {"initial metadata", "key_length 4294967295", "limit"}},
      {start, 28, 4, 2, {"initial metadata", "value_length is 2", "1 bytes are left"}},
      {start, 28, 4, 0xffffffff, {"initial metadata", "value_length 4294967295", "limit"}},
      {start, 32, 1, 'K', {"initial metadata", "key 'K'", "lower-case"}},
      {start, 32, 1, ':', {"initial metadata", "key ':'", "reserved"}},
      {start, 33, 1, 0x7f, {"initial metadata", "value of 'k'", "printable"}},
      {end, 0, 1, 0x20, {"flags are 32", "TRAILING without END"}},
      {end, 1, 1, 17, {"code is 17"}},
      {end, 2, 2, 1, {"method_length is 1 without START"}},
      {end, 8, 8, 1, {"timeout_ns is 1 without START"}},
      {end, 16, 1, 0xc0, {"details '\\xc0o'", "UTF-8"}},
      {end, 18, 4, 0xffffffff, {"trailing metadata", "count is 4294967295"}},
      {end, 22, 4, 4, {"trailing metadata"}},
      {end, 26, 4, 3, {"trailing metadata", "value_length is 3"}},
  };
  for (const auto& corruption : corruptions) {
    Bytes bytes = corruption.bytes;
    REQUIRE(decode_call_header(bytes).ok());
    std::memcpy(bytes.data() + corruption.offset, &corruption.value, corruption.width);
    INFO("offset " << corruption.offset << " set to " << corruption.value);
    const Status status = decode_call_header(bytes).status();
    check_says(status, Code::kInternal, {"protocol error: call header: "});
    for (const auto word : corruption.words) check_says(status, Code::kInternal, {word});
  }
  CallHeader bare;
  bare.flags = kPayload;
  for (const auto& [offset, words] : std::vector<std::pair<size_t, std::string_view>>{
           {1, "code is 1 without END or CANCEL"},
           {2, "method_length is 1 without START"},
           {4, "details_length is 1 without END or CANCEL"},
           {8, "timeout_ns is 1 without START"}}) {
    Bytes bytes = encoded(bare);
    poke(bytes, offset, uint8_t{1});
    check_says(decode_call_header(bytes).status(), Code::kInternal, {words});
  }
}

TEST_CASE("what a user chose is held to the same rules") {
  CHECK(check_method("s/M").ok());
  check_says(check_method("/\xff"), Code::kInvalidArgument, {"'/\\xff'", "UTF-8"});
  check_says(check_method(""), Code::kInvalidArgument, {"method '' is empty"});
  CHECK(check_method("/" + std::string(kMaxMethodLength - 1, 'm')).ok());
  check_says(check_method("/" + std::string(kMaxMethodLength, 'm')), Code::kInvalidArgument,
             {"longer than 4095"});
  CHECK(check_details(std::string(kMaxDetailsLength, 'd')).ok());
  check_says(check_details(std::string(kMaxDetailsLength + 1, 'd')), Code::kInvalidArgument,
             {"longer than 65536"});
  check_says(check_details("\xed\xa0\x80"), Code::kInvalidArgument, {"UTF-8"});

  const auto judge = [](std::string_view key, std::string_view value) {
    const std::vector<MetadataEntry> one = {{key, value}};
    return check_metadata(one);
  };
  CHECK(judge("a-z_0.9", "").ok());
  CHECK(judge("k", " ~").ok());
  CHECK(judge("k-bin", std::string_view("\0\xff", 2)).ok());
  check_says(judge("", "v"), Code::kInvalidArgument, {"key ''", "empty"});
  check_says(judge("Key", "v"), Code::kInvalidArgument, {"key 'Key'", "lower-case"});
  check_says(judge(":path", "v"), Code::kInvalidArgument, {"key ':path'", "reserved"});
  CHECK(judge("grpc-trace-bin", "1S").ok());  // gRPC's own names mean nothing here, and travel
  check_says(judge("k", "\t"), Code::kInvalidArgument, {"value of 'k'", "printable"});
  check_says(judge("k", "\xc3\xa9"), Code::kInvalidArgument, {"value of 'k'", "-bin"});
}

TEST_CASE("both ends count metadata alike, each block for itself") {
  const std::string value(100, 'v');
  const std::vector<MetadataEntry> one = {{"k", value}};
  CallLimits limits;
  limits.max_metadata_bytes = 1 + value.size() + kMetadataEntryOverhead;
  CallHeader both;
  both.flags = kEnd | kInitial | kTrailing;
  both.initial = one;
  both.trailing = one;
  CHECK(check_metadata(one, limits).ok());
  CHECK(decode_call_header(encoded(both), limits).ok());
  --limits.max_metadata_bytes;
  check_says(check_metadata(one, limits), Code::kResourceExhausted, {"limit of 132", "'k'"});
  check_says(decode_call_header(encoded(both), limits).status(), Code::kInternal,
             {"initial metadata", "limit of 132"});
  CallHeader trailing = both;
  trailing.flags = kEnd | kTrailing;
  check_says(decode_call_header(encoded(trailing), limits).status(), Code::kInternal,
             {"trailing metadata", "limit of 132"});
}

TEST_CASE("UTF-8 is what RFC 3629 says") {
  for (const std::string_view good :
       {"", "plain", "\x7f", "\xc2\x80", "\xdf\xbf", "\xe0\xa0\x80", "\xed\x9f\xbf", "\xee\x80\x80",
        "\xef\xbf\xbf", "\xf0\x90\x80\x80", "\xf4\x8f\xbf\xbf", "a\xc3\xa9z"}) {
    CHECK(check_details(good).ok());
  }
  for (const std::string_view wrong :
       {"\x80", "\xbf", "\xc0\x80", "\xc1\xbf", "\xc2", "\xc2z", "\xe0\x9f\xbf", "\xe0\xa0",
        "\xed\xa0\x80", "\xed\xbf\xbf", "\xf0\x8f\xbf\xbf", "\xf0\x90\x80", "\xf4\x90\x80\x80",
        "\xf5\x80\x80\x80", "\xff", "a\xc3"}) {
    CHECK_FALSE(check_details(wrong).ok());
  }
}

}  // namespace
}  // namespace tw::wire

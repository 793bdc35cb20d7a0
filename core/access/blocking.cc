// SPDX-License-Identifier: Apache-2.0
#include "access/blocking.h"

namespace tw {
namespace {

Result<bool> in_time(Ended ended, const char* late) {
  if (ended == Ended::kTimeout) return Status{Code::kDeadlineExceeded, late};
  return ended == Ended::kDone;
}

}  // namespace

Result<bool> conceal(AccessPort& port, uint64_t region, const Wait& wait) {
  const auto concealed = port.conceal(region);
  if (!concealed) return concealed.status();
  const Ended ended =
      wait_through(wait, [&](Nanos until) { return port.wait_left(**concealed, until); });
  return in_time(ended, "the peer is amid an access that has not ended yet");
}

Result<bool> await_end(AccessPort& port, Access& access, const Wait& wait) {
  const Ended ended = wait_through(wait, [&](Nanos until) { return port.wait(access, until); });
  if (ended != Ended::kDone) return in_time(ended, "the operation has not ended yet");
  // Another thread may still be writing the end down.
  while (!access.ended()) (void)port.wait(access, kForever);
  if (!access.status().ok()) return access.status();
  return true;
}

Result<bool> await_word(AccessPort& port, uint64_t region, uint64_t offset, uint64_t at_least,
                        const Wait& wait, uint64_t& value) {
  const auto word = port.word(region, offset);
  if (!word) return word.status();
  const Ended ended =
      wait_through(wait, [&](Nanos until) { return port.wait_word(*word, at_least, until); });
  value = word->load();
  // Who interrupts may have raised an exception, which nothing takes back.
  if (ended == Ended::kInterrupted) return false;
  // Whatever else the wait came to: a word that is there counts.
  if (value >= at_least) return true;
  if (ended != Ended::kDone) return in_time(ended, "the word has not been reached in time");
  return port.ended(*word);
}

Result<bool> await_immediate(AccessPort& port, const Wait& wait, uint32_t& value) {
  while (!port.take_immediate(value)) {
    const Ended ended = wait_through(wait, [&](Nanos until) { return port.wait_immediate(until); });
    if (ended != Ended::kDone) return in_time(ended, "no write with immediate came in time");
    if (port.take_immediate(value)) break;
    // Another thread has taken it, or none comes.
    if (port.over()) return port.link().death();
  }
  return true;
}

Result<bool> await_any(std::span<const AwaitedWord> words, Nanos spin, const Wait& wait) {
  if (words.empty()) return Status{Code::kInvalidArgument, "there is no word to wait for"};
  for (const AwaitedWord& word : words)
    if (Status wrong = check(word); !wrong.ok()) return wrong;
  const Ended ended = wait_through(wait, [&](Nanos until) { return wait_any(words, spin, until); });
  return in_time(ended, "none of the words has been reached in time");
}

}  // namespace tw

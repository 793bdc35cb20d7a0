// SPDX-License-Identifier: Apache-2.0
#include "rendezvous.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <exception>
#include <string>
#include <utility>
#include <vector>

namespace tensorwire {

namespace {

int report(tw_status* status, int code, const char* what) {
  status->code = code;
  std::snprintf(status->details, sizeof status->details, "the process group's store: %s", what);
  return code;
}

}  // namespace

Rendezvous::Rendezvous(c10::intrusive_ptr<c10d::Store> store)
    : store_(std::move(store)), table_{this, set, get} {}

int Rendezvous::set(void* self, const char* key, const void* value, size_t size,
                    tw_status* status) {
  const auto* const bytes = static_cast<const uint8_t*>(value);
  try {
    static_cast<Rendezvous*>(self)->store_->set(key, std::vector<uint8_t>(bytes, bytes + size));
    return TW_OK;
  } catch (const c10::Error& error) {
    return report(status, TW_CODE_UNAVAILABLE, error.what_without_backtrace());
  } catch (const std::exception& error) {
    return report(status, TW_CODE_UNAVAILABLE, error.what());
  }
}

int Rendezvous::get(void* self, const char* key, int64_t timeout_ns, tw_give give, void* sink,
                    tw_status* status) {
  using Clock = std::chrono::steady_clock;
  using std::chrono::milliseconds;
  c10d::Store& store = *static_cast<Rendezvous*>(self)->store_;
  // No time at all would be for ever, for some stores.
  const milliseconds timeout =
      timeout_ns < 0 ? milliseconds(std::chrono::hours(24))
                     : std::max(milliseconds(1), milliseconds(timeout_ns / 1'000'000));
  const Clock::time_point begin = Clock::now();
  const auto failed = [&](const char* what) {
    // Stores tell a timeout from other errors by words only.
    const bool late = Clock::now() - begin >= timeout;
    return report(status, late ? TW_CODE_DEADLINE_EXCEEDED : TW_CODE_UNAVAILABLE, what);
  };
  try {
    store.wait({key}, timeout);
    const std::vector<uint8_t> value = store.get(key);
    give(sink, value.data(), value.size());
    return TW_OK;
  } catch (const c10::Error& error) {
    return failed(error.what_without_backtrace());
  } catch (const std::exception& error) {
    return failed(error.what());
  }
}

}  // namespace tensorwire

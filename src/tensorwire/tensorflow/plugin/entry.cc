// SPDX-License-Identifier: Apache-2.0
// The plugin's doors. The package loads the library, and hands over the runtime's function table
// ahead of anything else.
#include <algorithm>
#include <cstring>
#include <mutex>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "allocator.h"
#include "coalesced_reads.h"
#include "core.h"
#include "kernels.h"
#include "peers.h"
#include "served.h"
#include "server.h"
#include "settings.h"
#include "statistics.h"
#include "transports.h"

namespace tensorwire {

const tw_table* g_core = nullptr;

namespace {

absl::Status start(const tw_table* table) {
  static std::mutex mutex;  // guards the making of g_core, which is then read without it
  std::lock_guard<std::mutex> lock(mutex);
  if (g_core) return absl::OkStatus();
  if (table->version != TW_TABLE_VERSION || table->size < sizeof(tw_table))
    return absl::FailedPreconditionError(absl::StrCat(
        "the plugin was built for version ", TW_TABLE_VERSION,
        " of the function table, the runtime's is ", table->version, ": build it anew"));
  if (absl::Status status = read_settings(*table); !status.ok()) return status;
  // The runtime reads its own settings at first use, and a wrong one is told now.
  tw_status status{};
  if (table->settings([](void*, const tw_fact*) {}, nullptr, &status) != TW_OK)
    return status_of(status);
  if (const std::string& required = settings().required;
      !required.empty() && table->transport_why_not(required.c_str(), &status) != TW_OK)
    return absl::FailedPreconditionError(absl::StrCat(
        "TENSORWIRE_TRANSPORT=", required, " requires what cannot be had: ", status.details));
  g_core = table;
  if (settings().enabled && settings().arena) {
    adopt_arena();
    register_kernels();
  }
  if (settings().enabled && settings().plans) register_coalesced_reads();
  register_server();
  return absl::OkStatus();
}

using VisitCounter = void (*)(void* context, const char* name, const char* label, uint64_t value);

void visit_received(VisitCounter visit, void* context) {
  for (const Transport& each : transports()) {
    const std::string name = absl::StrCat("received_", each.name);
    const std::string label = absl::StrCat("received: over ", each.name, ", copied");
    visit(context, name.c_str(), label.c_str(), each.received.load());
    visit(context, absl::StrCat(name, "_bytes").c_str(), nullptr, each.received_bytes.load());
  }
}

void visit_failed(VisitCounter visit, void* context) {
  for (const Transport& each : transports())
    visit(context, absl::StrCat("failed_", each.name).c_str(),
          absl::StrCat("  ", each.name, ": not made, or lost").c_str(), each.failed.load());
}

}  // namespace
}  // namespace tensorwire

#define TENSORWIRE_EXPORT extern "C" __attribute__((visibility("default")))

// The version of the function table that this plugin was built for.
TENSORWIRE_EXPORT uint32_t tensorwire_tensorflow_abi(void) { return TW_TABLE_VERSION; }

// 0: the protocol is known to TensorFlow from now on. Else the sentence in `error` says why not.
TENSORWIRE_EXPORT int tensorwire_tensorflow_start(const tw_table* table, char* error, size_t room) {
  const absl::Status status = tensorwire::start(table);
  if (status.ok()) return 0;
  if (room != 0) {
    const size_t size = std::min(room - 1, status.message().size());
    std::memcpy(error, status.message().data(), size);
    error[size] = 0;
  }
  return static_cast<int>(status.code());
}

// Counters of the process so far, in the order in which people are told of them. Those without a
// label are not theirs.
TENSORWIRE_EXPORT void tensorwire_tensorflow_stats(tensorwire::VisitCounter visit, void* context) {
  if (!tensorwire::g_core) return;
  const tensorwire::Statistics& all = tensorwire::statistics();
#define TENSORWIRE_COUNT(name, label) visit(context, #name, label, all.name.load());
#define TENSORWIRE_SIZED(name, label) \
  TENSORWIRE_COUNT(name, label)       \
  visit(context, #name "_bytes", nullptr, all.name##_bytes.load());
#define TENSORWIRE_TRANSPORTS(name) tensorwire::visit_##name(visit, context);
  TENSORWIRE_COUNTERS(TENSORWIRE_COUNT, TENSORWIRE_SIZED, TENSORWIRE_TRANSPORTS)
  visit(context, "peers", nullptr, tensorwire::peers_known());
  visit(context, "peers_waiting", nullptr, tensorwire::requests_waiting());
  size_t count;
  const tw_counter* const counters = tensorwire::core().memory_counters(&count);
  std::vector<uint64_t> values(count);
  count = tensorwire::core().arena(values.data(), count);
  for (size_t i = 0; i < count; ++i)
    visit(context, absl::StrCat("arena_", counters[i].name).c_str(), nullptr, values[i]);
}

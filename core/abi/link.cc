// SPDX-License-Identifier: Apache-2.0
// The C ABI: links that this process makes.
#include "abi/abi.h"
#include "call/connect.h"

using namespace tw;
using namespace tw::abi;

int tw_connect(const tw_invitation* invitation, tw_server* serves, int64_t timeout_ns,
               tw_link** out, tw_status* status) try {
  if (serves && of(serves)->inherited()) return inherited(status, "server");
  auto runtime = Runtime::get();
  if (!runtime) return report(status, runtime.status());
  meet::Invitation in;
  in.address = invitation->address;
  std::memcpy(in.session.data(), invitation->session, in.session.size());
  in.secret = meet::Secret(
      std::span<const uint8_t, meet::Secret::kSize>(invitation->secret, meet::Secret::kSize));
  std::memcpy(in.instance.data(), invitation->instance, in.instance.size());
  auto hello = wire::decode_hello(
      {static_cast<const std::byte*>(invitation->hello), invitation->hello_size});
  if (!hello) return report(status, hello.status());
  in.hello = *hello;
  const auto wanted = wanted_by(invitation->thresholds);
  if (!wanted) return report(status, wanted.status());
  auto port = connect(**runtime, in, serves ? of(serves) : nullptr,
                      {limit_of(invitation->max_message), *wanted}, {deadline_after(timeout_ns)});
  if (!port) return report(status, port.status());
  *out = reinterpret_cast<tw_link*>(port->leak());
  return TW_OK;
} catch (const std::bad_alloc&) {
  return no_memory(status);
}

void tw_link_release(tw_link* link) {
  if (of(link)->link().inherited()) return;
  of(link)->abandon();
  of(link)->release();
}

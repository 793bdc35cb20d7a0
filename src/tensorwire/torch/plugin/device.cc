// SPDX-License-Identifier: Apache-2.0
#include "device.h"

#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <atomic>
#include <memory>
#include <string>
#include <utility>

namespace tensorwire {

namespace {

// The driver's own handle. A template, because older releases of PyTorch have no such function.
template <class Stream>
void* handle_of(const Stream& stream) {
  if constexpr (requires { stream.native_handle(); })
    return stream.native_handle();
  else
    fail("this PyTorch is too old to run tensorwire on tensors of " + stream.device().str());
}

}  // namespace

void check_device(const at::Device& device) {
  if (!device.is_cuda())
    fail("tensorwire moves tensors of the CPU and of CUDA devices, and this one is on " +
         device.str());
  int count = 0;
  tw_status status{};
  if (core().device_count(&count, &status) != TW_OK)
    fail("tensorwire cannot move a tensor of " + device.str() + ": " + status.details);
  // Twice at worst: a lock would be held while one waits for the GIL.
  static std::atomic<bool> loaded = false;
  if (!loaded) load_nvrtc();
  loaded = true;
}

const tw_device* place_of(const at::Tensor& tensor, tw_device* into) {
  if (tensor.is_cpu()) return nullptr;
  const c10::impl::VirtualGuardImpl devices(tensor.device().type());
  *into = {tensor.device().index(), handle_of(devices.getStream(tensor.device()))};
  return into;
}

Work::Body on_device(const at::Device& device, Work::Body body) {
  if (device.is_cpu()) return body;
  const c10::impl::VirtualGuardImpl devices(device.type());
  const c10::Stream current = devices.getStream(device);
  // Null: there is nothing to wait for. To ask costs less than an event.
  std::shared_ptr<c10::Event> begun;
  if (!devices.queryStream(current)) {
    begun = std::make_shared<c10::Event>(device.type());
    begun->record(current);
  }
  return [devices, device, begun, body = std::move(body)](const tw_wait& wait, tw_status* status) {
    const c10::Stream own = devices.getStreamFromGlobalPool(device);
    const c10::StreamGuard guard(own);
    if (begun) begun->block(own);
    const int code = body(wait, status);
    // Copies to where results belong may be queued; they end by themselves.
    if (code == TW_OK) own.synchronize();
    return code;
  };
}

}  // namespace tensorwire

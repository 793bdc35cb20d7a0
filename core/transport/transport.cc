// SPDX-License-Identifier: Apache-2.0
#include "transport/transport.h"

namespace tw {

Status Transport::share(Slab&) {
  return {Code::kInternal, std::string("transport ") + profile().name + " does not share memory"};
}

Result<Located> Transport::locate(const RegionRef&) {
  return Status{Code::kInternal,
                std::string("protocol error: a memory descriptor on transport ") + profile().name};
}

Result<bool> Transport::fetch(uint64_t, const RegionRef&, std::byte*) {
  return Status{Code::kInternal,
                std::string("protocol error: a ready-to-send on transport ") + profile().name};
}

size_t Transport::completed(std::span<Completion>) { return 0; }

Status Transport::hand_over(uint64_t, Ref<SharedMemory>, bool, Ref<Door>) {
  return {Code::kUnimplemented,
          std::string("transport ") + profile().name + " hands no memory over"};
}

Status Transport::hand_over(uint64_t, Ref<Slab>, Ref<Door>) {
  return {Code::kUnimplemented,
          std::string("transport ") + profile().name + " hands no memory over"};
}

Result<HandedOver> Transport::take_over(uint64_t) {
  return HandedOver{
      {}, {Code::kNotFound, std::string("transport ") + profile().name + " hands no memory over"}};
}

Result<HandedOver> Transport::take_over(uint64_t region, uint64_t, uint64_t) {
  return Transport::take_over(region);
}

Result<RemoteKey> Transport::expose(std::byte*, size_t, Rights) {
  return Status{Code::kInternal,
                std::string("transport ") + profile().name + " has no device that could serve it"};
}

void Transport::conceal(const RemoteKey&) {}

Result<bool> Transport::start(const Operation&) {
  return Status{Code::kInternal, std::string("transport ") + profile().name +
                                     " has no device for one-sided operations"};
}

size_t Transport::immediates(std::span<uint32_t>) { return 0; }

}  // namespace tw

#include "transport/transport.h"

namespace tw {

Status Transport::share(Slab&) {
  return {Code::kInternal, std::string("transport ") + profile().name + " does not share memory"};
}

Result<Located> Transport::locate(const RegionRef&) {
  return Status{Code::kInternal,
                std::string("protocol error: a memory descriptor on transport ") + profile().name};
}

}  // namespace tw

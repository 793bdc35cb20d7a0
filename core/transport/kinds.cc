// SPDX-License-Identifier: Apache-2.0
// The table of transports.
#include "transport/kind.h"

// Best first. Each has its folder, transport/<name>, which defines tw::<name>::make_kind().
#define TENSORWIRE_KINDS(KIND) \
  KIND(shm)                    \
  KIND(verbs)                  \
  KIND(tcp)                    \
  KIND(loop)

#define TENSORWIRE_DECLARE(name)                                            \
  namespace tw::name {                                                      \
  std::unique_ptr<Kind> make_kind(const TransportEnvironment& environment); \
  }
TENSORWIRE_KINDS(TENSORWIRE_DECLARE)

namespace tw {

std::vector<std::unique_ptr<Kind>> make_kinds(const TransportEnvironment& environment) {
  std::vector<std::unique_ptr<Kind>> kinds;
#define TENSORWIRE_MAKE(name) kinds.push_back(name::make_kind(environment));
  TENSORWIRE_KINDS(TENSORWIRE_MAKE)
  return kinds;
}

}  // namespace tw

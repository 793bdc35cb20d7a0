// SPDX-License-Identifier: Apache-2.0
// The runtime as the plugin sees it: the function table that the package hands over. The plugin
// never links to the runtime, because two copies of it would be two arenas.
#pragma once

#include "tensorwire.h"

namespace tensorwire {

// Good from start() of the module on, and for ever.
extern const tw_table* g_core;
inline const tw_table& core() { return *g_core; }

}  // namespace tensorwire

// SPDX-License-Identifier: Apache-2.0
// Python's signals, for code that knows no Python: the module sets these.
#pragma once

namespace tensorwire {

// Whether this thread is the one that Python runs signal handlers on.
bool on_main_thread();
// Runs Python's signal handlers, on that thread; whether one has raised.
bool interrupted();
// Throws what it has raised.
[[noreturn]] void throw_interruption();
// Runs it without the GIL if this thread holds that.
void without_gil(void (*body)(void* context), void* context);

}  // namespace tensorwire

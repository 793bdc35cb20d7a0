// SPDX-License-Identifier: Apache-2.0
// An error of MPI is a number; the sentence behind it is that of the thread's last one, which
// MPI_Error_string gives.
#pragma once

#include <string>

#include "tensorwire.h"

namespace tensorwire::mpi {

// Notes the sentence, and returns the code.
int fail(int code, std::string sentence);
// Success, or that the core has refused or failed.
int outcome(int code, const tw_status& status);
// For a function that is not there. Told on standard error, too, once for each.
int missing(const char* function);
// Of the thread's last error.
const std::string& last_sentence();

}  // namespace tensorwire::mpi

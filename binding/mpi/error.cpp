// SPDX-License-Identifier: Apache-2.0
#include "error.h"

#include <cstdio>
#include <mutex>
#include <set>
#include <utility>

#include "abi.h"

namespace tensorwire::mpi {

namespace {

thread_local std::string t_sentence;

}  // namespace

int fail(int code, std::string sentence) {
  t_sentence = std::move(sentence);
  return code;
}

int outcome(int code, const tw_status& status) {
  if (code == TW_OK) return k_SUCCESS;
  if (code == TW_INTERRUPTED) return fail(k_ERR_OTHER, "tensorwire: interrupted");
  return fail(code == TW_CODE_INVALID_ARGUMENT ? k_ERR_ARG : k_ERR_OTHER,
              std::string("tensorwire: ") + status.details);
}

int missing(const char* function) {
  static std::mutex mutex;                         // guards what follows
  static auto& told = *new std::set<std::string>;  // calls may come at the process's very end
  const std::string sentence = std::string("tensorwire: ") + function +
                               " is not there: this library has what JAX's collectives on CPUs "
                               "need, and is no MPI for other programs";
  const std::lock_guard lock(mutex);
  if (told.insert(function).second) std::fprintf(stderr, "%s\n", sentence.c_str());
  return fail(k_ERR_UNSUPPORTED_OPERATION, sentence);
}

const std::string& last_sentence() { return t_sentence; }

}  // namespace tensorwire::mpi

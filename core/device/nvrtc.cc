// SPDX-License-Identifier: Apache-2.0
#include "device/nvrtc.h"

#include <dlfcn.h>

#include <optional>

#include "base/text.h"

namespace tw::device {
namespace {

// As the manual of NVRTC has them.
using Program = struct _nvrtcProgram*;
constexpr int kSuccess = 0, kInvalidOption = 5, kCompilation = 6;

struct Nvrtc {
  int (*create)(Program* program, const char* text, const char* name, int headers,
                const char* const* sources, const char* const* names) = nullptr;
  int (*destroy)(Program* program) = nullptr;
  int (*compile)(Program program, int count, const char* const* options) = nullptr;
  int (*log_size)(Program program, size_t* size) = nullptr;
  int (*log)(Program program, char* log) = nullptr;
  int (*code_size)(Program program, size_t* size) = nullptr;
  int (*code)(Program program, char* code) = nullptr;
  const char* (*error)(int result) = nullptr;
};

// The newest that the linker finds: one that the process has loaded already, as PyTorch has its
// own, or the system's.
Result<Nvrtc> load() {
  void* opened = nullptr;
  for (const char* name : {"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so.11.2"})
    if ((opened = dlopen(name, RTLD_NOW | RTLD_LOCAL)) != nullptr) break;
  if (!opened)
    return Status{Code::kFailedPrecondition,
                  "kernels need NVRTC, which the linker does not find: pip install "
                  "nvidia-cuda-nvrtc, and name the folder of its libnvrtc.so in LD_LIBRARY_PATH"};
  Nvrtc library;
  bool complete = true;
  const auto find = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(opened, name));
    complete = complete && function != nullptr;
  };
  find(library.create, "nvrtcCreateProgram");
  find(library.destroy, "nvrtcDestroyProgram");
  find(library.compile, "nvrtcCompileProgram");
  find(library.log_size, "nvrtcGetProgramLogSize");
  find(library.log, "nvrtcGetProgramLog");
  find(library.code_size, "nvrtcGetCUBINSize");
  find(library.code, "nvrtcGetCUBIN");
  find(library.error, "nvrtcGetErrorString");
  if (!complete)
    return Status{Code::kFailedPrecondition, "this NVRTC is too old: 11.2 or newer is needed"};
  return library;
}

const Result<Nvrtc>& library() {
  static const Result<Nvrtc> loaded = load();
  return loaded;
}

}  // namespace

Result<std::vector<char>> compile(const KernelSource& source, int architecture) {
  if (!library()) return library().status();
  const Nvrtc& nvrtc = *library();
  struct Compilation {
    const Nvrtc& nvrtc;
    Program program = nullptr;
    ~Compilation() {
      if (program) nvrtc.destroy(&program);
    }
  } made{nvrtc};
  const auto failed = [&](Code code, int result, std::string_view more = {}) {
    return Status{code, text({"a kernel could not be compiled for a device of capability ",
                              architecture / 10, ".", architecture % 10, ": ", nvrtc.error(result),
                              more.empty() ? "" : ": ", more})};
  };
  int result = nvrtc.create(&made.program, source.text, "kernel.cu", 0, nullptr, nullptr);
  if (result != kSuccess) return failed(Code::kInternal, result);
  std::vector<std::string> options = {text({"--gpu-architecture=sm_", architecture}), "--std=c++17",
                                      "--fmad=false"};
  for (const std::string& macro : source.macros) options.push_back("-D" + macro);
  std::vector<const char*> given;
  for (const std::string& option : options) given.push_back(option.c_str());
  result = nvrtc.compile(made.program, static_cast<int>(given.size()), given.data());
  if (result == kCompilation) {
    size_t size = 0;
    std::string log;
    if (nvrtc.log_size(made.program, &size) == kSuccess && size > 1) {
      log.resize(size);
      if (nvrtc.log(made.program, log.data()) != kSuccess) log.clear();
    }
    return failed(Code::kInvalidArgument, result, log.c_str());
  }
  if (result != kSuccess)
    return failed(result == kInvalidOption ? Code::kFailedPrecondition : Code::kInternal, result);
  size_t size = 0;
  if ((result = nvrtc.code_size(made.program, &size)) != kSuccess)
    return failed(Code::kInternal, result);
  std::vector<char> code(size);
  if ((result = nvrtc.code(made.program, code.data())) != kSuccess)
    return failed(Code::kInternal, result);
  return code;
}

}  // namespace tw::device

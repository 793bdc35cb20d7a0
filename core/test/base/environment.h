// SPDX-License-Identifier: Apache-2.0
// The settings in the environment, for the time of a test.
#pragma once

#include <unistd.h>

#include <cstdlib>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tw::test {

// As long as it lives, exactly these are set.
class Environment {
 public:
  explicit Environment(const std::vector<std::pair<const char*, const char*>>& variables) {
    for (char** entry = environ; *entry; ++entry) {
      const std::string_view whole = *entry;
      if (whole.starts_with("TENSORWIRE_") || whole.starts_with("TF_RDMA_"))
        before_.emplace_back(whole.substr(0, whole.find('=')), whole.substr(whole.find('=') + 1));
    }
    for (const auto& [name, value] : before_) ::unsetenv(name.c_str());
    for (const auto& [name, value] : variables) {
      ::setenv(name, value, 1);
      set_.emplace_back(name);
    }
  }
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;
  ~Environment() {
    for (const std::string& name : set_) ::unsetenv(name.c_str());
    for (const auto& [name, value] : before_) ::setenv(name.c_str(), value.c_str(), 1);
  }

 private:
  std::vector<std::pair<std::string, std::string>> before_;
  std::vector<std::string> set_;
};

}  // namespace tw::test

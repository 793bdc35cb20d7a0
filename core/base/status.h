// SPDX-License-Identifier: Apache-2.0
// Errors as values: a gRPC status code and a sentence for people.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

namespace tw {

// The numbers are gRPC's (grpc/status.h), so that they travel unchanged.
enum class Code : uint8_t {
  kOk = 0,
  kCancelled = 1,
  kUnknown = 2,
  kInvalidArgument = 3,
  kDeadlineExceeded = 4,
  kNotFound = 5,
  kAlreadyExists = 6,
  kPermissionDenied = 7,
  kResourceExhausted = 8,
  kFailedPrecondition = 9,
  kAborted = 10,
  kOutOfRange = 11,
  kUnimplemented = 12,
  kInternal = 13,
  kUnavailable = 14,
  kDataLoss = 15,
  kUnauthenticated = 16,
};

class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(Code code, std::string details) : code_(code), details_(std::move(details)) {}

  bool ok() const { return code_ == Code::kOk; }
  Code code() const { return code_; }
  const std::string& details() const& { return details_; }
  std::string details() && { return std::move(details_); }

 private:
  Code code_ = Code::kOk;
  std::string details_;
};

// "<what>: <strerror(error)>" under `code`.
Status errno_status(Code code, std::string_view what, int error);

// A value or the reason why there is none. value() of a failed Result is a bug of the caller.
template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}         // implicit
  Result(Status status) : state_(std::in_place_index<1>, std::move(status)) {}  // implicit

  bool ok() const { return state_.index() == 0; }
  explicit operator bool() const { return ok(); }
  T& value() & { return std::get<0>(state_); }
  const T& value() const& { return std::get<0>(state_); }
  T&& value() && { return std::get<0>(std::move(state_)); }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }
  const Status& status() const { return std::get<1>(state_); }

 private:
  std::variant<T, Status> state_;
};

}  // namespace tw

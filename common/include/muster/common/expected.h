// SPDX-License-Identifier: Apache-2.0
// A value, or the Status of the operation that failed to produce one. Modelled on C++23
// std::expected.
//
// Thread-safety: a value type, like its content.
#pragma once

#include <muster/common/check.h>
#include <muster/common/status.h>

#include <utility>
#include <variant>

namespace muster {

template <typename T>
class [[nodiscard]] Expected {
 public:
  using value_type = T;

  Expected(T value) : state_(std::in_place_index<0>, std::move(value)) {}  // NOLINT(google-*)

  // `status` must not be a success: there would be neither value nor error.
  Expected(Status status) : state_(std::in_place_index<1>, std::move(status)) {  // NOLINT(google-*)
    MUSTER_CHECK(!std::get<1>(state_).ok(), "Expected built from a successful Status");
  }

  [[nodiscard]] bool has_value() const { return state_.index() == 0; }

  [[nodiscard]] bool ok() const { return has_value(); }

  explicit operator bool() const { return has_value(); }

  // Returns success if there is a value.
  [[nodiscard]] Status status() const { return has_value() ? Status{} : std::get<1>(state_); }

  // Returns the value; fails a MUSTER_CHECK if there is none.
  [[nodiscard]] T& value() & {
    require();
    return std::get<0>(state_);
  }

  [[nodiscard]] const T& value() const& {
    require();
    return std::get<0>(state_);
  }

  [[nodiscard]] T&& value() && {
    require();
    return std::get<0>(std::move(state_));
  }

  [[nodiscard]] T& operator*() & { return value(); }

  [[nodiscard]] const T& operator*() const& { return value(); }

  [[nodiscard]] T&& operator*() && { return std::move(*this).value(); }

  [[nodiscard]] T* operator->() { return &value(); }

  [[nodiscard]] const T* operator->() const { return &value(); }

  [[nodiscard]] T value_or(T fallback) const& {
    return has_value() ? std::get<0>(state_) : std::move(fallback);
  }

 private:
  void require() const {
    MUSTER_CHECK(has_value(), "value() of a failed Expected: " + std::get<1>(state_).to_string());
  }

  std::variant<T, Status> state_;
};

}  // namespace muster

#define MUSTER_CONCAT_INNER_(a, b) a##b
#define MUSTER_CONCAT_(a, b) MUSTER_CONCAT_INNER_(a, b)

// MUSTER_ASSIGN_OR_RETURN(auto file, open(path)): declares or assigns, or returns the Status.
#define MUSTER_ASSIGN_OR_RETURN(target, expression) \
  MUSTER_ASSIGN_OR_RETURN_IMPL_(MUSTER_CONCAT_(muster_expected_, __LINE__), target, expression)
#define MUSTER_ASSIGN_OR_RETURN_IMPL_(holder, target, expression) \
  auto holder = (expression);                                     \
  if (!holder.has_value()) {                                      \
    return holder.status();                                       \
  }                                                               \
  target = std::move(holder).value()

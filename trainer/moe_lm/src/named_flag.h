// SPDX-License-Identifier: Apache-2.0
// A command-line flag whose value is read by one of the parse functions.
#pragma once

#include <muster/common/expected.h>

#include <CLI/CLI.hpp>

#include <string>

namespace muster::moe_lm {

// `shown` is the default in the help.
template <typename T>
void add_named(
    CLI::App& app,
    const std::string& flag,
    T& target,
    Expected<T> (*parse)(const std::string&),
    const std::string& help,
    const std::string& shown) {
  app.add_option_function<std::string>(
         flag,
         [flag, &target, parse](const std::string& text) {
           auto value = parse(text);
           if (!value) {
             throw CLI::ValidationError(flag, value.status().message());
           }
           target = *value;
         },
         help)
      ->default_str(shown);
}

}  // namespace muster::moe_lm

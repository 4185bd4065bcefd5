// SPDX-License-Identifier: Apache-2.0
#include "collector/src/exposition.h"

#include <muster/common/text.h>

#include <array>
#include <cmath>

namespace muster::collector {

namespace {

// [a-zA-Z_:][a-zA-Z0-9_:]*
std::string to_metric_name(std::string_view name) {
  std::string clean;
  for (const char letter : name) {
    const bool alphabetic = (letter >= 'a' && letter <= 'z') || (letter >= 'A' && letter <= 'Z');
    const bool digit = letter >= '0' && letter <= '9';
    clean +=
        alphabetic || letter == '_' || letter == ':' || (digit && !clean.empty()) ? letter : '_';
  }
  return clean.empty() ? "_" : clean;
}

std::string escape(std::string_view text, bool quotes) {
  std::string escaped;
  for (const char letter : text) {
    if (letter == '\\') {
      escaped += "\\\\";
    } else if (letter == '\n') {
      escaped += "\\n";
    } else if (letter == '"' && quotes) {
      escaped += "\\\"";
    } else {
      escaped += letter;
    }
  }
  return escaped;
}

std::string to_number(double value) {
  if (std::isnan(value)) {
    return "NaN";
  }
  if (std::isinf(value)) {
    return value > 0 ? "+Inf" : "-Inf";
  }
  return general(value, 12);
}

}  // namespace

void Exposition::add(
    std::string_view name,
    std::string_view type,
    std::string_view help,
    const Labels& labels,
    double value) {
  const std::string clean = to_metric_name(name);
  Family& family = families_[clean];
  if (family.type.empty()) {
    family.type = type;
    family.help = escape(help, false);
  }
  std::string list;
  for (const auto& [label, content] : labels) {
    list += (list.empty() ? "" : ",") + label + "=\"" + escape(content, true) + "\"";
  }
  family.samples += clean;
  if (!list.empty()) {
    family.samples += "{" + list + "}";
  }
  family.samples += " " + to_number(value) + "\n";
}

std::string Exposition::text() const {
  std::string text;
  for (const auto& [name, family] : families_) {
    text += "# HELP " + name + " " + family.help + "\n";
    text += "# TYPE " + name + " " + family.type + "\n";
    text += family.samples;
  }
  return text;
}

}  // namespace muster::collector

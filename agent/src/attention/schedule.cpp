// SPDX-License-Identifier: Apache-2.0
#include <muster/agent/attention_schedule.h>

#include <algorithm>
#include <charconv>
#include <utility>

namespace muster::agent {
namespace {

constexpr std::int64_t kNoEnd = AttentionRule::kNoEnd;
constexpr const char* kRuleForm =
    "write [steps BEGIN:END] [layers 0,2,4-7|all] full, or the same with moba BLOCK TOPK "
    "[neighbour] [shared] in place of full, or last_full N";
constexpr const char* kShortForm = "write moba:BLOCK,TOPK or moba:BLOCK,TOPK,last_full=N";

using Words = std::vector<std::string_view>;

Words split(std::string_view text, std::string_view separators, bool keep_empty) {
  Words words;
  std::size_t begin = 0;
  while (begin <= text.size()) {
    const std::size_t end = std::min(text.find_first_of(separators, begin), text.size());
    if (keep_empty || end > begin) {
      words.push_back(text.substr(begin, end - begin));
    }
    begin = end + 1;
  }
  return words;
}

// Digits only, and within 63 bits.
std::optional<std::int64_t> number(std::string_view text) {
  std::int64_t value = 0;
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool whole = parsed.ec == std::errc{} && parsed.ptr == text.data() + text.size();
  return whole && text.front() != '-' ? std::optional{value} : std::nullopt;
}

std::string in_quotes(std::string_view text) {
  return "'" + std::string{text} + "'";
}

Status refuse(const std::string& what, const char* remedy) {
  return invalid_argument(what, "; ", remedy);
}

bool is_everything(const AttentionRule& rule) {
  return rule.begin_step == 0 && rule.end_step == kNoEnd && rule.layers.empty();
}

bool overlap(const LayerRange& a, const LayerRange& b) {
  return a.first <= b.last && b.first <= a.last;
}

bool names(const AttentionRule& rule, const LayerRange& layers) {
  return rule.layers.empty() ||
         std::any_of(rule.layers.begin(), rule.layers.end(), [&](const LayerRange& range) {
           return overlap(range, layers);
         });
}

// Checks that concern one rule alone.
Status check_rule(const AttentionRule& rule) {
  if (rule.begin_step < 0 || rule.begin_step >= rule.end_step) {
    return refuse(
        "the steps of rule " + in_quotes(to_string(rule)) + " contain no step",
        "begin at 0 or later and end after that");
  }
  for (std::size_t i = 0; i < rule.layers.size(); ++i) {
    const LayerRange& range = rule.layers[i];
    if (range.first < 0 || range.first > range.last) {
      return refuse(
          "a range of layers of rule " + in_quotes(to_string(rule)) + " is empty",
          "put the smaller layer first, counted from 0");
    }
    for (std::size_t j = 0; j < i; ++j) {
      if (overlap(range, rule.layers[j])) {
        return refuse(
            "rule " + in_quotes(to_string(rule)) + " names layer " +
                std::to_string(std::max(range.first, rule.layers[j].first)) + " twice",
            "name each layer once");
      }
    }
  }
  if (rule.moba && (rule.moba->block < 1 || rule.moba->top_k < 1)) {
    return refuse(
        "the block size and the number of blocks of rule " + in_quotes(to_string(rule)) +
            " must both be at least 1",
        "for example moba 512 3");
  }
  return {};
}

Status check_pair(const AttentionRule& a, const AttentionRule& b) {
  if (a.begin_step >= b.end_step || b.begin_step >= a.end_step) {
    return {};
  }
  const std::vector<LayerRange> all{{0, kNoEnd}};
  for (const LayerRange& range : a.layers.empty() ? all : a.layers) {
    if (names(b, range)) {
      return refuse(
          "rules " + in_quotes(to_string(a)) + " and " + in_quotes(to_string(b)) +
              " name the same layer for step " +
              std::to_string(std::max(a.begin_step, b.begin_step)),
          "let one of them leave it out");
    }
  }
  return {};
}

Status check_rules(const AttentionSchedule& schedule) {
  const auto& rules = schedule.rules;
  for (std::size_t i = 0; i < rules.size(); ++i) {
    MUSTER_RETURN_IF_ERROR(check_rule(rules[i]));
    for (std::size_t j = 0; j < i; ++j) {
      MUSTER_RETURN_IF_ERROR(check_pair(rules[j], rules[i]));
    }
  }
  return schedule.last_full >= 0
             ? Status{}
             : refuse("last_full is " + std::to_string(schedule.last_full), "use 0 or more");
}

Status parse_steps(std::string_view text, AttentionRule& rule) {
  const Words ends = split(text, ":", true);
  const auto begin = number(ends.front());
  const bool open = ends.size() == 2 && ends[1].empty();
  const auto end = ends.size() == 2 && !open ? number(ends[1]) : std::nullopt;
  if (!begin || (!open && !end)) {
    return refuse(
        "steps " + in_quotes(text) + " is not BEGIN:END",
        "write for example 0:9000, or 9000: without an end");
  }
  rule.begin_step = *begin;
  rule.end_step = open ? kNoEnd : *end;
  return {};
}

Status parse_layers(std::string_view text, AttentionRule& rule) {
  if (text == "all") {
    return {};
  }
  for (const std::string_view part : split(text, ",", true)) {
    const Words ends = split(part, "-", true);
    const auto first = number(ends.front());
    const auto last = number(ends.back());
    if (!first || !last || ends.size() > 2) {
      return refuse(
          "layers " + in_quotes(text) + " contains " + in_quotes(part) +
              ", which is not a layer or a range",
          "write for example 0,2,4-7 or all");
    }
    rule.layers.push_back({*first, *last});
  }
  return {};
}

Status set_sizes(std::string_view block, std::string_view top_k, AttentionRule& rule) {
  const auto size = number(block);
  const auto count = number(top_k);
  if (!size || !count || *count > std::numeric_limits<int>::max()) {
    return refuse(
        "block size " + in_quotes(block) + " and number of blocks " + in_quotes(top_k) +
            " must be whole numbers",
        "for example 512 and 3");
  }
  rule.moba = kernels::MobaOptions{.block = *size, .top_k = static_cast<int>(*count)};
  return {};
}

// The words after steps and layers.
Status parse_mode(const Words& words, std::size_t at, AttentionRule& rule) {
  if (at < words.size() && words[at] == "full" && at + 1 == words.size()) {
    return {};
  }
  if (at + 2 >= words.size() || words[at] != "moba") {
    return refuse(
        at < words.size() ? "unexpected word in a rule: " + in_quotes(words[at])
                          : std::string{"the rule ends before full or moba"},
        kRuleForm);
  }
  MUSTER_RETURN_IF_ERROR(set_sizes(words[at + 1], words[at + 2], rule));
  for (const std::string_view word :
       Words{words.begin() + static_cast<std::ptrdiff_t>(at + 3), words.end()}) {
    bool* flag = nullptr;
    if (word == "neighbour") {
      flag = &rule.moba->force_neighbour;
    } else if (word == "shared") {
      flag = &rule.moba->share_in_group;
    }
    if (flag == nullptr || std::exchange(*flag, true)) {
      return refuse("unexpected word in a rule: " + in_quotes(word), kRuleForm);
    }
  }
  return {};
}

Status parse_last_full(std::string_view text, AttentionSchedule& schedule, bool& seen) {
  const auto count = number(text);
  if (!count || std::exchange(seen, true)) {
    return refuse(
        count ? std::string{"last_full is there twice"}
              : "last_full " + in_quotes(text) + " is not a whole number",
        "write last_full N once, N layers");
  }
  schedule.last_full = *count;
  return {};
}

// "moba:BLOCK,TOPK[,last_full=N]"
Status parse_short(std::string_view text, AttentionSchedule& schedule, bool& last_full_seen) {
  constexpr std::string_view kMoba = "moba:";
  constexpr std::string_view kLastFull = "last_full=";
  const Words parts = split(text.substr(kMoba.size()), ",", true);
  const bool fits = parts.size() == 2 || (parts.size() == 3 && parts[2].starts_with(kLastFull));
  if (!fits) {
    return refuse(in_quotes(text) + " is no attention", kShortForm);
  }
  AttentionRule rule;
  MUSTER_RETURN_IF_ERROR(set_sizes(parts[0], parts[1], rule));
  if (parts.size() == 3) {
    MUSTER_RETURN_IF_ERROR(
        parse_last_full(parts[2].substr(kLastFull.size()), schedule, last_full_seen));
  }
  schedule.rules.push_back(std::move(rule));
  return {};
}

Status parse_line(const Words& words, AttentionSchedule& schedule, bool& last_full_seen) {
  if (words.front() == "last_full") {
    return words.size() == 2 ? parse_last_full(words[1], schedule, last_full_seen)
                             : refuse("last_full needs one number", "write last_full N");
  }
  if (words.front().starts_with("moba:") && words.size() == 1) {
    MUSTER_RETURN_IF_ERROR(parse_short(words.front(), schedule, last_full_seen));
    return check_rule(schedule.rules.back());
  }
  AttentionRule rule;
  std::size_t at = 0;
  if (words.size() > at + 1 && words[at] == "steps") {
    MUSTER_RETURN_IF_ERROR(parse_steps(words[at + 1], rule));
    at += 2;
  }
  if (words.size() > at + 1 && words[at] == "layers") {
    MUSTER_RETURN_IF_ERROR(parse_layers(words[at + 1], rule));
    at += 2;
  }
  MUSTER_RETURN_IF_ERROR(parse_mode(words, at, rule));
  schedule.rules.push_back(std::move(rule));
  return check_rule(schedule.rules.back());
}

std::string layers_text(const std::vector<LayerRange>& layers) {
  std::string text;
  for (const LayerRange& range : layers) {
    text += (text.empty() ? "" : ",") + std::to_string(range.first);
    if (range.last != range.first) {
      text += "-" + std::to_string(range.last);
    }
  }
  return text;
}

std::string mode_text(const std::optional<kernels::MobaOptions>& moba) {
  if (!moba) {
    return "full";
  }
  return "moba " + std::to_string(moba->block) + " " + std::to_string(moba->top_k) +
         (moba->force_neighbour ? " neighbour" : "") + (moba->share_in_group ? " shared" : "");
}

}  // namespace

std::string to_string(const AttentionRule& rule) {
  std::string text;
  if (rule.begin_step != 0 || rule.end_step != kNoEnd) {
    text += "steps " + std::to_string(rule.begin_step) + ":" +
            (rule.end_step == kNoEnd ? std::string{} : std::to_string(rule.end_step)) + " ";
  }
  if (!rule.layers.empty()) {
    text += "layers " + layers_text(rule.layers) + " ";
  }
  return text + mode_text(rule.moba);
}

std::string to_string(const AttentionMode& mode) {
  switch (mode.reason) {
    case AttentionReason::kLastFull:
      return "full (one of the last layers)";
    case AttentionReason::kShortSequence:
      return "full (the sequence is short enough for all its blocks to be chosen)";
    default:
      return mode_text(mode.moba);
  }
}

std::string label_of(const AttentionMode& mode) {
  if (!mode.moba) {
    return "full";
  }
  return "moba:" + std::to_string(mode.moba->block) + "," + std::to_string(mode.moba->top_k) +
         (mode.moba->force_neighbour ? ",neighbour" : "") +
         (mode.moba->share_in_group ? ",shared" : "");
}

bool same_attention(const AttentionMode& a, const AttentionMode& b) {
  if (!a.moba || !b.moba) {
    return a.moba.has_value() == b.moba.has_value();
  }
  return a.moba->block == b.moba->block && a.moba->top_k == b.moba->top_k &&
         a.moba->force_neighbour == b.moba->force_neighbour &&
         a.moba->share_in_group == b.moba->share_in_group;
}

Expected<AttentionSchedule> AttentionSchedule::parse(std::string_view text) {
  AttentionSchedule schedule;
  bool last_full_seen = false;
  const Words lines = split(text, "\n", true);
  for (std::size_t line = 0; line < lines.size(); ++line) {
    const std::string_view content = lines[line].substr(0, lines[line].find('#'));
    const Words words = split(content, " \t\r", false);
    if (!words.empty()) {
      MUSTER_RETURN_IF_ERROR(parse_line(words, schedule, last_full_seen)
                                 .context("attention schedule, line " + std::to_string(line + 1)));
    }
  }
  if (schedule.rules.empty() && !last_full_seen) {
    return refuse("attention schedule, line 1: no rule found", "write full, or one rule per line");
  }
  MUSTER_RETURN_IF_ERROR(check_rules(schedule).context("attention schedule"));
  // Full attention everywhere is the meaning of an empty list of rules.
  if (schedule.rules.size() == 1 && is_everything(schedule.rules[0]) && !schedule.rules[0].moba) {
    schedule.rules.clear();
  }
  return schedule;
}

Status AttentionSchedule::validate(std::int64_t layers) const {
  MUSTER_RETURN_IF_ERROR(check_rules(*this).context("attention schedule"));
  for (const AttentionRule& rule : rules) {
    for (const LayerRange& range : rule.layers) {
      if (range.last >= layers) {
        return refuse(
            "attention schedule: rule " + in_quotes(agent::to_string(rule)) + " names layer " +
                std::to_string(range.last) + ", but the model has " + std::to_string(layers) +
                " layers, counted from 0",
            "name layers that are there");
      }
    }
  }
  if (last_full > layers) {
    return refuse(
        "attention schedule: last_full " + std::to_string(last_full) + " is more than the " +
            std::to_string(layers) + " layers of the model",
        "use at most that many");
  }
  return {};
}

AttentionMode AttentionSchedule::mode_at(const AttentionPlace& place) const {
  if (place.layer >= place.layers - last_full) {
    return {std::nullopt, AttentionReason::kLastFull};
  }
  for (const AttentionRule& rule : rules) {
    const bool covers = rule.begin_step <= place.step && place.step < rule.end_step;
    if (!covers || !names(rule, {place.layer, place.layer})) {
      continue;
    }
    // Divided rather than multiplied: block times top_k may not fit.
    const bool all_chosen = rule.moba && place.sequence / rule.moba->block +
                                                 (place.sequence % rule.moba->block != 0 ? 1 : 0) <=
                                             rule.moba->top_k;
    return all_chosen ? AttentionMode{std::nullopt, AttentionReason::kShortSequence}
                      : AttentionMode{rule.moba, AttentionReason::kRule};
  }
  return {};
}

std::string AttentionSchedule::to_string() const {
  if (rules.empty() && last_full == 0) {
    return "full";
  }
  if (rules.size() == 1 && is_everything(rules[0]) && rules[0].moba &&
      !rules[0].moba->force_neighbour && !rules[0].moba->share_in_group) {
    return "moba:" + std::to_string(rules[0].moba->block) + "," +
           std::to_string(rules[0].moba->top_k) +
           (last_full == 0 ? std::string{} : ",last_full=" + std::to_string(last_full));
  }
  std::string text;
  for (const AttentionRule& rule : rules) {
    text += agent::to_string(rule) + "\n";
  }
  return last_full == 0 ? text : text + "last_full " + std::to_string(last_full) + "\n";
}

std::string AttentionSchedule::describe(
    std::int64_t layers, std::int64_t step, std::int64_t sequence) const {
  const auto mode_text_of = [&](std::int64_t layer) {
    return agent::to_string(mode_at({layer, layers, step, sequence}));
  };
  std::string text;
  for (std::int64_t first = 0; first < layers;) {
    const std::string mode = mode_text_of(first);
    std::int64_t end = first + 1;
    while (end < layers && mode_text_of(end) == mode) {
      ++end;
    }
    text += text.empty() ? "" : ", ";
    text += end - first == 1 ? "layer " + std::to_string(first)
                             : "layers " + std::to_string(first) + "-" + std::to_string(end - 1);
    text += " " + mode;
    first = end;
  }
  return text;
}

}  // namespace muster::agent

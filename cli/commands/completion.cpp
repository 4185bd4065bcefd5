// SPDX-License-Identifier: Apache-2.0
// muster completion: scripts for bash, zsh and fish, written from the options of all subcommands.
#include "cli/commands/subcommands.h"

#include <CLI/CLI.hpp>

#include <cstdio>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace muster::cli {

namespace {

struct Word {
  std::string name;  // "list" or "--db"
  std::string description;
  bool takes_value{false};
};

// A command and what may follow it. `path` starts with the program: {"muster", "ckpt", "list"}.
struct Node {
  std::vector<std::string> path;
  std::vector<Word> commands;
  std::vector<Word> options;
};

// In a group with an empty name CLI11 hides a command or an option from --help.
std::vector<Word> visible_options(const CLI::App& app) {
  std::vector<Word> words;
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_group().empty()) {
      continue;
    }
    for (const std::string& name : option->get_lnames()) {
      words.push_back(
          {"--" + name, option->get_description(), option->get_items_expected_max() > 0});
    }
  }
  return words;
}

void collect(const CLI::App& app, std::vector<std::string> path, std::vector<Node>& nodes) {
  path.push_back(app.get_name());
  Node node{path, {}, visible_options(app)};
  const auto children =
      app.get_subcommands([](const CLI::App* child) { return !child->get_group().empty(); });
  for (const CLI::App* child : children) {
    node.commands.push_back({child->get_name(), child->get_description()});
  }
  nodes.push_back(std::move(node));
  for (const CLI::App* child : children) {
    collect(*child, path, nodes);
  }
}

std::string joined(const std::vector<std::string>& parts) {
  std::string text;
  for (const std::string& part : parts) {
    text += (text.empty() ? "" : " ") + part;
  }
  return text;
}

// In single quotes, as bash and zsh read it. fish also accepts \' inside, but not '\''.
std::string quoted(const std::string& text, std::string_view escaped_quote) {
  std::string out = "'";
  for (const char c : text) {
    if (c == '\'') {
      out += escaped_quote;
    } else {
      out += c == '\n' ? ' ' : c;
    }
  }
  return out + "'";
}

// The shells know a command by its path: "muster ckpt list".
std::string command_paths(const std::vector<Node>& nodes) {
  std::string patterns;
  for (const Node& node : nodes) {
    if (node.path.size() > 1) {
      patterns += (patterns.empty() ? "'" : " | '") + joined(node.path) + "'";
    }
  }
  return patterns;
}

std::string bash_script(const std::vector<Node>& nodes) {
  std::string cases;
  for (const Node& node : nodes) {
    std::string words;
    for (const auto* list : {&node.commands, &node.options}) {
      for (const Word& word : *list) {
        words += (words.empty() ? "" : " ") + word.name;
      }
    }
    cases += "    '" + joined(node.path) + "') words='" + words + "' ;;\n";
  }
  return R"(# bash completion of muster; load it with: source <(muster completion bash)
_muster() {
  local chain=muster words= i
  COMPREPLY=()
  for ((i = 1; i < COMP_CWORD; i++)); do
    [[ ${COMP_WORDS[i]} == -- ]] && return
    case "$chain ${COMP_WORDS[i]}" in
      )" +
         command_paths(nodes) + R"() chain+=" ${COMP_WORDS[i]}" ;;
    esac
  done
  case $chain in
)" + cases +
         R"(  esac
  mapfile -t COMPREPLY < <(compgen -W "$words" -- "${COMP_WORDS[COMP_CWORD]}")
}
complete -o bashdefault -o default -F _muster muster
)";
}

// "name:description" for _describe, which splits at the first unescaped colon.
std::string zsh_words(const std::vector<Word>& list) {
  std::string text;
  for (const Word& word : list) {
    text += " " + quoted(word.name + ":" + word.description, "'\\''");
  }
  return text;
}

std::string zsh_script(const std::vector<Node>& nodes) {
  std::string cases;
  for (const Node& node : nodes) {
    cases += "    '" + joined(node.path) + "')\n      commands=(" + zsh_words(node.commands) +
             " )\n      options=(" + zsh_words(node.options) + " )\n      ;;\n";
  }
  return R"(#compdef muster
# zsh completion of muster; load it with: source <(muster completion zsh)
_muster() {
  local chain=muster i
  local -a commands options
  for ((i = 2; i < CURRENT; i++)); do
    [[ $words[i] == -- ]] && { _files; return }
    case "$chain $words[i]" in
      )" +
         command_paths(nodes) + R"() chain+=" $words[i]" ;;
    esac
  done
  case $chain in
)" + cases +
         R"(  esac
  if [[ $words[CURRENT] == -* ]]; then
    _describe -o option options
  elif (( $#commands )); then
    _describe command commands
  else
    _files
  fi
}
if [[ $funcstack[1] == _muster ]]; then
  _muster "$@"
else
  compdef _muster muster
fi
)";
}

// True on a command line that names the node's command but not one of its subcommands.
std::string fish_condition(const Node& node) {
  std::string test;
  for (std::size_t i = 1; i < node.path.size(); ++i) {
    test +=
        (test.empty() ? "" : "; and ") + std::string{"__fish_seen_subcommand_from "} + node.path[i];
  }
  if (!node.commands.empty()) {
    test += (test.empty() ? "" : "; and ") + std::string{"not __fish_seen_subcommand_from"};
    for (const Word& command : node.commands) {
      test += " " + command.name;
    }
  }
  return test;
}

std::string fish_script(const std::vector<Node>& nodes) {
  std::string out = "# fish completion of muster; load it with: muster completion fish | source\n";
  for (const Node& node : nodes) {
    const std::string start = "complete -c muster -n " + quoted(fish_condition(node), "\\'");
    for (const Word& word : node.commands) {
      out += start + " -f -a " + word.name + " -d " + quoted(word.description, "\\'") + "\n";
    }
    for (const Word& word : node.options) {
      out += start + " -l " + word.name.substr(2) + (word.takes_value ? " -r" : "") + " -d " +
             quoted(word.description, "\\'") + "\n";
    }
  }
  return out;
}

}  // namespace

Action declare_completion(CLI::App& command, const Tail& /*tail*/) {
  command.group("");
  command.footer("Example:\n  source <(muster completion bash)");
  const auto shell = std::make_shared<std::string>();
  command.add_option("SHELL", *shell, "bash, zsh or fish")
      ->required()
      ->check(CLI::IsMember({"bash", "zsh", "fish"}));
  return [shell, &command]() -> int {
    std::vector<Node> nodes;
    collect(*command.get_parent(), {}, nodes);
    const std::string script = *shell == "bash"  ? bash_script(nodes)
                               : *shell == "zsh" ? zsh_script(nodes)
                                                 : fish_script(nodes);
    std::fputs(script.c_str(), stdout);
    return 0;
  };
}

}  // namespace muster::cli

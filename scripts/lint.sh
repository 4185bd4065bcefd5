#!/usr/bin/env bash
# scripts/lint.sh BUILD_DIR: clang-tidy over the library sources, warnings as errors.
# LINT_SINCE=<commit> limits it to files changed since then: a whole-tree run takes minutes.
set -euo pipefail
cd "$(dirname "$0")/.."
if [ -n "${LINT_SINCE:-}" ]; then
  files=$(git diff --name-only --diff-filter=d "$LINT_SINCE" -- '*.cpp')
else
  files=$(git ls-files -- '*.cpp')
fi
echo "$files" | grep -E '^(common|wire|comm|kernels|optimizer|checkpoint|agent|collector|dashboard|cli)/' |
  xargs -r -P "$(nproc)" -n 1 clang-tidy-14 -p "$1" --quiet

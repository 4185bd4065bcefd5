#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# scripts/gates.sh BUILD_DIR: the gates that need a compiler's eye, over what changed since the commit
# named in .ci/base: formatting, sources that compile alone, clang's thread-safety warnings,
# clang-tidy. The last commit of a
# piece of work moves .ci/base forward. `make lint` looks at the whole library.
set -euo pipefail
cd "$(dirname "$0")/.."
build=${1:?usage: scripts/gates.sh BUILD_DIR}
if ! git rev-parse --git-dir >/dev/null 2>&1; then
  echo "gates: skipped, this folder is not a git repository"
  exit
fi
base=$(cat .ci/base)
if ! git cat-file -e "$base^{commit}" 2>/dev/null; then
  echo "gates: $base of .ci/base is not in this clone (a shallow one?); only formatting is checked"
  scripts/format.sh --check
  exit
fi
scripts/format.sh --check
SINCE=$base scripts/alone.sh "$build"
SINCE=$base scripts/thread_safety.sh "$build"
if ! command -v clang >/dev/null; then
  echo "gates: clang-tidy is skipped, it needs clang's headers (scripts/setup.sh lint, or apt-get install clang)"
  exit
fi
LINT_SINCE=$base scripts/lint.sh "$build"

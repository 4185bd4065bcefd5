#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# scripts/format.sh [--check]: formats every C++ and proto file that git knows, or names those that
# are not formatted. clang-format is pinned (scripts/setup.sh lint), so every machine agrees.
set -euo pipefail
cd "$(dirname "$0")/.."
formatter=build/tools/bin/clang-format
[ -x "$formatter" ] || {
  echo "format: $formatter is missing; run scripts/setup.sh lint" >&2
  exit 2
}
files() { git ls-files -co --exclude-standard -z -- '*.h' '*.cpp' '*.proto'; }
case ${1:-} in
  "") files | xargs -0r "$formatter" -i ;;
  --check)
    unformatted=$(files | xargs -0r -n 64 -P "$(nproc)" "$formatter" --dry-run 2>&1 |
      sed -n 's/^\([^:]*\):[0-9].*clang-format-violations.*/\1/p' | sort -u)
    [ -z "$unformatted" ] || {
      echo "$unformatted"
      echo "format: $(wc -l <<<"$unformatted") files are not formatted; run make format" >&2
      exit 1
    }
    echo "format: $(files | tr -cd '\0' | wc -c) files formatted"
    ;;
  *)
    echo "usage: scripts/format.sh [--check]" >&2
    exit 2
    ;;
esac

#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# scripts/alone.sh [BUILD_DIR]: parses each source by itself. The presets compile several sources
# together (MUSTER_UNITY), where one can use what only its neighbour includes or defines.
#
# SINCE=<commit> limits the run to the sources changed since then.
set -euo pipefail
cd "$(dirname "$0")/.."
build=${1:-build/release}
[ -f "$build/compile_commands.json" ] || {
  echo "alone: $build has no compile_commands.json; run make build first" >&2
  exit 2
}
if [ -n "${SINCE:-}" ]; then
  mapfile -t files < <(git diff --name-only --diff-filter=d "$SINCE" -- '*.cpp')
else
  mapfile -t files < <(git ls-files -- '*.cpp')
fi
flags=""
[ ${#files[@]} -eq 0 ] || flags=$(scripts/compile_flags.py "$build" "${files[@]}" 2>/dev/null)
[ -n "$flags" ] || {
  echo "alone: nothing to check"
  exit 0
}
xargs -P "$(nproc)" -d '\n' -I{} bash -c "${CXX:-c++} -fsyntax-only -w {}" <<<"$flags"
echo "alone: $(wc -l <<<"$flags") files compile by themselves"

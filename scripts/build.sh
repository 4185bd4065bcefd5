#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# scripts/build.sh PRESET [TARGET...]: configures when needed and builds, with one line per stage.
# Compiler output goes to build/<preset>.log and is shown only when something fails.
set -euo pipefail
cd "$(dirname "$0")/.."

preset=$1
shift
log=build/$preset.log
mkdir -p build
# ccache finds the headers in the compiler's own list instead of running the preprocessor first.
export CCACHE_DEPEND=1
# Lets ccache accept precompiled headers.
export CCACHE_SLOPPINESS=pch_defines,time_macros

fail() {
  grep -E -A 12 'error|Error|FAILED' "$log" | head -n 60 >&2 || tail -n 30 "$log" >&2
  echo "build: $1 failed; the full log is $log" >&2
  exit 1
}

compile() {
  if [ ! -t 1 ]; then
    cmake --build "build/$preset" "${targets[@]}" >"$log" 2>&1
    return
  fi
  # Ninja's status line is the progress on a terminal; elsewhere one line is enough.
  NINJA_STATUS='build: %f/%t files ' cmake --build "build/$preset" "${targets[@]}" 2>&1 | tee "$log" |
    awk '/^build: / { printf "\r\033[K%.70s", $0; fflush() } END { printf "\r\033[K" }'
}

# Configures again after a set-up, so that CMake finds a newly installed Chromium, npm or library.
# CMake does not look at a changed preset by itself.
configured=build/$preset/.configured
if [ ! -f "$configured" ] || [ build/setup.log -nt "$configured" ] ||
  [ CMakePresets.json -nt "$configured" ]; then
  echo "build: configuring build/$preset"
  cmake --preset "$preset" >"$log" 2>&1 || fail configure
  touch "$configured"
fi
targets=()
for target in "$@"; do
  targets+=(--target "$target")
done
started=$SECONDS
echo "build: compiling ${*:-everything} (preset $preset, log: $log)"
compile || fail compile
echo "build: done in $((SECONDS - started)) s"

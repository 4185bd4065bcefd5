#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# scripts/thread_safety.sh [BUILD_DIR]: clang's thread-safety warnings, as errors, over every source
# that sees an annotated mutex (muster/common/mutex.h). Only the front end runs.
#
# SINCE=<commit> limits the run to what changed since then. Without clang it prints a notice and passes.
set -euo pipefail
cd "$(dirname "$0")/.."
build=${1:-build/release}
clang=$(command -v clang++ || compgen -c clang++- | sort -V | tail -n 1 || true)
if [ -z "$clang" ]; then
  echo "thread safety: skipped, clang is not installed (scripts/setup.sh test installs it)"
  exit 0
fi
[ -f "$build/compile_commands.json" ] || {
  echo "thread safety: $build has no compile_commands.json; run make build first" >&2
  exit 2
}
grep -qF -e "\"$PWD/" -e "\"$(pwd -P)/" "$build/compile_commands.json" || {
  echo "thread safety: $build was configured in another folder; remove it and run make build" >&2
  exit 2
}

# Sources that declare or use a mutex: they, or their header, name the annotations.
mapfile -t headers < <(git grep -lE 'muster/common/mutex\.h|MUSTER_GUARDED_BY' -- '*.h')
patterns=('muster/common/mutex\.h')
for header in "${headers[@]}"; do
  patterns+=("${header#*/include/}")
done
pattern=$(IFS='|'; echo "${patterns[*]}")
mapfile -t files < <(git grep -lE "$pattern" -- '*.cpp' | grep -v '^tests/' || true)
if [ -n "${SINCE:-}" ]; then
  # A changed header can break any of its users: then all are looked at. (grep -q would end before git
  # has written everything, and the pipeline would fail.)
  if ! git diff --name-only "$SINCE" -- '*.h' | grep -E "$pattern" >/dev/null; then
    mapfile -t files < <(comm -12 <(printf '%s\n' "${files[@]}" | sort) \
      <(git diff --name-only --diff-filter=d "$SINCE" -- '*.cpp' | sort))
  fi
fi
[ ${#files[@]} -gt 0 ] || {
  echo "thread safety: nothing to check"
  exit 0
}

flags=$(python3 scripts/compile_flags.py "$build" "${files[@]}")
[ -n "$flags" ] || {
  echo "thread safety: nothing to check"
  exit 0
}
xargs -P "$(nproc)" -d '\n' -I{} bash -c "$clang -fsyntax-only -Wno-everything -Wthread-safety \
  -Werror=thread-safety {}" <<<"$flags"
echo "thread safety: $(wc -l <<<"$flags") files clean"

#!/usr/bin/env bash
# scripts/lint.sh BUILD_DIR: clang-tidy over the library sources, warnings as errors.
#
# BUILD_DIR holds the compile commands. LINT_SINCE=<commit> limits the run to the files changed
# since then (a whole-tree run takes minutes); LINT_JOBS=<n> sets how many run at once. Headers are
# read through the sources that include them; generated code lies in BUILD_DIR and is left alone.
set -euo pipefail
cd "$(dirname "$0")/.."
build=${1:?usage: scripts/lint.sh BUILD_DIR}
[ -f "$build/compile_commands.json" ] || {
  echo "lint: $build has no compile_commands.json; run make build first" >&2
  exit 2
}

if [ -n "${LINT_SINCE:-}" ]; then
  changed=$(git diff --name-only --diff-filter=d "$LINT_SINCE" -- '*.cpp' '*/include/*.h')
else
  changed=$(git ls-files -- '*.cpp')
fi
folders='common|wire|comm|kernels|parallel|optimizer|checkpoint|agent|collector|dashboard|launcher|cli|trainer'
mapfile -t files < <(grep -E "^($folders)/" <<<"$changed" || true)
total=${#files[@]}
[ "$total" -gt 0 ] || {
  echo "lint: nothing to check"
  exit 0
}

logs=$build/lint
rm -rf "$logs"
mkdir -p "$logs"
# One line per finished file, "<exit status> <file>"; what clang-tidy said is in the file's log, so
# that two files never mix. The build is GCC's: clang does not know all of its warnings.
check() {
  local status=0
  clang-tidy-14 -p "$1" --quiet --extra-arg=-Wno-unknown-warning-option \
    --extra-arg=-Wreserved-identifier "$3" >"$2/${3//\//.}.log" 2>&1 || status=$?
  echo "$status $3"
}
export -f check

done=0
failed=0
while read -r status file; do
  done=$((done + 1))
  echo "[$done/$total] $file"
  if [ "$status" -ne 0 ]; then
    failed=$((failed + 1))
    grep -v ' warnings generated' "$logs/${file//\//.}.log" || echo "clang-tidy left with $status"
  fi
done < <(printf '%s\0' "${files[@]}" |
  xargs -0 -P "${LINT_JOBS:-$(nproc)}" -I{} bash -c 'check "$@"' check "$build" "$logs" {})

findings=$(cat "$logs"/*.log | grep -E ': (error|warning): .*\[' | sort -u | wc -l || true)
if [ "$failed" -ne 0 ] || [ "$done" -ne "$total" ]; then
  echo "lint: $findings findings, in $failed of $total files ($done checked)"
  exit 1
fi
echo "lint: $total files clean"

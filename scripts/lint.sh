#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# scripts/lint.sh BUILD_DIR: clang-tidy over the library sources, warnings as errors.
#
# BUILD_DIR holds the compile commands. LINT_SINCE=<commit> limits the run to the sources changed
# since then and a few that include the changed headers (a whole-tree run takes minutes);
# LINT_JOBS=<n> sets how many run at once. Generated code in BUILD_DIR is left alone.
set -euo pipefail
cd "$(dirname "$0")/.."
build=${1:?usage: scripts/lint.sh BUILD_DIR}
[ -f "$build/compile_commands.json" ] || {
  echo "lint: $build has no compile_commands.json; run make build first" >&2
  exit 2
}

if [ -n "${LINT_SINCE:-}" ]; then
  changed=$(scripts/lint_files.py "$LINT_SINCE")
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

# clang-tidy from PyPI has no built-in headers and cannot parse the C++ library of g++ 13 or newer, so
# it gets the headers of the installed clang and the library of g++ 12.
library=12
resources=$(clang -print-resource-dir) || {
  echo "lint: clang is missing; run scripts/setup.sh lint" >&2
  exit 2
}
flags=(-Wno-unknown-warning-option -Wreserved-identifier "-resource-dir=$resources")
if [ "$(g++ -dumpversion)" -gt $library ]; then
  flags+=(-nostdinc++ "-isystem/usr/include/c++/$library" "-isystem/usr/include/$(g++ -print-multiarch)/c++/$library")
fi

logs=$build/lint
rm -rf "$logs"
mkdir -p "$logs"
scripts/compile_commands.py "$build" >"$logs/compile_commands.json"
# One line per finished file, "<exit status> <file>"; clang-tidy's output is in the file's log, so
# that two files never mix. The build is GCC's: clang does not know all of its warnings.
check() {  # $1 = folder of logs and compile commands, $2 = file, then clang's flags
  local logs=$1 file=$2 status=0
  shift 2
  build/tools/bin/clang-tidy -p "$logs" --quiet "${@/#/--extra-arg=}" "$file" \
    >"$logs/${file//\//.}.log" 2>&1 || status=$?
  echo "$status $file"
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
  xargs -0 -P "${LINT_JOBS:-$(nproc)}" -I{} bash -c 'check "$@"' check "$logs" {} "${flags[@]}")

findings=$(cat "$logs"/*.log | grep -E ': (error|warning): .*\[' | sort -u | wc -l || true)
if [ "$failed" -ne 0 ] || [ "$done" -ne "$total" ]; then
  echo "lint: $findings findings, in $failed of $total files ($done checked)"
  exit 1
fi
echo "lint: $total files clean"

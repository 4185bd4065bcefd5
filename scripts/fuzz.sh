#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# scripts/fuzz.sh [SECONDS] [TARGET...]: builds the libFuzzer programs of tests/fuzz with clang and
# runs each (or the named ones, such as wire) for SECONDS, 60 by default.
#
# Every run starts from the seeds, the regression inputs and what earlier runs found
# (build/fuzz/corpus). Fails if one of them breaks, and prints where the input is and how to repeat it.
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${1:-60}
[[ $seconds =~ ^[1-9][0-9]*$ ]] || {
  echo "fuzz: SECONDS must be a whole number above 0, got \"$seconds\"" >&2
  exit 2
}
targets=("${@:2}")
command -v clang++ >/dev/null || {
  echo "fuzz: the targets fuzz_* need clang and libFuzzer; run scripts/setup.sh fuzz" >&2
  exit 2
}
[ ${#targets[@]} -gt 0 ] || for source in tests/fuzz/fuzz_*.cpp; do
  name=${source##*/fuzz_}
  targets+=("${name%.cpp}")
done

scripts/build.sh fuzz fuzzers
build=build/fuzz
"$build/bin/fuzz_seeds" "$build/seeds"
mkdir -p "$build/crashes"
failed=0
for name in "${targets[@]}"; do
  [ -x "$build/bin/fuzz_$name" ] || {
    echo "fuzz: no target $name; see tests/fuzz/fuzz_*.cpp" >&2
    exit 2
  }
  corpus=("$build/corpus/$name" "$build/seeds/$name")
  [ ! -d "tests/fuzz/regressions/$name" ] || corpus+=("tests/fuzz/regressions/$name")
  mkdir -p "$build/corpus/$name"
  log=$build/$name.log
  status=0
  UBSAN_OPTIONS=print_stacktrace=1 "$build/bin/fuzz_$name" -max_total_time="$seconds" -timeout=10 \
    -rss_limit_mb=2048 -malloc_limit_mb=256 -print_final_stats=1 -artifact_prefix="$build/crashes/$name-" \
    "${corpus[@]}" >"$log" 2>&1 || status=$?
  if [ $status -eq 0 ]; then
    echo "fuzz: $name ran $(sed -n 's/^stat::number_of_executed_units: *//p' "$log") inputs in $seconds s"
    continue
  fi
  failed=$((failed + 1))
  input=$(sed -n 's/.*Test unit written to //p' "$log" | tail -n 1)
  grep -E -m 3 'ERROR: |runtime error|SUMMARY|what\(\)' "$log" >&2 || tail -n 20 "$log" >&2
  echo "fuzz: $name failed; the log is $log" >&2
  [ -z "$input" ] || {
    echo "fuzz: the input is $input; repeat it with: $build/bin/fuzz_$name $input" >&2
    echo "fuzz: once mended, keep it: cp $input tests/fuzz/regressions/$name/" >&2
  }
done
[ $failed -eq 0 ] || {
  echo "fuzz: $failed of ${#targets[@]} targets failed" >&2
  exit 1
}

#!/usr/bin/env bash
# Installs muster into a scratch folder, builds examples/minimal against it with find_package, and
# trains with it on two ranks to a loss near 0.   installed_package_test.sh SOURCE BUILD MUSTER
set -euo pipefail
source_dir=$1 build_dir=$2 muster=$3
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

cmake --install "$build_dir" --prefix "$scratch/prefix" >"$scratch/install.log" ||
  { cat "$scratch/install.log"; exit 1; }
cmake -S "$source_dir/examples/minimal" -B "$scratch/build" -G Ninja \
  -DCMAKE_PREFIX_PATH="$scratch/prefix" >"$scratch/configure.log" 2>&1 ||
  { cat "$scratch/configure.log"; exit 1; }
cmake --build "$scratch/build" >"$scratch/build.log" 2>&1 || { tail -n 40 "$scratch/build.log"; exit 1; }
"$muster" run --nproc-per-node 2 --run-id package --checkpoint-root "$scratch/checkpoints" \
  -- "$scratch/build/train" | tee "$scratch/out"
grep -q 'step 300: loss 0\.00' "$scratch/out"

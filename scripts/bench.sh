#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# scripts/bench.sh BUILD_DIR [NAME...]: runs the benchmark programs and shows their claims.
# A claim is `claim NAME VALUE ± HALF`, or `claim NAME noisy`; benchmarks/README.md says how it is
# measured. MUSTER_BENCH_BUDGET multiplies the time a claim may take.
set -euo pipefail
cd "$(dirname "$0")/.."
export OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1
build=$1
shift
names=("$@")
[ ${#names[@]} -gt 0 ] || names=(attention telemetry store restart snapshot comm newton_schulz optimizer_updates moba ep_plan ep_dispatch ep_layer grouped_gemm)
for name in "${names[@]}"; do
  echo "bench: $name"
  "$build/bin/bench_$name"
done

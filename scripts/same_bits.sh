#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# scripts/same_bits.sh OLD_BIN NEW_BIN [DATA]: trains the reference model with the programs of two
# builds under every form of optimizer, attention and expert parallelism, and compares the final
# parameters of every rank byte for byte. For work that must not change a result.
#
# Builds from before the weight of auxiliary losses was corrected differ in --switch-loss unless
# DATA is given. OLD_BIN and NEW_BIN hold muster and moe_lm (build/release/bin). DATA is any text;
# without it the model recalls needles. Prints one line per form; exit code 1 when any differs.
set -euo pipefail
[ $# -ge 2 ] || { sed -n '3,8s/^# \{0,1\}//p' "$0" >&2; exit 2; }
old=$(cd "$1" && pwd)
new=$(cd "$2" && pwd)
data=(--needle 4)
[ $# -lt 3 ] || data=(--data "$(realpath "$3")")
export OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1 MUSTER_KERNELS_ISA=${MUSTER_KERNELS_ISA:-}
[ -n "$MUSTER_KERNELS_ISA" ] || unset MUSTER_KERNELS_ISA
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

common=(--steps 6 --batch 8 --seed 3 --checkpoint-interval 0 --print-every 0)
forms=(
  ""
  "--ep muster" "--ep muster --skew 2" "--ep alltoall --skew 2" "--ep muster --ep-tolerance 0.2"
  "--router sigmoid --bias-rate 0.01" "--shared-experts 1" "--switch-loss 0.01 --z-loss 0.001"
  "--attention moba:16,3" "--attention moba:16,3,last_full=1"
  "--optimizer adamw" "--optimizer adam" "--optimizer sgd" "--optimizer momentum"
  "--optimizer rmsprop"
  "--layout flat_redundant" "--layout flat_owner" "--layout row_shards" "--layout replicated"
  "--state-type bf16" "--state-type int8" "--param-dtype bf16 --state-type bf16"
  "--ns-precision bf16" "--per-head-muon" "--muon-scale keller"
  "--zclip" "--agc 0.01" "--overlap --bucket-bytes 65536" "--micro-batches 2" "--qk-clip-tau 0.5"
  "--schedule wsd --warmup 2")

train() {  # $1 = folder of programs, $2 = name of the run, the rest are flags
  local programs=$1 name=$2
  shift 2
  (cd "$scratch" && timeout 300 "$programs/muster" run --nproc-per-node 2 --run-id "$name" \
    --checkpoint-root "$scratch/ckpt-$name" -- "$programs/moe_lm" "${data[@]}" "${common[@]}" \
    --dump-params "$scratch/$name" "$@") >"$scratch/$name.log" 2>&1
}

failed=0
compared=0
number=0
for form in "${forms[@]}"; do
  number=$((number + 1))
  read -ra flags <<<"$form"
  label=${form:-default}
  if ! train "$old" "old$number" "${flags[@]}"; then
    echo "skipped    $label: $(grep -m 1 -iE 'must|not|unknown|error' "$scratch/old$number.log" | tail -c 120)"
    continue
  fi
  if ! train "$new" "new$number" "${flags[@]}"; then
    echo "FAILED     $label: $(tail -n 2 "$scratch/new$number.log")"
    failed=1
    continue
  fi
  compared=$((compared + 1))
  verdict=same
  for rank in 0 1; do
    cmp -s "$scratch/old$number.rank-$rank" "$scratch/new$number.rank-$rank" || verdict=DIFFERENT
  done
  [ "$verdict" = same ] || failed=1
  echo "$verdict  $(sha256sum <"$scratch/new$number.rank-0" | cut -c1-16)  $label"
  rm -f "$scratch/old$number".* "$scratch/new$number".*
  rm -rf "$scratch/ckpt-old$number" "$scratch/ckpt-new$number"
done
if [ "$compared" -eq 0 ]; then
  echo "same_bits: no form could be trained with the programs in $old" >&2
  exit 1
fi
exit "$failed"

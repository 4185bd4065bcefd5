#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# scripts/moba_experiments.sh MOE_LM DATA [OUT]: what docs/evidence/moba_experiments.md reports. Trains
# trainer/moe_lm on its needle task, and on DATA with a loss mask that leaves one byte in 100, under
# full and block attention, and writes summary.md, needle.svg and mask.svg to OUT.
#
# One rank, one BLAS thread, so every run repeats bit for bit on one kind of processor. Runs that are
# there already are not run again. SEEDS and *_STEPS change the experiments.
set -euo pipefail
moe_lm=$1
data=$2
out=${3:-moba_experiments}
seeds=${SEEDS:-1 2 3}
needle_steps=${NEEDLE_STEPS:-2000}
mask_steps=${MASK_STEPS:-300}
common="--d-model 64 --heads 4 --experts 1 --top-k 1 --ffn 64"
export OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1
mkdir -p "$out"

train() {  # NAME ATTENTION SEED FLAGS...
  local log="$out/$1.seed-$3.log"
  [ -s "$log" ] && return 0
  echo "moba_experiments: $1, seed $3" >&2
  # shellcheck disable=SC2086
  "$moe_lm" $common --attention "$2" --seed "$3" "${@:4}" > "$log.part" && mv "$log.part" "$log"
}

needle() {  # NAME ATTENTION SEED
  train "needle.$1" "$2" "$3" --layers 2 --needle 8 --seq 128 --batch 16 --lr 0.02 --steps "$needle_steps" \
    --eval-every $((needle_steps / 10)) --eval-sequences 64 --print-every 0
}

mask() {  # NAME ATTENTION SEED EVERY
  train "mask.$1.every-$4" "$2" "$3" --data "$data" --layers 3 --seq 400 --batch 8 --lr 0.01 \
    --steps "$mask_steps" --eval-every "$mask_steps" --eval-sequences 32 --print-every 20 \
    --loss-every "$4"
}

stages="$out/moba_then_full.txt"
echo "steps 0:$((needle_steps * 9 / 10)) moba 8 4" > "$stages"
for seed in $seeds; do
  needle full full "$seed"
  needle moba-8-4 moba:8,4 "$seed"
  needle moba-8-4-last-full moba:8,4,last_full=1 "$seed"
  needle moba-4-8 moba:4,8 "$seed"
  needle moba-4-12 moba:4,12 "$seed"
  needle moba-8-4-then-full "$stages" "$seed"
  for every in 1 100; do
    mask full full "$seed" "$every"
    mask moba moba:16,3 "$seed" "$every"
    mask moba-last-full-1 moba:16,3,last_full=1 "$seed" "$every"
    mask moba-last-full-2 moba:16,3,last_full=2 "$seed" "$every"
  done
done
python3 "$(dirname "$0")/moba_experiments.py" "$out"

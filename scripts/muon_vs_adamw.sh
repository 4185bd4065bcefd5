#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# scripts/muon_vs_adamw.sh MOE_LM DATA [OUT]: trains trainer/moe_lm under AdamW and under Muon with
# a grid of peak learning rates each, on the same model, data, batches and schedule, then the best of
# each with more seeds, and writes curves.csv, summary.md and curves.svg to OUT.
#
# One rank, one BLAS thread, so every run repeats bit for bit on one kind of processor. Runs that are
# there already are not run again. STEPS, SEEDS, ADAMW_LRS, MUON_LRS and MODEL change the experiment.
set -euo pipefail
moe_lm=$1
data=$2
out=${3:-muon_vs_adamw}
steps=${STEPS:-300}
seeds=${SEEDS:-1 2 3}
adamw_lrs=${ADAMW_LRS:-0.001 0.002 0.004 0.0056 0.008 0.016}
muon_lrs=${MUON_LRS:-0.002 0.004 0.008 0.016 0.032 0.064}
model=${MODEL:---layers 2 --d-model 64 --heads 2 --experts 4 --ffn 64 --seq 64 --batch 16}
export OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1
mkdir -p "$out"

train() {  # RULE LR SEED [FLAG VALUE]: with a flag more it is a control
  local log="$out/$1-lr$2-seed$3${5:+$4=$5}.csv"
  [ -s "$log" ] && [ "$(wc -l < "$log")" -eq "$steps" ] && return 0
  echo "muon_vs_adamw: $1, lr $2, seed $3 ${*:4}" >&2
  # shellcheck disable=SC2086
  "$moe_lm" --data "$data" --optimizer "$1" --lr "$2" --seed "$3" --steps "$steps" $model \
    "${@:4}" --print-every 0 --log-loss "$log" > /dev/null
}

first_seed=${seeds%% *}
for lr in $adamw_lrs; do train adamw "$lr" "$first_seed"; done
for lr in $muon_lrs; do train muon "$lr" "$first_seed"; done
for rule in adamw muon; do
  best=$(python3 "$(dirname "$0")/muon_vs_adamw.py" best "$out" "$rule" "$first_seed")
  for seed in $seeds; do train "$rule" "$best" "$seed"; done
done
best=$(python3 "$(dirname "$0")/muon_vs_adamw.py" best "$out" adamw "$first_seed")
for beta2 in 0.99 0.999; do train adamw "$best" "$first_seed" --adam-beta2 "$beta2"; done
for decay in 0 0.2; do train adamw "$best" "$first_seed" --weight-decay "$decay"; done
python3 "$(dirname "$0")/muon_vs_adamw.py" report "$out" "$first_seed"

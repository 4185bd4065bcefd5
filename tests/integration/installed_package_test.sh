#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Follows README.md word for word on an installed tree: builds its program against the package, then
# runs its commands in order.   installed_package_test.sh SOURCE BUILD
# Only the ports differ: the collector takes free ones, so that two runs of this test never meet.
set -euo pipefail
source_dir=$1 build_dir=$2
here=$source_dir/tests/integration
scratch=$(mktemp -d)
collector=
finish() {
  if [ -n "$collector" ]; then
    kill "$collector" 2>/dev/null || true
    wait "$collector" || true
  fi
  rm -rf "$scratch"
}
trap finish EXIT

fail() {
  echo "FAIL: $1" >&2
  [ $# -lt 2 ] || tail -n 40 "$2" >&2
  exit 1
}

cmake --install "$build_dir" --prefix "$scratch/prefix" >"$scratch/log" 2>&1 || fail install "$scratch/log"
export PATH=$scratch/prefix/bin:$PATH
for file in bin/moe_lm share/bash-completion/completions/muster share/zsh/site-functions/_muster \
  share/fish/vendor_completions.d/muster.fish share/man/man1/muster{,-run,-collector,-status,-send,-ckpt,-plan,-plan-ep}.1; do
  [ -s "$scratch/prefix/$file" ] || fail "the installed tree has no $file"
done
bash -n "$scratch/prefix/share/bash-completion/completions/muster" || fail "the bash completion"
grep -qF '\-\-nproc\-per\-node' "$scratch/prefix/share/man/man1/muster-run.1" || fail "muster-run.1 lists no options"

mkdir "$scratch/job"
cd "$scratch/job"
python3 "$here/readme_blocks.py" "$source_dir/README.md" program >train.cpp
cp "$source_dir/examples/minimal/CMakeLists.txt" .
{ cmake -S . -B build -G Ninja -DCMAKE_PREFIX_PATH="$scratch/prefix" && cmake --build build; } \
  >"$scratch/log" 2>&1 || fail "building the program of README.md" "$scratch/log"
mv build/train .

run_command() {
  case $1 in
    *"muster collector"*"&")
      mkfifo collector.out
      eval "${1%&} --listen 127.0.0.1:0 --http 127.0.0.1:0 >collector.out 2>collector.log &"
      collector=$!
      exec 4<collector.out  # Stays open: the collector must not meet a closed pipe.
      read -r -t 60 _ MUSTER_COLLECTOR <&4 || fail "muster collector printed no address" collector.log
      export MUSTER_COLLECTOR
      ;;
    *)
      eval "$1" </dev/null >out 2>&1 || fail "$1" out
      cat out
      ;;
  esac
}

expect() { grep -qE "$1" out || fail "no '$1' in the output of: $command" out; }

seen=
while read -r command <&3; do
  run=$(ls checkpoints 2>/dev/null | head -n 1 || true)
  typed=$(sed -E "s/127\.0\.0\.1:29600/${MUSTER_COLLECTOR-}/; s/\bRUN\b/$run/g" <<<"$command")
  echo "+ $typed"
  run_command "$typed"
  case $command in *"muster run"*) expect 'step 300: loss 0\.00' ;; esac
  case $command in *"muster send"*) expect '^command [0-9]+: ' ;; esac
  case $command in *"ckpt list"*) expect 'complete' ;; esac
  case $command in *"ckpt verify"*) expect ': intact, ' ;; esac
  case $command in *"muster status"*) expect "^$run " ;; esac
  seen+="$command;"
done 3< <(python3 "$here/readme_blocks.py" "$source_dir/README.md" commands)

for name in collector run send "ckpt verify" status plan; do
  [[ $seen == *"muster $name"* ]] || fail "README.md does not show muster $name"
done

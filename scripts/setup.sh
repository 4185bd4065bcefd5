#!/usr/bin/env bash
# Installs what the build, the tests and the demo need, once, and quietly.
#
#   scripts/setup.sh build     compilers and libraries           (make build, make demo)
#   scripts/setup.sh test      the above plus Chromium           (make test)
#   scripts/setup.sh lint      the above plus clang-format/tidy  (make lint, make format)
#   scripts/setup.sh bench     build plus a library to measure against  (make bench)
#
# Every stage prints one line, and what is already there costs well under a second. Builds look at
# the time of build/setup.log, written only when something was installed, and configure again.
set -euo pipefail
cd "$(dirname "$0")/.."

level=${1:-build}
build_packages=(
  build-essential cmake ninja-build ccache pkg-config git ca-certificates python3
  libboost1.81-dev libboost-system1.81-dev libprotobuf-dev protobuf-compiler libspdlog-dev libfmt-dev
  libsqlite3-dev libopenblas-dev libgloo-dev libyaml-cpp-dev libcli11-dev nlohmann-json3-dev
  libxxhash-dev libzstd-dev libgtest-dev libgmock-dev)
test_packages=(chromium fonts-dejavu-core)
lint_packages=(clang-format-14 clang-tidy-14)
bench_packages=(libdnnl-dev ocl-icd-opencl-dev)  # oneDNN; its CMake files ask for OpenCL

packages=("${build_packages[@]}")
case $level in
  test) packages+=("${test_packages[@]}") ;;
  lint) packages+=("${test_packages[@]}" "${lint_packages[@]}") ;;
  bench) packages+=("${bench_packages[@]}") ;;
esac
# Debian's Node.js only where the machine has none: a newer one is as good.
command -v npm >/dev/null 2>&1 || packages+=(nodejs npm)

log=build/setup.log
mkdir -p build

announce() {  # $1 = what is installed; the first one of a call begins a new log
  [ -n "${announced:-}" ] || : >"$log"
  announced=yes
  echo "setup: $1"
}

fail() {  # $1 = what failed, $2 = what to do about it
  { grep -E '^E: |reason: ' "$log" || tail -n 5 "$log"; } | tail -n 3 >&2
  echo "setup: $1; $log says why. $2, then run the same command again." >&2
  exit 1
}

mapfile -t missing < <(comm -23 <(printf '%s\n' "${packages[@]}" | sort) \
  <(dpkg-query -W -f='${db:Status-Status} ${Package}\n' "${packages[@]}" 2>/dev/null |
    sed -n 's/^installed //p' | sort))
if [ ${#missing[@]} -gt 0 ]; then
  sudo=()
  if [ "$(id -u)" -ne 0 ]; then
    sudo true >>"$log" 2>&1 || {
      echo "setup: ${#missing[@]} Debian packages are missing and this user is not root and may not sudo." >&2
      echo "setup: run as root: apt-get install -y --no-install-recommends ${missing[*]}" >&2
      exit 1
    }
    sudo=(sudo)
  fi
  announce "installing ${#missing[@]} Debian packages, a few minutes (log: $log)"
  # A source that does not answer is no reason to stop: what counts is whether the packages come.
  {
    "${sudo[@]}" apt-get update -qq || true
    "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq \
      --no-install-recommends -o DPkg::Lock::Timeout=300 -o Acquire::Retries=3 "${missing[@]}"
  } </dev/null >>"$log" 2>&1 ||
    fail "apt-get could not install ${#missing[@]} Debian packages" "Check the network and apt's sources"
fi

npm_install() {  # $1 = folder with a package-lock.json
  local folder=$1
  local stamp="$folder/node_modules/.muster-stamp" want
  want=$(sha256sum "$folder/package-lock.json" | cut -d' ' -f1)
  [ "$(cat "$stamp" 2>/dev/null)" = "$want" ] && return 0
  announce "npm packages of $folder"
  (cd "$folder" && npm ci --no-audit --no-fund --loglevel=error) </dev/null >>"$log" 2>&1 ||
    fail "npm could not install the packages of $folder" "Check that npm reaches its registry (npm ping)"
  echo "$want" >"$stamp"
}
npm_install dashboard/web
npm_install trainer/moe_lm/data
case $level in test | lint) npm_install tests/browser ;; esac

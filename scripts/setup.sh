#!/usr/bin/env bash
# Installs what the build, the tests and the demo need, once, and quietly.
#
#   scripts/setup.sh build     compilers and libraries           (make build, make demo)
#   scripts/setup.sh test      the above plus Chromium           (make test)
#   scripts/setup.sh lint      the above plus clang-format/tidy  (make lint, make format)
#
# Every stage prints one line. A stamp under build/ makes a second call return at once.
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

packages=("${build_packages[@]}")
[ "$level" = build ] || packages+=("${test_packages[@]}")
[ "$level" = lint ] && packages+=("${lint_packages[@]}")
# Debian's Node.js only where the machine has none: a newer one is as good.
command -v npm >/dev/null 2>&1 || packages+=(nodejs npm)

log=build/setup.log
mkdir -p build

missing=()
for package in "${packages[@]}"; do
  dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing+=("$package")
done
if [ ${#missing[@]} -gt 0 ]; then
  sudo=()
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null 2>&1 || {
      echo "setup: ${#missing[@]} Debian packages are missing and this is neither root nor sudo." >&2
      echo "setup: run as root: apt-get install -y --no-install-recommends ${missing[*]}" >&2
      exit 1
    }
    sudo=(sudo)
  fi
  echo "setup: installing ${#missing[@]} Debian packages (log: $log)"
  export DEBIAN_FRONTEND=noninteractive
  {
    "${sudo[@]}" apt-get update -qq
    "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}"
  } >>"$log" 2>&1 || {
    tail -n 5 "$log" >&2
    echo "setup: apt-get failed; the full log is $log" >&2
    exit 1
  }
fi

npm_install() {  # $1 = folder with a package-lock.json
  local folder=$1
  [ -f "$folder/package-lock.json" ] || return 0
  local stamp="$folder/node_modules/.muster-stamp" want
  want=$(sha256sum "$folder/package-lock.json" | cut -d' ' -f1)
  [ "$(cat "$stamp" 2>/dev/null)" = "$want" ] && return 0
  echo "setup: npm packages of $folder"
  (cd "$folder" && npm ci --no-audit --no-fund --loglevel=error) >>"$log" 2>&1 || {
    tail -n 5 "$log" >&2
    echo "setup: npm ci failed in $folder; the full log is $log" >&2
    exit 1
  }
  echo "$want" >"$stamp"
}
npm_install dashboard/web
npm_install examples/moe_lm/data
[ "$level" = build ] || npm_install tests/browser

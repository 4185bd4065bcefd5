#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs what the build, the tests and the demo need, once, and quietly.
#
#   scripts/setup.sh build     compilers and libraries                            (make build, make demo)
#   scripts/setup.sh test      build, Chromium, clang, clang-format, clang-tidy   (make test)
#   scripts/setup.sh lint      build, clang, clang-format, clang-tidy             (make lint, make format)
#   scripts/setup.sh fuzz      build, clang with libFuzzer                        (make fuzz)
#   scripts/setup.sh bench     build and a library to measure against             (make bench)
#   scripts/setup.sh docs      build and Doxygen                                  (make docs)
#
# Decides by what is missing and what apt offers, never by the name of the release. Every stage prints one
# line, and what is already there costs well under a second. Builds look at the time of
# build/setup.log, written only when something was installed, and configure again.
set -euo pipefail
cd "$(dirname "$0")/.."

level=${1:-build}
boost_minimum=1.81
required=(
  build-essential cmake ninja-build ccache pkg-config git ca-certificates python3
  libprotobuf-dev protobuf-compiler libspdlog-dev libfmt-dev
  libsqlite3-dev libopenblas-dev libgloo-dev libyaml-cpp-dev libcli11-dev nlohmann-json3-dev
  libxxhash-dev libzstd-dev libgtest-dev libgmock-dev)
# The build works without these. A program of the same name is as good as the package.
optional=()
lint_headers=libstdc++-12-dev  # The newest C++ library that clang-tidy 14 can read.
python_tools=()
declare -A needed_for=(
  [chromium]="the browser tests of make test"
  [fonts-dejavu-core]="the browser tests of make test"
  [clang]="make fuzz, make lint and the thread-safety check of make test"
  [libstdc++-12-dev]="make lint"
  [doxygen]="make docs"
  [libdnnl-dev]="the comparison with oneDNN in make bench"
  [ocl-icd-opencl-dev]="the comparison with oneDNN in make bench")
case $level in
  build) ;;
  test) optional=(chromium fonts-dejavu-core clang "$lint_headers") ;;
  lint) optional=(clang "$lint_headers") ;;
  fuzz) optional=(clang) ;;
  bench) optional=(libdnnl-dev ocl-icd-opencl-dev) ;;  # oneDNN's CMake files ask for OpenCL.
  docs) optional=(doxygen) ;;
  *)
    echo "setup: unknown level \"$level\": must be build, test, lint, fuzz, bench or docs" >&2
    exit 2
    ;;
esac
case $level in
  test | lint)
    # From PyPI and pinned: formatting must not depend on the machine.
    python_tools=(clang-format==14.0.6 clang-tidy==14.0.6)
    python3 -c 'import ensurepip, venv' 2>/dev/null || required+=(python3-venv)
    ;;
esac
# Debian's Node.js only where the machine has none: a newer one is as good.
command -v npm >/dev/null 2>&1 || required+=(nodejs npm)

log=build/setup.log
mkdir -p build

announce() {  # $1 = what is installed; the first one of a call begins a new log
  [ -n "${announced:-}" ] || : >"$log"
  announced=yes
  echo "setup: $1"
}

fail() {  # $1 = what failed, $2 = what to do about it
  { grep -E '^E: |^ERROR: |reason: ' "$log" || tail -n 5 "$log"; } | tail -n 3 >&2
  echo "setup: $1; $log says why. $2, then run the same command again." >&2
  exit 1
}

# --- Debian packages ---

installed_of() {  # prints those of the packages that are installed
  dpkg-query -W -f='${db:Status-Status} ${Package}\n' "$@" 2>/dev/null | sed -n 's/^installed //p'
}

# Reads "VERSION PACKAGE" lines and prints the Boost to use: the release's default if it is new
# enough, else the newest. Only the headers are needed, and two versions of them conflict.
choose_boost() {
  local version package chosen=
  while read -r version package; do
    dpkg --compare-versions "$version" ge "$boost_minimum" && chosen=$package
    [ "$chosen" = libboost-dev ] && break
  done < <(grep -E ' libboost(1\.[0-9]+)?-dev$' | sort -V)
  echo "$chosen"
}

installed_boost() {
  # dpkg-query fails where it has never seen such a package, as on an empty machine.
  { dpkg-query -W -f='${db:Status-Status} ${Version} ${Package}\n' 'libboost*-dev' 2>/dev/null || true; } |
    sed -n 's/^installed //p' | choose_boost
}

offered_boost() {
  local packages
  mapfile -t packages < <(apt-cache pkgnames libboost | grep -E '^libboost(1\.[0-9]+)?-dev$')
  apt-cache policy "${packages[@]}" |
    awk '/^[^ ]/ { sub(":", "", $1); package = $1 } $1 == "Candidate:" { print $2, package }' |
    choose_boost
}

apt_install() {
  "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq \
    --no-install-recommends -o DPkg::Lock::Timeout=300 -o Acquire::Retries=3 "$@" </dev/null >>"$log" 2>&1
}

# The headless shell makes the browser tests a third cheaper than Chromium; not every release has it.
is_there() {  # $1 = optional package
  [ "$1" != chromium ] || ! command -v chromium-headless-shell >/dev/null || return 0
  command -v "$1" >/dev/null || [ -n "$(installed_of "$1")" ]
}

install_optional() {  # $1 = optional package
  [ "$1" != chromium ] || ! apt_install chromium-headless-shell || return 0
  apt_install "$1"
}

do_without() {  # $1 = optional package, $2 = why it is missing
  echo "setup: $2 $1, which is needed for ${needed_for[$1]}; the rest works without it" >&2
}

install_packages() {
  local package
  sudo=()
  if [ "$(id -u)" -ne 0 ]; then
    sudo=(sudo)
    if ! command -v sudo >/dev/null || ! sudo true >>"$log" 2>&1; then
      for package in "${extra[@]}"; do
        do_without "$package" "only root can install"
      done
      [ ${#missing[@]} -gt 0 ] || return 0
      echo "setup: ${#missing[@]} Debian packages are missing, and this user is not root and may not use sudo." >&2
      echo "setup: run as root: apt-get install -y --no-install-recommends ${missing[*]}" >&2
      exit 1
    fi
  fi
  announce "installing $((${#missing[@]} + ${#extra[@]})) Debian packages, a few minutes (log: $log)"
  # An unreachable source is not fatal: the packages may come from the others.
  "${sudo[@]}" apt-get update -qq </dev/null >>"$log" 2>&1 || true
  if [ -z "$boost" ]; then
    boost=$(offered_boost)
    [ -n "$boost" ] || fail "apt offers no Boost $boost_minimum or newer" "Add a source that has one"
    missing=("${missing[@]/#libboost-dev/$boost}")
  fi
  [ ${#missing[@]} -eq 0 ] || apt_install "${missing[@]}" ||
    fail "apt-get could not install ${#missing[@]} Debian packages" "Check the network and apt's sources"
  for package in "${extra[@]}"; do
    install_optional "$package" || do_without "$package" "apt-get could not install"
  done
}

if command -v apt-get >/dev/null; then
  mapfile -t missing < <(comm -23 <(printf '%s\n' "${required[@]}" | sort) \
    <(installed_of "${required[@]}" | sort))
  boost=$(installed_boost)
  [ -n "$boost" ] || missing+=(libboost-dev)
  extra=()
  for package in "${optional[@]}"; do
    is_there "$package" || extra+=("$package")
  done
  [ $((${#missing[@]} + ${#extra[@]})) -eq 0 ] || install_packages
else
  echo "setup: there is no apt-get here, so no library is installed; CMake names what it misses" >&2
fi

# On some releases the runtime of libFuzzer is a package by the number of clang, on others in clang's.
has_libfuzzer() {
  echo 'extern "C" int LLVMFuzzerTestOneInput(const unsigned char*, unsigned long) { return 0; }' |
    clang++ -fsanitize=fuzzer -x c++ - -o /dev/null 2>/dev/null
}

install_libfuzzer() {
  command -v clang++ >/dev/null || return 0
  has_libfuzzer && return
  local major runtime
  major=$(clang++ -dumpversion)
  runtime=libclang-rt-${major%%.*}-dev
  needed_for[$runtime]="make fuzz"
  missing=() extra=("$runtime")
  if command -v apt-get >/dev/null; then
    install_packages
  else
    do_without "$runtime" "without apt-get there is no"
  fi
}
[ "$level" != fuzz ] || install_libfuzzer

# --- Python and npm packages ---

# Each filled folder has a stamp that records its contents.
is_filled() {  # $1 = folder, $2 = contents
  [ "$(cat "$1/.muster-stamp" 2>/dev/null)" = "$2" ]
}

install_python_tools() {
  is_filled build/tools "${python_tools[*]}" && return
  announce "${python_tools[*]} from PyPI into build/tools"
  { python3 -m venv --clear build/tools && build/tools/bin/pip install -q "${python_tools[@]}"; } \
    </dev/null >>"$log" 2>&1 ||
    fail "pip could not install ${python_tools[*]}" "Check that pip reaches its index (pip config list)"
  echo "${python_tools[*]}" >build/tools/.muster-stamp
}
[ ${#python_tools[@]} -eq 0 ] || install_python_tools

npm_install() {  # $1 = folder with a package-lock.json
  local want
  want=$(sha256sum "$1/package-lock.json" | cut -d' ' -f1)
  is_filled "$1/node_modules" "$want" && return
  announce "npm packages of $1"
  (cd "$1" && npm ci --no-audit --no-fund --loglevel=error) </dev/null >>"$log" 2>&1 ||
    fail "npm could not install the packages of $1" "Check that npm reaches its registry (npm ping)"
  echo "$want" >"$1/node_modules/.muster-stamp"
}
npm_install dashboard/web
npm_install trainer/moe_lm/data
[ "$level" != test ] || npm_install tests/browser

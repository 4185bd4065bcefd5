#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tries muster on an empty machine of a Debian release: makes a root with debootstrap, clones HEAD
# into it and runs README's two commands, or COMMAND, in the clone.
#
#   scripts/try_release.sh [--user] [--keep] [--ccache DIR] RELEASE [COMMAND...]
#
#   --user        run as a user who may use sudo instead of as root
#   --keep        leave the root in place, and use the one that an earlier --keep has left
#   --ccache DIR  let the compilers in the root use this ccache folder of the host
#
# Needs root, debootstrap and util-linux. Roots are made in $MUSTER_ROOTS (/var/tmp/muster-roots). The
# mirror, proxies, package registries and certificates are the host's. All mounts are in a
# namespace that ends with the script, and so do the processes.
set -euo pipefail

usage() {
  sed -n '3,/^set/s/^# \{0,1\}//p' "$0" >&2
  exit 2
}

user=root
keep=
ccache=
while [ $# -gt 0 ]; do
  case $1 in
    --user) user=tester && shift ;;
    --keep) keep=yes && shift ;;
    --ccache) ccache=$(realpath "${2:?--ccache needs a folder}") && shift 2 ;;
    -*) usage ;;
    *) break ;;
  esac
done
[ $# -ge 1 ] || usage
release=$1
shift
command=${*:-make demo && make test}
source=$(cd "$(dirname "$0")/.." && pwd)
root=${MUSTER_ROOTS:-/var/tmp/muster-roots}/$release-$user
home=$([ $user = root ] && echo /root || echo /home/$user)

say() { echo "try_release: $1"; }

stop() {
  echo "try_release: $1" >&2
  exit 1
}

[ "$(id -u)" -eq 0 ] || stop "debootstrap needs root; run this with sudo"
for program in debootstrap unshare git; do
  command -v $program >/dev/null || stop "$program is missing; apt-get install debootstrap util-linux git"
done

# Prints "URI SUITE LABEL" for each Debian source of the host, as apt reports them.
debian_sources() {
  apt-get indextargets --format '$(REPO_URI) $(RELEASE) $(LABEL) $(ORIGIN) $(COMPONENT)' 'Created-By: Packages' |
    awk '$4 == "Debian" && $5 == "main" { print $1, $2, $3 }' | sort -u
}

make_root() {
  local host mirror log=$root.log
  host=$(. /etc/os-release && echo "$VERSION_CODENAME")
  mirror=$(debian_sources | awk -v host="$host" '$2 == host && $3 == "Debian" { print $1; exit }')
  [ -n "$mirror" ] || stop "apt knows no Debian mirror here; run apt-get update"
  say "debootstrap of $release into $root (log: $log)"
  mkdir -p "$root"
  debootstrap --variant=minbase "$release" "$root" "$mirror" >"$log" 2>&1 || {
    tail -n 5 "$log" >&2
    stop "debootstrap of $release failed; $log says why"
  }
  # The host's sources, with this release's name.
  debian_sources | while read -r uri suite _; do
    echo "deb $uri ${suite/#$host/$release} main"
  done >"$root/etc/apt/sources.list"
}

share_network() {
  cp -L /etc/resolv.conf /etc/hosts "$root/etc/"
  apt-config dump Acquire | grep -iE '::(proxy|check-|verify-|cainfo)' >"$root/etc/apt/apt.conf.d/99host" || true
  # The bundle serves until the package ca-certificates builds it anew, from the same certificates.
  mkdir -p "$root/usr/local/share/ca-certificates" "$root/etc/ssl/certs"
  [ ! -d /usr/local/share/ca-certificates ] ||
    cp -r /usr/local/share/ca-certificates/. "$root/usr/local/share/ca-certificates/"
  [ -e "$root/etc/ssl/certs/ca-certificates.crt" ] || cp -L /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/"
}

# Proxies, certificates and package registries, as variables that apt, git, pip and npm read.
network_environment() {
  local name value
  env | grep -iE '^(http|https|ftp|all|no)_proxy=' || true
  for name in SSL_CERT_FILE CURL_CA_BUNDLE REQUESTS_CA_BUNDLE GIT_SSL_CAINFO PIP_CERT NODE_EXTRA_CA_CERTS; do
    echo "$name=/etc/ssl/certs/ca-certificates.crt"
  done
  for name in index-url extra-index-url trusted-host proxy; do
    value=$(python3 -m pip config get "global.$name" 2>/dev/null | tr ' ' '\n' | grep -v '^file:' | xargs || true)
    [ -z "$value" ] || echo "PIP_$(tr a-z- A-Z_ <<<"$name")=$value"
  done
  for name in registry proxy https-proxy strict-ssl; do
    value=$(npm config get "$name" 2>/dev/null || true)
    [ -z "$value" ] || [ "$value" = null ] || echo "npm_config_${name//-/_}=$value"
  done
}

inside() {  # $1 = user, $2 = shell command
  chroot "$root" /usr/bin/env -i "${environment[@]}" PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    HOME="$([ "$1" = root ] && echo /root || echo "$home")" TERM="${TERM:-dumb}" LANG=C.UTF-8 \
    setpriv --reuid "$1" --regid "$1" --init-groups bash -c "$2"
}

# In the namespace: a machine's usual mounts, what README asks for, then the command.
run_inside() {
  local environment log=$root.log
  mapfile -t environment < <(network_environment)
  mount -t proc proc "$root/proc"
  mount -t sysfs -o ro sysfs "$root/sys"
  mount -t devpts -o newinstance,gid=5,mode=620,ptmxmode=666 devpts "$root/dev/pts"
  mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm"
  ln -sf pts/ptmx "$root/dev/ptmx"
  if [ -n "$ccache" ]; then
    mkdir -p "$root/ccache"
    mount --bind "$ccache" "$root/ccache"
    environment+=(CCACHE_DIR=/ccache)
  fi
  say "installing git and make"
  inside root 'apt-get update -qq; apt-get install -y -qq --no-install-recommends git make '"$([ $user = root ] || echo sudo)" \
    >>"$log" 2>&1 || stop "apt-get failed in the root; $log says why"
  if [ $user != root ]; then
    inside root "id $user || useradd --create-home --shell /bin/bash $user" >>"$log" 2>&1
    echo "$user ALL=(ALL) NOPASSWD: ALL" >"$root/etc/sudoers.d/$user"
  fi
  rm -rf "$root$home/muster"
  git clone -q --no-hardlinks "$source" "$root$home/muster"
  inside root "chown -R $user: $home"
  say "$(git -C "$source" rev-parse --short HEAD) on $release as $user: $command"
  inside $user "cd ~/muster && $command"
}

if [ "${MUSTER_TRY_INSIDE:-}" = yes ]; then
  run_inside
  exit
fi
[ -n "$keep" ] || rm -rf --one-file-system "$root"
[ -e "$root/etc/debian_version" ] || make_root
share_network
status=0
options=()
[ $user = root ] || options+=(--user)
[ -z "$ccache" ] || options+=(--ccache "$ccache")
MUSTER_TRY_INSIDE=yes unshare --mount --propagation private --pid --fork --kill-child \
  "$0" "${options[@]}" "$release" "$@" || status=$?
[ -n "$keep" ] || rm -rf --one-file-system "$root"
say "$([ $status -eq 0 ] && echo passed || echo "failed with exit status $status") on $release as $user"
exit $status

#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# run.sh NODE FILE...: browser tests with Node's test runner, or one sentence saying what is missing.
set -euo pipefail
cd "$(dirname "$0")"
node=$1
shift
for needed in "$node" "${MUSTER_CHROMIUM:-}"; do
  [ -x "$needed" ] || { echo "browser tests need node and chromium; run scripts/setup.sh test" >&2; exit 1; }
done
[ -d node_modules/playwright-core ] || {
  echo "browser tests need tests/browser/node_modules; run scripts/setup.sh test" >&2
  exit 1
}
exec "$node" --test "$@"

#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# run.sh NODE FILE...: browser tests with Node's test runner, or one sentence saying what is missing.
set -euo pipefail
cd "$(dirname "$0")"
node=$1
shift
[ -x "$node" ] || { echo "browser tests need node; run scripts/setup.sh test" >&2; exit 1; }
[ -x "${MUSTER_CHROMIUM:-}" ] || {
  echo "browser tests need the package chromium-headless-shell or chromium; run scripts/setup.sh test" >&2
  # 77 skips the test. Not in CI, where the set-up has installed a browser.
  [ "${CI:-}" = true ] && exit 1
  exit 77
}
[ -d node_modules/playwright-core ] || {
  echo "browser tests need tests/browser/node_modules; run scripts/setup.sh test" >&2
  exit 1
}
exec "$node" --test "$@"

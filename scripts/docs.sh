#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# API pages of all public headers in build/docs/api; a warning of doxygen is an error.
set -euo pipefail
cd "$(dirname "$0")/.."
command -v doxygen >/dev/null 2>&1 || {
  echo "docs: doxygen is missing; run 'scripts/setup.sh docs', or apt-get install doxygen" >&2
  exit 1
}
mkdir -p build/docs
rm -rf build/docs/api
echo "docs: reading the public headers (log: build/docs/warnings.log)"
{ cat docs/Doxyfile; echo "INPUT = $(printf '%s ' */include)"; } | doxygen - || {
  head -n 20 build/docs/warnings.log >&2
  exit 1
}
echo "docs: build/docs/api/index.html"

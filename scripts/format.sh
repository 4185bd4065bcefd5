#!/usr/bin/env bash
# Formats every C++ and proto file that git knows.
set -euo pipefail
cd "$(dirname "$0")/.."
git ls-files -co --exclude-standard -- '*.h' '*.cpp' '*.proto' | xargs -r build/tools/bin/clang-format -i

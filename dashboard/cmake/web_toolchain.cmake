# SPDX-License-Identifier: Apache-2.0
# Writes to STAMP what the page can be built with: the installed packages, or "missing".
set(installed "${SOURCE}/node_modules/.package-lock.json")
set(state "missing")
if(NPM AND EXISTS "${installed}")
  file(SHA256 "${installed}" state)
endif()
set(before "")
if(EXISTS "${STAMP}")
  file(READ "${STAMP}" before)
endif()
if(NOT before STREQUAL state)
  file(WRITE "${STAMP}" "${state}")
endif()

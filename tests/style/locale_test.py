# SPDX-License-Identifier: Apache-2.0
"""No library calls what listens to the locale of the program around it.

Usage: locale_test.py NM LIBRARY...

scripts/tidy.py sees names in the source; the symbols also show what templates and overloads hide,
such as std::to_string of a double.
"""

import pathlib
import re
import subprocess
import sys

LISTENS = re.compile(
    r"(__to_xstring<|std::(ostream|istream)::_M_(insert|extract)<|basic_[io]?stringstream<|"
    r"\bU (strtod|strtof|strtold|atof|setlocale|isdigit|isalpha|isspace|tolower|toupper)(@|$))")
EXEMPT = {
    "libmuster_policy.a": "stream",      # yaml-cpp's; numbers are parsed before it sees them.
    "libmuster_checkpoint.a": "strtod",  # nlohmann's, which puts the locale's point in first.
    "libmuster_dashboard.a": "strtod",   # The same.
}

failures = 0
for library in map(pathlib.Path, sys.argv[2:]):
    symbols = subprocess.run([sys.argv[1], "-C", library], capture_output=True, text=True, check=True)
    exempt = EXEMPT.get(library.name)
    found = {match.group(1) for match in map(LISTENS.search, symbols.stdout.splitlines()) if match}
    found = {name for name in found if exempt is None or exempt not in name}
    failures += len(found)
    print(f"{library.name}: " + (", ".join(sorted(found)) if found else "ok"))
sys.exit(1 if failures else 0)

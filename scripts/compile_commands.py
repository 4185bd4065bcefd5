#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prints the compile commands of a build, one entry per source.

    scripts/compile_commands.py BUILD_DIR

As BUILD_DIR/compile_commands.json, but with an entry for each source that is compiled together with
others (MUSTER_UNITY), and without precompiled headers, which no other compiler reads.
"""

import json
import pathlib
import re
import sys

INCLUDE = re.compile(r'^#include "(.+)"$', re.M)
PRECOMPILED = re.compile(r" -Winvalid-pch| -include (?:[^ \"\\]|\\.)*cmake_pch\.hxx")


def load(build: pathlib.Path) -> list[dict]:
    """The entries, in the order of the build."""
    entries = []
    for entry in json.loads((build / "compile_commands.json").read_text(encoding="utf-8")):
        together = entry["file"]
        plain = {**entry, "command": PRECOMPILED.sub("", entry["command"])}
        sources = [together]
        if "/Unity/" in together:
            sources = INCLUDE.findall(pathlib.Path(together).read_text(encoding="utf-8"))
        for source in sources:
            entries.append({**plain, "file": source, "command": plain["command"].replace(together, source)})
    return entries


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    print(json.dumps(load(pathlib.Path(sys.argv[1])), indent=1))

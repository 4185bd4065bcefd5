#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prints, for each named source, the flags that another compiler needs to parse it, and its path.

    scripts/compile_flags.py BUILD_DIR SOURCE...

One line a source, quoted for a shell: include folders, definitions and the language. Flags that only
GCC knows, precompiled headers and the output are left out. Sources that this build does not compile
(the twin of a missing library) are named on standard error and skipped.
"""

import pathlib
import shlex
import sys

import compile_commands


def flags(command: str) -> list[str]:
    words = shlex.split(command)
    kept = []
    position = 0
    while position < len(words):
        word = words[position]
        if word in ("-I", "-isystem", "-D"):
            kept += words[position:position + 2]
            position += 1
        elif word.startswith(("-I", "-D", "-std=", "-m", "-isystem")):
            kept.append(word)
        position += 1
    return kept


def main() -> int:
    build = pathlib.Path(sys.argv[1])
    entries = {}
    for entry in compile_commands.load(build):
        entries.setdefault(str(pathlib.Path(entry["file"]).resolve()), entry["command"])
    for source in sys.argv[2:]:
        path = str(pathlib.Path(source).resolve())
        if path not in entries:
            print(f"compile_flags: {source} is not part of this build", file=sys.stderr)
            continue
        print(shlex.join([*flags(entries[path]), path]))
    return 0


if __name__ == "__main__":
    sys.exit(main())

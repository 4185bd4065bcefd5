#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that every source file starts with the SPDX line of the license in LICENSE, or adds it.

Usage: scripts/spdx.py [--root ROOT] [--add]

The line is a comment in the file's own style, the first line of the file or the second after "#!".
`--add` inserts the line where it is missing, and corrects one that names another license. Exits
with 1 if a line is missing, with 2 if LICENSE is absent or unknown.
"""

import argparse
import pathlib
import re
import sys

import tree

TAG = "SPDX-License-Identifier:"
SLASH_TYPES = (".h", ".cpp", ".cu", ".cuh", ".ts", ".proto", ".mjs", ".js")
HASH_TYPES = (".py", ".sh", ".cmake", "CMakeLists.txt")
# A phrase of each license text and its identifier.
LICENSES = (
    ("Apache License Version 2.0", "Apache-2.0"),
    ("Permission is hereby granted, free of charge", "MIT"),
    ("Neither the name of", "BSD-3-Clause"),
    ("Redistribution and use in source and binary forms", "BSD-2-Clause"),
    ("Mozilla Public License Version 2.0", "MPL-2.0"),
)
OLD = re.compile(rf"^(?://|#) {TAG} \S+\n?")


def license_of(root: pathlib.Path) -> str | None:
    """Returns the SPDX identifier of the LICENSE file, or None if it is absent or unknown."""
    path = root / "LICENSE"
    text = " ".join(path.read_text(encoding="utf-8").split()) if path.is_file() else ""
    text = text.replace("Version 2.0,", "Version 2.0").replace(
        "License, Version", "License Version"
    )
    return next((identifier for phrase, identifier in LICENSES if phrase in text), None)


def comment_mark(name: str) -> str | None:
    """Returns the comment mark of a file type, or None for a type that carries no line."""
    if name.endswith(SLASH_TYPES):
        return "//"
    return "#" if name.endswith(HASH_TYPES) else None


def divide(text: str) -> tuple[str, str]:
    """Returns the "#!" line of a file, which may be empty, and the rest."""
    if not text.startswith("#!"):
        return "", text
    first, _, rest = text.partition("\n")
    return first + "\n", rest


def with_line(text: str, line: str) -> str:
    """Returns a file's text with the SPDX line in place."""
    first, rest = divide(text)
    return first + line + "\n" + OLD.sub("", rest)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--root", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parent.parent
    )
    parser.add_argument("--add", action="store_true", help="insert the missing lines")
    options = parser.parse_args()
    root = options.root.resolve()
    identifier = license_of(root)
    if identifier is None:
        print(
            "spdx: LICENSE is absent or is a license that spdx.py does not know; add it to LICENSES"
        )
        return 2
    count = missing = 0
    for name in tree.files(root):
        mark = comment_mark(name)
        if mark is None:
            continue
        count += 1
        line = f"{mark} {TAG} {identifier}"
        text = (root / name).read_bytes().decode("utf-8")
        if divide(text)[1].startswith(line + "\n"):
            continue
        missing += 1
        if options.add:
            (root / name).write_bytes(with_line(text, line).encode("utf-8"))
        else:
            print(f"{name}: must start with {line!r}")
    if options.add:
        print(f"spdx: {missing} lines added, {count} files")
        return 0
    print(
        f"spdx: {count} files, {missing} without the line"
        + ("; add it with scripts/spdx.py --add" if missing else "")
    )
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())

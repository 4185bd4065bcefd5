#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Turns plain // comments of a header into /// ones, for doxygen (docs/Doxyfile).

Usage: scripts/doxygen_filter.py FILE   writes the result to stdout

The first comment of a file describes the file. A comment on its own line describes the declaration
below, one after code the declaration before it. Characters that doxygen would interpret are escaped,
except in backticks.
"""

import pathlib
import re
import sys

ALONE = re.compile(r"^(?P<indent>\s*)//(?P<text>(?![/!]).*)$")
# A comment after code, but not after a closing brace, a directive or a statement.
BEHIND = re.compile(r"^(?P<code>\s*(?!\}|#|/|return\b|break\b)\S.*?\S)\s+//(?P<text>(?![/!]).*)$")
NOT_PROSE = re.compile(r"\s*(NOLINT|clang-format|---|SPDX-License-Identifier)")
SPECIAL = re.compile(r"[\\@<>#&%]")
CODE_SPAN = re.compile(r"(`[^`]*`)")


def escaped(text: str) -> str:
    parts = CODE_SPAN.split(text)
    return "".join(part if index % 2 else SPECIAL.sub(r"\\\g<0>", part)
                   for index, part in enumerate(parts))


def filtered(lines: list[str]) -> list[str]:
    out = []
    behind_column = -1  # Column of the comment after the code above, which may continue below.
    described = False  # The file has its description, or starts with something else.
    for line in lines:
        alone, behind = ALONE.match(line), BEHIND.match(line)
        if alone and not NOT_PROSE.match(alone.group("text")):
            if not described and not alone.group("indent"):
                out.append("/// \\file")
            described = True
            indent = alone.group("indent")
            mark = "///<" if len(indent) == behind_column else "///"
            out.append(indent + mark + escaped(alone.group("text")))
            continue
        described = described or not (alone or not line.strip())
        behind_column = -1
        if behind and '"' not in line and not NOT_PROSE.match(behind.group("text")):
            behind_column = line.index("//", len(behind.group("code")))
            out.append(f"{behind.group('code')}  ///<{escaped(behind.group('text'))}")
        else:
            out.append(line)
    return out


def main() -> int:
    text = pathlib.Path(sys.argv[1]).read_text(encoding="utf-8")
    sys.stdout.write("\n".join(filtered(text.split("\n"))))
    return 0


if __name__ == "__main__":
    sys.exit(main())

# SPDX-License-Identifier: Apache-2.0
"""The C++ block of README.md must be examples/minimal/train.cpp, short and in the style of the tree."""

import pathlib
import re
import sys

LINES_MAX = 46  # Without blank lines and comments.
COLUMNS_MAX = 100

root = pathlib.Path(sys.argv[1])
license_line, _, source = (root / "examples/minimal/train.cpp").read_text().partition("\n")
assert license_line.startswith("// SPDX-License-Identifier"), license_line
blocks = re.findall(r"```cpp\n(.*?)```", (root / "README.md").read_text(), re.DOTALL)
lines = source.splitlines()
code = [line for line in lines if line.strip() and not line.lstrip().startswith("//")]
heads = [line for line in code if re.match(r"\s*(if|for|while|else)\b", line)]
checks = {
    "README.md shows examples/minimal/train.cpp": source in blocks,
    f"the example has at most {LINES_MAX} lines of code": len(code) <= LINES_MAX,
    f"no line is longer than {COLUMNS_MAX} columns": all(len(line) <= COLUMNS_MAX for line in lines),
    "every branch and loop has braces": all(
        line.split("//")[0].rstrip().endswith("{") for line in heads),
}
for title, good in checks.items():
    print(("ok    " if good else "FAIL  ") + title)
failed = list(checks.values()).count(False)
print(f"{len(checks) - failed} passed, {failed} failed")
sys.exit(1 if failed else 0)

"""The C++ block of README.md must be examples/minimal/train.cpp, at most 40 lines."""

import pathlib
import re
import sys

root = pathlib.Path(sys.argv[1])
source = (root / "examples/minimal/train.cpp").read_text()
blocks = re.findall(r"```cpp\n(.*?)```", (root / "README.md").read_text(), re.DOTALL)
checks = {
    "README.md shows examples/minimal/train.cpp": source in blocks,
    "the example has at most 40 lines": len(source.splitlines()) <= 40,
}
for title, good in checks.items():
    print(("ok    " if good else "FAIL  ") + title)
failed = list(checks.values()).count(False)
print(f"{len(checks) - failed} passed, {failed} failed")
sys.exit(1 if failed else 0)

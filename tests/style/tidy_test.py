# SPDX-License-Identifier: Apache-2.0
"""Plants one violation at a time in a small tree and checks that tidy.py names it."""

import pathlib
import subprocess
import sys
import tempfile

TIDY = sys.argv[1]
CLEAN = {"common/include/muster/common/a.h": "#pragma once\n#include <cstdint>\n"}
LONG_FUNCTION = "int f(int x) {\n" + "  ++x;\n" * 80 + "  return x;\n}\n"
CASES = {
    "a clean tree": ({}, None),
    "an upward include": ({"common/src/b.cpp": "#include <muster/agent/agent.h>\n"}, "may not include"),
    "a sibling include": ({"wire/src/b.cpp": "#include <muster/comm/communicator.h>\n"}, "may not include"),
    "detect seeing the store": (
        {"collector/detect/b.cpp": "#include <muster/store/store.h>\n"}, "may not include"),
    "the dashboard writing": (
        {"dashboard/server/b.cpp": "#include <muster/store/store.h>\n"}, "only store/query.h"),
    "a mutex that clang cannot check": ({"agent/src/b.cpp": "#include <mutex>\n"}, "confined"),
    "a clock that no test can set": (
        {"agent/src/b.cpp": "auto t = std::chrono::steady_clock::now();\n"}, "from a Clock"),
    "a stream that listens to the locale": (
        {"agent/src/b.cpp": "std::ostringstream text;\n"}, "listens to the locale"),
    "a printed number that listens to it": (
        {"agent/src/b.cpp": 'std::printf("%s took %.3f s", name, s);\n'}, "listens to the locale"),
    "a printed text": ({"agent/src/b.cpp": 'std::printf("100 %% of %s, %d", name, n);\n'}, None),
    "a parser that listens to it": (
        {"agent/src/b.cpp": "double x = std::stod(text);\n"}, "listens to the locale"),
    "a stray protobuf header": ({"agent/src/b.cpp": '#include "telemetry.pb.h"\n'}, "confined"),
    "a file too long": ({"common/src/b.cpp": "int x;\n" * 501}, "501 lines"),
    "a function too long": ({"common/src/b.cpp": LONG_FUNCTION}, "function of 83 lines"),
    "an orphan test": ({"tests/unit/x/b_test.cpp": "int x;\n"}, "no CMakeLists.txt builds"),
    "a header without a guard": ({"common/src/b.h": "int x;\n"}, "no #pragma once"),
    "a README too long": ({"common/README.md": "x\n" * 41}, "41 lines"),
    "a page too wide": ({"docs/a/b.md": "word " * 21 + "\n"}, "105 columns"),
    "a wide table and wide code": (
        {"docs/b.md": "| " + "word " * 30 + "|\n```\n" + "word " * 30 + "\n```\n\n    " + "word " * 30}, None),
    "a reminder comment": ({"common/src/b.cpp": "// TO" "DO later\n"}, "is an issue"),
}

passed = failed = 0
for title, (files, expected) in CASES.items():
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        subprocess.run(["git", "init", "-q", folder], check=True)
        for name, text in {**CLEAN, **files}.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text)
        run = subprocess.run([sys.executable, TIDY, folder], capture_output=True, text=True)
        good = run.returncode == 0 if expected is None else run.returncode == 1 and expected in run.stdout
        passed, failed = passed + good, failed + (not good)
        print(("ok    " if good else "FAIL  ") + title + ("" if good else "\n" + run.stdout + run.stderr))
print(f"{passed} passed, {failed} failed")
sys.exit(1 if failed else 0)

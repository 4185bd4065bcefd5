#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The style rules that are tests: include directions, lengths, orphan tests, banned words, wrapped
pages, and tests that docs/ names but that do not exist.

Usage: scripts/tidy.py [ROOT]. Prints one line per violation; exit code 1 when there is one.
"""

import pathlib
import re
import sys

import tree

FILE_LINES_MAX = 500
FUNCTION_LINES_MAX = 70
README_LINES_MAX = 40
PAGE_COLUMNS_MAX = 100

# Allowed includes (docs/concepts/architecture.md). The key is a folder; the most specific one wins.
# The names are modules: the folder of <muster/NAME/...>, or the first folder of a quoted path.
ALLOWED = {
    "common": {"common"},
    "wire": {"wire", "v1", "common"},  # muster/v1/*.pb.h is generated from wire/proto.
    "comm": {"comm", "common"},
    "kernels": {"kernels", "common"},
    "parallel": {"parallel", "kernels", "comm", "common"},
    "optimizer": {"optimizer", "parallel", "kernels", "comm", "common"},
    "checkpoint": {"checkpoint", "common"},
    "agent": {"agent", "optimizer", "parallel", "kernels", "comm", "checkpoint", "wire", "common"},
    "collector/detect": {"detect", "common"},
    "collector/store": {"store", "common"},
    "collector/policy": {"policy", "detect", "common"},
    "collector/include/muster/detect": {"detect", "common"},
    "collector/include/muster/store": {"store", "common"},
    "collector/include/muster/policy": {"policy", "detect", "common"},
    "collector": {"collector", "policy", "wire", "detect", "store", "checkpoint", "common"},
    "dashboard": {"dashboard", "store", "common"},
    "launcher": {"launcher", "checkpoint", "wire", "common"},
    "cli": {"cli", "agent", "collector", "dashboard", "launcher", "checkpoint", "wire", "policy",
            "detect", "store", "optimizer", "parallel", "kernels", "comm", "common"},
    "trainer": {"trainer", "agent", "optimizer", "parallel", "kernels", "comm", "checkpoint",
                "common"},
    "examples": {"agent", "optimizer", "parallel", "kernels", "comm", "checkpoint", "common"},
}
# Folders whose private headers belong to one module, though they share a top folder.
PRIVATE_MODULES = {"collector/detect": "detect", "collector/store": "store",
                   "collector/policy": "policy", "collector/src": "collector"}
# Tests and benchmarks look inside modules.
OUTSIDE = ("tests/", "benchmarks/")
DASHBOARD_STORE_HEADERS = {"muster/store/query.h"}
# Third-party headers that only the named folders may see.
CONFINED = {
    r"boost/(asio|beast)": ("agent/src", "collector/src", "dashboard/server", "launcher", "cli",
                            "tests", "benchmarks"),
    r".*\.pb\.h": ("wire/src",),
    r"sqlite3\.h": ("collector/store", "tests"),
    r"spdlog/": ("common/src",),
    # Files that people write: the collector's policy, and the models that `muster plan` reads.
    r"yaml-cpp/": ("collector/policy", "cli/plan", "tests"),
    r"cblas\.h": ("kernels/cpu", "kernels/gemm/cpu", "benchmarks", "tests"),
    r"gloo/": ("comm/src/gloo",),
    r"nlohmann/": ("checkpoint/src", "dashboard/server", "cli", "tests", "benchmarks", "trainer"),
    r"CLI/": ("cli", "trainer", "tests"),
    # Mutex and CondVar (muster/common/mutex.h) carry the annotations that clang checks.
    r"(shared_)?mutex$|condition_variable$": ("common/include", *OUTSIDE),
}
# Time is a Clock (muster/common/clock.h), so that tests can set it.
DIRECT_CLOCK = re.compile(r"\b(steady|system|high_resolution)_clock::now\(")
# Text for machines must not listen to the locale of the program that calls: numbers go through
# muster/common/text.h. Benchmarks, tests and examples print for people.
LISTENS_TO_LOCALE = re.compile(
    r"\b[io]?stringstream\b|\bstd::sto(d|f|ld|i|l|ll|ul|ull)\(|\b(strtod|strtof|strtold|atof)\("
    r"|\bis(alnum|alpha|digit|lower|print|punct|space|upper|xdigit)\(|\bto(lower|upper)\("
    r"|\bsetlocale\(|\bstd::locale\b|\bstd::put_time\b|\bstd::setprecision\b"
    r'|"[^"]*%[-+ #0]*[\d*]*(\.[\d*]+)?l?[aefgAEFG]\b[^"]*"')
LOCALE_EXEMPT = ("common/src/log.cpp", "examples/", *OUTSIDE)  # The log's pattern is spdlog's.
BANNED_WORDS = re.compile(r"\b(TO" r"DO|FIX" r"ME|XX" r"X|HA" r"CK)\b")
NAMED_TEST = re.compile(r"`(tests/[\w./-]+\.cpp):(\w+)\.(\w+)`")
INCLUDE = re.compile(r'^\s*#\s*include\s+[<"]([^>"]+)[>"]')
# A function opens at any indentation with a line that ends in "{" after a ")".
FUNCTION = re.compile(r"^(?P<indent>\s*)(?!if|for|while|switch|else|do|catch|return|namespace)\S.*\)"
                      r"(\s*(const|noexcept|override|final|mutable|->\s*[\w:<>*& ]+))*\s*\{$")


def owner(name: str) -> str | None:
    folders = [key for key in ALLOWED if name.startswith(key + "/")]
    return max(folders, key=len) if folders else None


def module_of(header: str, quoted: bool) -> str | None:
    """The module that owns a header, or None for a third party's or a path that is not one."""
    if not quoted:
        match = re.match(r"muster/(\w+)/", header)
        return match.group(1) if match else None
    match = re.match(r".*/include/muster/(\w+)/", header)
    if match:
        return match.group(1)
    for folder, module in PRIVATE_MODULES.items():
        if header.startswith(folder + "/"):
            return module
    return header.split("/")[0] if "/" in header else None


def check_includes(name: str, lines: list[str]) -> list[str]:
    found = []
    folder = owner(name)
    for number, line in enumerate(lines, 1):
        match = INCLUDE.match(line)
        if not match:
            continue
        header = match.group(1)
        quoted = '"' in line
        module = module_of(header, quoted)
        if folder and module and module not in ALLOWED[folder]:
            found.append(f"{name}:{number}: {folder}/ may not include {header}")
        if quoted and module is None:
            found.append(f"{name}:{number}: quotes take a path from the root of the repository")
        elif quoted and module != module_of(name, True) and not name.startswith(OUTSIDE):
            found.append(f"{name}:{number}: {header} is private to {module}")
        if folder == "dashboard" and module == "store" and header not in DASHBOARD_STORE_HEADERS:
            found.append(f"{name}:{number}: dashboard/ may include only store/query.h of the store")
        for pattern, folders in CONFINED.items():
            if re.match(pattern, header) and not name.startswith(folders):
                found.append(f"{name}:{number}: <{header}> is confined to {', '.join(folders)}")
    return found


def check_functions(name: str, lines: list[str]) -> list[str]:
    """Functions are found by layout, which clang-format fixes: head ends in "{", tail is "}"."""
    found = []
    open_line, open_indent = None, ""
    for number, line in enumerate(lines, 1):
        if open_line is None:
            match = FUNCTION.match(line)
            if match and not line.lstrip().startswith(("//", "*", "#")):
                open_line, open_indent = number, match.group("indent")
        elif re.match(r"^\s*}[;,)]*$", line) and len(line) - len(line.lstrip()) <= len(open_indent):
            length = number - open_line + 1
            if length > FUNCTION_LINES_MAX:
                found.append(
                    f"{name}:{open_line}: function of {length} lines (limit {FUNCTION_LINES_MAX})")
            open_line = None
    return found


def check_orphan_tests(root: pathlib.Path, names: list[str]) -> list[str]:
    found = []
    for name in names:
        if not re.match(r"tests/.*_test\.cpp$", name):
            continue
        path = pathlib.Path(name)
        lists = [root / folder / "CMakeLists.txt" for folder in path.parents]
        if not any(file.is_file() and path.name in file.read_text() for file in lists):
            found.append(f"{name}: no CMakeLists.txt builds this test")
    return found


def check_named_tests(root: pathlib.Path, names: list[str]) -> list[str]:
    """Pages name tests as `tests/unit/x/y_test.cpp:Suite.Name`; each must be there."""
    found = []
    for name in names:
        if not (name.startswith("docs/") and name.endswith(".md")):
            continue
        for number, line in enumerate((root / name).read_text(encoding="utf-8").splitlines(), 1):
            for path, suite, test in NAMED_TEST.findall(line):
                file = root / path
                text = file.read_text(encoding="utf-8") if file.is_file() else ""
                if not re.search(rf"\bTEST(_F|_P)?\(\s*{suite},\s*{test}\s*\)", text):
                    found.append(f"{name}:{number}: {path} has no test {suite}.{test}")
    return found


def check_columns(root: pathlib.Path, names: list[str]) -> list[str]:
    """Pages are wrapped, except tables, code, headings and words that cannot be broken."""
    found = []
    for name in names:
        if not (name == "README.md" or (name.startswith("docs/") and name.endswith(".md"))):
            continue
        fenced, previous = False, ""
        for number, line in enumerate((root / name).read_text(encoding="utf-8").splitlines(), 1):
            fenced ^= line.lstrip().startswith("```")
            code = fenced or (line.startswith("    ") and (not previous or previous[:4] == "    "))
            exempt = code or line.lstrip().startswith(("|", "#", "![")) or " " not in line.strip()
            if len(line) > PAGE_COLUMNS_MAX and not exempt:
                found.append(f"{name}:{number}: {len(line)} columns (limit {PAGE_COLUMNS_MAX})")
            previous = line
    return found


def main() -> int:
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ".").resolve()
    names = tree.files(root)
    violations = check_orphan_tests(root, names) + check_named_tests(root, names)
    violations += check_columns(root, names)
    for name in names:
        is_code = name.endswith((".h", ".cpp", ".proto", ".ts", ".py", ".sh", ".mjs", ".css"))
        if not is_code or "node_modules/" in name:
            continue
        lines = (root / name).read_text(encoding="utf-8").splitlines()
        if len(lines) > FILE_LINES_MAX:
            violations.append(f"{name}: {len(lines)} lines (limit {FILE_LINES_MAX})")
        for number, line in enumerate(lines, 1):
            if DIRECT_CLOCK.search(line) and not name.startswith(("common/", *OUTSIDE)):
                violations.append(f"{name}:{number}: read the time from a Clock")
            if (LISTENS_TO_LOCALE.search(line.partition("// ")[0]) and name.endswith((".h", ".cpp"))
                    and not name.startswith(LOCALE_EXEMPT)):
                violations.append(f"{name}:{number}: listens to the locale; see common/text.h")
            if BANNED_WORDS.search(line):
                violations.append(f"{name}:{number}: unfinished work is an issue, not a comment")
        if name.endswith((".h", ".cpp")):
            violations += check_includes(name, lines)
            violations += check_functions(name, lines)
            if name.endswith(".h") and "#pragma once" not in lines:
                violations.append(f"{name}: no #pragma once")
    for name in names:
        if name.endswith("README.md") and name.count("/") == 1:
            count = len((root / name).read_text(encoding="utf-8").splitlines())
            if count > README_LINES_MAX:
                violations.append(f"{name}: {count} lines (limit {README_LINES_MAX})")
    print("\n".join(violations) if violations else f"tidy: {len(names)} files, no violation")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Keeps docs/reference true: writes flags.md from `--help`, checks variables and messages.

Usage: scripts/reference.py BIN_DIR            write docs/reference/flags.md
       scripts/reference.py --check [BIN_DIR]  fail where a page and the code disagree

With BIN_DIR (build/release/bin), flags.md must equal what the programs print. In any case every
variable that the code reads must be in environment.md, and every message in the first column of
docs/operate/troubleshooting.md must be in the code.
"""

import os
import pathlib
import re
import subprocess
import sys
import textwrap

import tree

ROOT = pathlib.Path(__file__).resolve().parent.parent
FLAGS = ROOT / "docs/reference/flags.md"
VARIABLES = ROOT / "docs/reference/environment.md"
MESSAGES = ROOT / "docs/operate/troubleshooting.md"
PROGRAMS = ("muster", "moe_lm")
HEAD = """# Flags

Every flag of every command, generated from `--help` by `scripts/reference.py`; do not edit by hand.
`<bin>` is the folder of the programs, `<source>` that of the source tree.

"""
SECTION = re.compile(r"^(?P<name>[A-Z][\w ,()-]*):$")
TEXT_COLUMN = 30  # CLI11 starts descriptions here, on the next line after a longer left part.
LEFT_GOES_ON = re.compile(r"\(Env:|\[|REQUIRED\b")
READ_IN_CODE = re.compile(
    r'(?:getenv|variable|integer|number_of|text_of|text_or|is_set|from_environment|envname)'
    r'\(\s*"([A-Z_]+)"')
READ_IN_SCRIPT = re.compile(r"process\.env\.([A-Z_]+)")


def run_help(command: list[str], bin_dir: pathlib.Path) -> str:
    environment = {"PATH": os.environ.get("PATH", "/usr/bin:/bin"), "LC_ALL": "C.UTF-8"}
    finished = subprocess.run(
        [str(bin_dir / command[0]), *command[1:], "--help"],
        capture_output=True, text=True, env=environment, timeout=60)
    if finished.returncode != 0:
        sys.exit(f"{' '.join(command)} --help failed: {finished.stderr.strip()}")
    text = finished.stdout.replace(str(bin_dir.resolve()), "<bin>")
    text = re.sub(r"/[^\s\[\]]*?/((?:examples|trainer)/moe_lm/)", r"<source>/\1", text)
    return re.sub(r"demo-\d{8}-\d{6}", "demo-<time>", text)


def cell(text: str) -> str:
    return text.replace("|", "\\|").strip()


def value_of(text: str) -> str:
    """`TEXT:{a,b}` is one of a, b; `TEXT:FILE` is a file; `INT` is left unchanged."""
    choices = re.search(r"\{([^}]*)\}", text)
    if choices:
        return ", ".join(f"`{choice}`" for choice in choices.group(1).split(","))
    kind, _, check = text.partition(":")
    return f"{kind} ({check})" if check else kind


def parse_left(left: str) -> tuple[str, str, str]:
    """Names, value and default of `-h,--name TYPE=default REQUIRED (Env:NAME)`; CLI11 from 2.4 on
    writes ` [default]` in place of `=default`."""
    names, _, rest = left.partition(" ")
    variable = re.search(r"\(Env:(\w+)\)", rest)
    rest = re.sub(r"\s*\(Env:\w+\)", "", rest)
    rest = re.sub(r"\s*\b(?:Excludes|Needs)\b.*$", "", rest)
    required = bool(re.search(r"\bREQUIRED\b", rest))
    rest = re.sub(r"\s*\bREQUIRED\b", "", rest).strip()
    split = re.match(r"(?P<kind>(?:\{[^}]*\}|[^={\[])*)(?:=(?P<old>.*)|\[(?P<new>.*)\])?$", rest)
    kind = split.group("kind").strip() if split else rest
    default = (split.group("old") or split.group("new") or "") if split else ""
    shown = "required" if required else f"`{default}`" if default else ""
    if variable:
        shown = f"{shown} ({variable.group(1)})".strip()
    return f"`{names.replace(',', '`, `')}`", value_of(kind), shown


def split_entry(line: str) -> tuple[str, str]:
    """The left part of an entry and its description, which may be empty."""
    text = line[TEXT_COLUMN:]
    if text.strip() and line[TEXT_COLUMN - 1] == " " and not LEFT_GOES_ON.match(text):
        return line[:TEXT_COLUMN].strip(), text.strip()
    return re.sub(r"\s+\(Env:", " (Env:", line.strip()), ""


def parse_help(text: str) -> tuple[str, list[tuple[str, list[list[str]]]], list[str]]:
    """The description, the sections with their entries, and the subcommands."""
    about, _, body = text.partition("Usage:")
    sections: list[tuple[str, list[list[str]]]] = []
    subcommands: list[str] = []
    lines = body.splitlines()[1:]
    inside = ""
    for line in lines:
        head = SECTION.match(line)
        if (line and not line.startswith(" ") and not head) or line == "Examples:":
            break  # The footer.
        if head:
            inside = head.group("name")
            if inside != "Subcommands":
                sections.append((inside, []))
            continue
        if not inside or not line.strip():
            continue
        if not re.match(r"  \S", line):  # A description on a separate line.
            sections[-1][1][-1][3] = f"{sections[-1][1][-1][3]} {line.strip()}".strip()
            continue
        left, description = split_entry(line)
        if inside == "Subcommands":
            subcommands.append(left)
        else:
            sections[-1][1].append([*parse_left(left), description])
    return " ".join(about.split()), [s for s in sections if s[1]], subcommands


def describe(command: list[str], bin_dir: pathlib.Path) -> str:
    about, sections, subcommands = parse_help(run_help(command, bin_dir))
    rows = [
        row for _, entries in sections for row in entries if "--help" not in row[0]]
    about = textwrap.fill(about, 100, break_long_words=False, break_on_hyphens=False)
    text = f"## {' '.join(command)}\n\n{about}\n"
    if rows:
        text += "\n| flag | value | default | meaning |\n| --- | --- | --- | --- |\n"
        text += "".join(f"| {' | '.join(cell(part) for part in row)} |\n" for row in rows)
    if subcommands:
        text += "\nSubcommands: " + ", ".join(f"`{name}`" for name in subcommands) + ".\n"
    return text + "".join("\n" + describe([*command, name], bin_dir) for name in subcommands)


def flags_page(bin_dir: pathlib.Path) -> str:
    return HEAD + "\n".join(describe([program], bin_dir) for program in PROGRAMS)


def sources(*suffixes: str) -> list[tuple[str, str]]:
    return [(name, (ROOT / name).read_text(encoding="utf-8")) for name in tree.files(ROOT)
            if name.endswith(suffixes)]


def check_variables() -> list[str]:
    page = VARIABLES.read_text(encoding="utf-8")
    found = []
    for name, text in sources(".cpp", ".h", ".mjs"):
        pattern = READ_IN_SCRIPT if name.endswith(".mjs") else READ_IN_CODE
        for variable in sorted(set(pattern.findall(text))):
            if f"`{variable}`" not in page:
                found.append(f"{name}: reads {variable}, which docs/reference/environment.md lacks")
    return found


def check_messages() -> list[str]:
    code = "\n".join(
        text for name, text in sources(".cpp", ".h") if not name.startswith("tests/"))
    code = re.sub(r'"\s*\n?\s*"', "", code)  # "a" "b" is one literal.
    found = []
    for number, line in enumerate(MESSAGES.read_text(encoding="utf-8").splitlines(), 1):
        if not line.startswith("| `"):
            continue
        # A span may contain back quotes, so it ends where the next span or cell begins.
        for span in re.split(r"`, `", line.split(" | ")[0].removeprefix("| ").strip("`")):
            for part in span.split("…"):
                part = part.strip()
                if len(part) > 3 and part not in code and "Bus error" not in part:
                    found.append(f"docs/operate/troubleshooting.md:{number}: no code says {part!r}")
    return found


def main() -> int:
    arguments = sys.argv[1:]
    check = arguments[:1] == ["--check"]
    folder = arguments[1:] if check else arguments
    bin_dir = pathlib.Path(folder[0]) if folder else None
    if not check:
        if bin_dir is None:
            sys.exit(__doc__)
        FLAGS.write_text(flags_page(bin_dir), encoding="utf-8")
        return 0
    found = check_variables() + check_messages()
    if bin_dir and not all((bin_dir / program).is_file() for program in PROGRAMS):
        print(f"reference: {bin_dir} lacks {' or '.join(PROGRAMS)}: flags.md is not compared")
    elif bin_dir and FLAGS.read_text(encoding="utf-8") != flags_page(bin_dir):
        found.append("docs/reference/flags.md differs from --help: run scripts/reference.py BIN_DIR")
    print("\n".join(found) if found else "reference: pages and code agree")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())

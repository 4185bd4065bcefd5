#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the man pages and shell completions of muster from what the program prints.

Usage: scripts/man.py MUSTER FOLDER

MUSTER is the program; FOLDER receives man/man1/*.1, one page for muster and one per subcommand, and
the completion scripts of bash, zsh and fish where these shells look for them below a share folder.
"""

import pathlib
import re
import subprocess
import sys

COMPLETIONS = {
    "bash": "bash-completion/completions/muster",
    "zsh": "zsh/site-functions/_muster",
    "fish": "fish/vendor_completions.d/muster.fish",
}


def output(program, *arguments):
    return subprocess.run([program, *arguments], check=True, capture_output=True, text=True, timeout=60).stdout


def roff(text):
    """Escapes what roff would interpret: backslashes, hyphens, and dots that start a line."""
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return re.sub(r"^([.'])", r"\\&\1", text, flags=re.MULTILINE)


def sections(help_text):
    """Splits the help of CLI11 into {title: lines}; the text before the first title is ''."""
    parts = {"": []}
    title = ""
    for line in help_text.splitlines():
        match = re.fullmatch(r"([A-Z][A-Za-z ]*):( .*)?", line)
        if match:
            title = match[1]
            parts[title] = [match[2].strip()] if match[2] else []
        elif line and not line.startswith(" ") and title in ("Options", "Positionals", "Subcommands"):
            title = "Description"  # The footer follows the lists.
            parts.setdefault(title, []).append(line)
        else:
            parts[title].append(line)
    return parts


def entries(lines):
    """Joins the two columns of a help list, over as many lines as they take, into (name, text)."""
    found = []
    for line in lines:
        if not line.strip():
            continue
        match = re.fullmatch(r"  (\S.*?)(?:\s{2,}(\S.*))?", line)
        if match:
            found.append([match[1], match[2] or ""])
        elif found:
            found[-1][1] = f"{found[-1][1]} {line.strip()}".strip()
    return found


def page(command, version, help_text):
    parts = sections(help_text)
    name = "-".join(command)
    summary = " ".join(line for line in parts[""] if line).rstrip(".")
    lines = [f'.TH {name.upper()} 1 "" "{version}" "User Commands"', ".SH NAME", f"{roff(name)} \\- {roff(summary)}"]
    if "Usage" in parts:
        lines += [".SH SYNOPSIS", roff(" ".join(parts["Usage"]).strip())]
    described = [line for line in parts.get("Description", [])]
    if described:
        lines += [".SH DESCRIPTION", ".nf", roff("\n".join(described).strip()), ".fi"]
    for title, heading in (("Positionals", "ARGUMENTS"), ("Options", "OPTIONS"), ("Subcommands", "COMMANDS")):
        found = entries(parts.get(title, []))
        if found:
            lines.append(f".SH {heading}")
        for entry, text in found:
            lines += [".TP", f".B {roff(entry)}", roff(text)]
    for title in ("Examples", "Example"):
        if title in parts:
            lines += [".SH EXAMPLES", ".nf", roff("\n".join(parts[title]).strip("\n")), ".fi"]
    return "\n".join(lines) + "\n"


def write_pages(program, folder, version, command=("muster",)):
    help_text = output(program, *command[1:], "--help")
    (folder / ("-".join(command) + ".1")).write_text(page(command, version, help_text))
    for name, _ in entries(sections(help_text).get("Subcommands", [])):
        write_pages(program, folder, version, (*command, name))


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    program, share = sys.argv[1], pathlib.Path(sys.argv[2])
    for shell, place in COMPLETIONS.items():
        path = share / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(output(program, "completion", shell))
    pages = share / "man/man1"
    pages.mkdir(parents=True, exist_ok=True)
    write_pages(program, pages, output(program, "--version").strip())


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks the links of the documentation: relative links, anchors, and file paths in backticks.

Usage: scripts/links.py [ROOT]. Prints one line per broken link; exits with 1 if there is one.

In Markdown a link must name a file or folder and, after "#", a heading or an explicit id. A path in
backticks that starts with a top folder must exist, from the root or from the page's folder; "*",
"{a,b}" and "<name>" are wildcards. In source files every mention of docs/*.md must exist.
"""

import fnmatch
import os
import pathlib
import re
import sys
import urllib.parse

import tree

FENCE = re.compile(r"^\s*(```|~~~)")
CODE = re.compile(r"(`+)(.+?)\1")
INLINE_LINK = re.compile(r"!?\[(?:[^\[\]]|\[[^\]]*\])*\]\(\s*<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\s*\)")
REFERENCE = re.compile(r"^\s{0,3}\[[^\]]+\]:\s*<?(\S+?)>?(?:\s|$)")
HTML_LINK = re.compile(r"<(?:img|a|source)\b[^>]*?\b(?:src|href|srcset)=\"([^\"]+)\"")
HEADING = re.compile(r"^\s{0,3}#{1,6}\s+(.*?)\s*#*\s*$")
EXPLICIT_ID = re.compile(r"<[a-z]+[^>]*\b(?:id|name)=\"([^\"]+)\"")
EXTERNAL = re.compile(r"^(?:[a-z][a-z0-9+.-]*:|//)")
PATH = re.compile(r"^[\w.*{},<>+-]+(?:/[\w.*{},<>+-]*)+$")
LOCATION = re.compile(r":(?:\d+(?:-\d+)?|\w+(?:\.\w+)?)$")  # file.cpp:12, file_test.cpp:Suite.Name
PAGE_MENTION = re.compile(r"(?<![\w/.-])(docs/[\w/.-]+\.md)\b")
SOURCE_TYPES = (
    ".h",
    ".cpp",
    ".cu",
    ".ts",
    ".mjs",
    ".py",
    ".sh",
    ".proto",
    ".css",
    ".cmake",
    "CMakeLists.txt",
    "Makefile",
    ".yaml",
)


def slug(heading: str) -> str:
    """Returns the anchor that GitHub makes of a heading."""
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "")
    text = re.sub(r"<[^>]+>", "", text).strip().lower()
    return re.sub(r"[^\w\- ]", "", text).replace(" ", "-")


def prose_lines(text: str) -> list[tuple[int, str]]:
    """Returns the numbered lines of a page outside code blocks."""
    lines, fenced = [], False
    for number, line in enumerate(text.splitlines(), 1):
        if FENCE.match(line):
            fenced = not fenced
        elif not fenced:
            lines.append((number, line))
    return lines


def anchors(text: str) -> set[str]:
    """Returns every anchor of a page; a repeated heading gets a number."""
    found: set[str] = set()
    times: dict[str, int] = {}
    for _, line in prose_lines(text):
        heading = HEADING.match(line)
        if heading:
            name = slug(heading.group(1))
            count = times.get(name, 0)
            times[name] = count + 1
            found.add(f"{name}-{count}" if count else name)
        found.update(EXPLICIT_ID.findall(line))
    return found


def alternatives(path: str) -> list[str]:
    """Expands {a,b} in a path."""
    match = re.search(r"\{([^{}]*)\}", path)
    if not match:
        return [path]
    return [
        whole
        for part in match.group(1).split(",")
        for whole in alternatives(path[: match.start()] + part + path[match.end() :])
    ]


class Checker:
    """Checks pages against the files of one tree."""

    def __init__(self, root: pathlib.Path):
        self.root = root
        self.names = tree.files(root)
        self.known = set(self.names)
        for name in self.names:
            self.known.update(str(parent) for parent in pathlib.PurePosixPath(name).parents)
        self.tops = {tree.top(name) for name in self.names} - {"."}
        self.texts: dict[str, str] = {}
        self.page_anchors: dict[str, set[str]] = {}
        self.found: list[str] = []

    def text(self, name: str) -> str:
        if name not in self.texts:
            self.texts[name] = (self.root / name).read_text(encoding="utf-8", errors="replace")
        return self.texts[name]

    def exists(self, path: str) -> bool:
        path = re.sub(r"<[^>]*>", "*", path).rstrip("/")
        if "*" in path:
            return any(fnmatch.fnmatchcase(name, path) for name in self.known)
        return path in self.known

    def check_link(self, name: str, number: int, link: str):
        if EXTERNAL.match(link):
            return
        target, _, anchor = urllib.parse.unquote(link).partition("#")
        path = os.path.normpath(os.path.join(os.path.dirname(name), target)) if target else name
        if path not in self.known:
            self.found.append(f"{name}:{number}: {link} does not exist")
        elif anchor and path.endswith(".md"):
            if path not in self.page_anchors:
                self.page_anchors[path] = anchors(self.text(path))
            if anchor not in self.page_anchors[path]:
                self.found.append(f"{name}:{number}: {path} has no heading for #{anchor}")

    def check_code(self, name: str, number: int, code: str):
        for word in code.split():
            path = LOCATION.sub("", word.rstrip(",;:)."))
            if not PATH.match(path) or path.split("/")[0] not in self.tops:
                continue
            for choice in alternatives(path):
                beside = os.path.normpath(os.path.join(os.path.dirname(name), choice))
                if not self.exists(choice) and not self.exists(beside):
                    self.found.append(f"{name}:{number}: `{choice}` does not exist")

    def check_page(self, name: str):
        for number, line in prose_lines(self.text(name)):
            for _, code in CODE.findall(line):
                self.check_code(name, number, code)
            plain = CODE.sub("x", line)
            for pattern in (INLINE_LINK, REFERENCE, HTML_LINK):
                for link in pattern.findall(plain):
                    self.check_link(name, number, link)

    def check_source(self, name: str):
        text = self.text(name)
        if "docs/" not in text:
            return
        for number, line in enumerate(text.splitlines(), 1):
            for page in PAGE_MENTION.findall(line):
                if page not in self.known:
                    self.found.append(f"{name}:{number}: {page} does not exist")

    def run(self) -> int:
        pages = [name for name in self.names if name.endswith(".md")]
        for name in pages:
            self.check_page(name)
        for name in self.names:
            if name.endswith(SOURCE_TYPES) and not name.startswith("tests/style/"):
                self.check_source(name)
        print("\n".join(self.found) if self.found else f"links: {len(pages)} pages, no broken link")
        return 1 if self.found else 0


if __name__ == "__main__":
    sys.exit(Checker(pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ".").resolve()).run())

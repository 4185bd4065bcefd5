#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Counts mannered English in comments, pages and messages, and holds each folder to a limit.

Usage: scripts/prose.py [--root ROOT] [OPTION]

Without an option, prints passages, flagged passages and percent per folder, and exits with 1 if a
folder is above its limit. A limit is the target of the folder's class, or the higher number that
scripts/prose_ratchet.txt still allows. The rules are in docs/style_prose.md, the markers in
prose_markers.py.

Keys of folders: "comm/include" public headers, "comm" other sources, "messages/comm" messages,
"tests/unit", "docs", "readme".
"""

import argparse
import collections
import math
import pathlib
import sys
import typing

import prose_extract
import prose_markers
import tree

RATCHET = "scripts/prose_ratchet.txt"
COMMENT_WORDS_MIN = 5
MESSAGE_WORDS_MIN = 4
STRICT_PERCENT = 2.0  # Public headers, messages, READMEs and docs.
SOURCE_PERCENT = 5.9  # Sources and tests.


class Hit(typing.NamedTuple):
    """One marker in one passage."""

    key: str
    name: str
    line: int
    marker: prose_markers.Marker
    words: str
    text: str


class Count:
    """Passages of one folder."""

    def __init__(self):
        self.passages = 0
        self.flagged = 0

    def percent(self) -> float:
        return 100 * self.flagged / self.passages if self.passages else 0.0


def source_key(name: str) -> str:
    parts = name.split("/")
    if parts[0] == "tests" and len(parts) > 2:
        return "/".join(parts[:2])
    return f"{parts[0]}/include" if "include" in parts[1:-1] else tree.top(name)


def page_key(name: str) -> str:
    return "docs" if name.startswith("docs/") or name == "CHANGELOG.md" else "readme"


def target(key: str) -> float:
    """Returns the percentage that a folder may have in the end."""
    strict = key in ("docs", "readme") or key.endswith("/include") or key.startswith("messages/")
    return STRICT_PERCENT if strict else SOURCE_PERCENT


def passages(name: str, text: str) -> list[tuple[str, prose_extract.Passage, bool]]:
    """Returns (folder key, passage, whether its first words count as a start) of one file."""
    if name.endswith(".md"):
        key = page_key(name)
        return [
            (key, sentence, not sentence.text.startswith("#"))
            for sentence in prose_extract.sentences(text)
            if len(sentence.text.split()) >= COMMENT_WORDS_MIN
        ]
    comments, messages = prose_extract.source(name, text)
    key = source_key(name)
    found = [
        (key, comment, True)
        for comment in comments
        if len(comment.text.split()) >= COMMENT_WORDS_MIN
    ]
    if not name.startswith("tests/"):
        key = "messages/" + tree.top(name)
        found += [
            (key, message, True)
            for message in messages
            if len(message.text.split()) >= MESSAGE_WORDS_MIN
        ]
    return found


def measure(root: pathlib.Path, names: list[str]) -> tuple[dict[str, Count], list[Hit]]:
    counts: dict[str, Count] = collections.defaultdict(Count)
    hits = []
    for name in names:
        if not name.endswith(".md") and prose_extract.grammar(name) is None:
            continue
        text = (root / name).read_text(encoding="utf-8", errors="replace")
        for key, passage, at_start in passages(name, text):
            found = prose_markers.find(passage.text, at_start)
            counts[key].passages += 1
            counts[key].flagged += bool(found)
            hits += [
                Hit(key, name, passage.line, marker, words, passage.text) for marker, words in found
            ]
    return dict(counts), hits


def read_ratchet(path: pathlib.Path) -> dict[str, float]:
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    entries = [line.split() for line in lines if line.strip() and not line.startswith("#")]
    return {key: float(percent) for key, percent in entries}


def write_ratchet(path: pathlib.Path, ratchet: dict[str, float]):
    lines = [
        "# Folders that are still above the target of their class: folder, percent allowed.",
        "# scripts/prose.py --update lowers the numbers and removes folders at their target.",
    ]
    lines += [f"{key} {percent:.1f}" for key, percent in sorted(ratchet.items())]
    path.parent.mkdir(exist_ok=True)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def limit(key: str, ratchet: dict[str, float]) -> float:
    return max(ratchet.get(key, 0.0), target(key))


def lowered(counts: dict[str, Count], ratchet: dict[str, float], adopt: bool) -> dict[str, float]:
    """Returns the ratchet after an update; `adopt` enters folders without an entry as they are."""
    result = {}
    for key, count in counts.items():
        now = math.ceil(count.percent() * 10 - 1e-9) / 10
        if key in ratchet:
            now = min(now, ratchet[key])
        elif not adopt:
            continue
        if now > target(key):
            result[key] = now
    return result


def report(counts: dict[str, Count], ratchet: dict[str, float]) -> int:
    print(f"{'folder':28} {'passages':>8} {'flagged':>8} {'percent':>8} {'allowed':>8}")
    above = []
    for key, count in sorted(counts.items()):
        allowed = limit(key, ratchet)
        is_above = count.percent() > allowed + 1e-9
        above += [key] if is_above else []
        print(
            f"{key:28} {count.passages:8} {count.flagged:8} {count.percent():8.1f} {allowed:8.1f}"
            + ("  above" if is_above else "")
        )
    total = Count()
    total.passages = sum(count.passages for count in counts.values())
    total.flagged = sum(count.flagged for count in counts.values())
    print(f"{'all':28} {total.passages:8} {total.flagged:8} {total.percent():8.1f}")
    if above:
        print(
            f"prose: {len(above)} folders are above their limit; each flagged passage with advice: "
            f"scripts/prose.py --list {above[0]} --fix-hints"
        )
    return 1 if above else 0


def print_hits(hits: list[Hit], folder: str, with_hints: bool):
    prefix = folder.rstrip("/")
    for hit in hits:
        if hit.key == prefix or hit.name == prefix or hit.name.startswith(prefix + "/"):
            print(f"{hit.name}:{hit.line}: [{hit.marker.name}: {hit.words}] {hit.text}")
            if with_hints:
                print(f"    {hit.marker.hint}")


def sample(folder: pathlib.Path) -> int:
    """Prints what share of the comments of any folder the markers flag, license texts left out."""
    seen, flagged = set(), collections.Counter()
    count = Count()
    for path in sorted(folder.rglob("*")):
        if not path.is_file() or path.suffix not in (
            ".h",
            ".hpp",
            ".ipp",
            ".tcc",
            ".cpp",
            ".cc",
            ".proto",
            "",
        ):
            continue
        text = path.read_text(encoding="utf-8", errors="replace")
        for comment in prose_extract.source("x.h", text)[0]:
            known = comment.text in seen or "icense" in comment.text or "opyright" in comment.text
            if known or len(comment.text.split()) < COMMENT_WORDS_MIN:
                continue
            seen.add(comment.text)
            found = prose_markers.find(comment.text)
            count.passages += 1
            count.flagged += bool(found)
            flagged.update(marker.name for marker, _ in found)
    for name, times in flagged.most_common():
        print(f"{times:6} {name}")
    print(f"{folder}: {count.passages} comments, {count.flagged} flagged, {count.percent():.2f} %")
    return 0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--root", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parent.parent
    )
    parser.add_argument(
        "--list", metavar="FOLDER", help="print each flagged passage of a folder, file or key"
    )
    parser.add_argument("--fix-hints", action="store_true", help="print the advice for each marker")
    parser.add_argument("--messages", action="store_true", help="measure or list messages only")
    parser.add_argument(
        "--update", action="store_true", help="lower the ratchet to what is measured"
    )
    parser.add_argument(
        "--adopt",
        action="store_true",
        help="with --update: also enter folders without an entry, as after a move",
    )
    parser.add_argument(
        "--sample",
        metavar="FOLDER",
        type=pathlib.Path,
        help="measure the comments of any folder, to judge a marker",
    )
    return parser.parse_args()


def main() -> int:
    options = arguments()
    if options.sample:
        return sample(options.sample)
    if options.fix_hints and not options.list:
        for marker in prose_markers.MARKERS:
            print(f"{marker.name}: {marker.hint}")
        return 0
    root = options.root.resolve()
    counts, hits = measure(root, tree.files(root))
    if options.messages:
        counts = {key: count for key, count in counts.items() if key.startswith("messages/")}
        hits = [hit for hit in hits if hit.key.startswith("messages/")]
    if options.list:
        print_hits(hits, options.list, options.fix_hints)
        return 0
    path = root / RATCHET
    ratchet = read_ratchet(path)
    if options.update and not options.messages:
        ratchet = lowered(counts, ratchet, options.adopt)
        write_ratchet(path, ratchet)
    return report(counts, ratchet)


if __name__ == "__main__":
    sys.exit(main())

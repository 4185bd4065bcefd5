#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks commit subjects since the base: `module: imperative sentence`, at most 72 characters.

Usage: scripts/commits.py [--root ROOT] [BASE]      checks BASE..HEAD; BASE defaults to .ci/base
       scripts/commits.py --message FILE            checks one message, as a commit-msg hook

A module is a folder of the tree or of a commit in the range, or one of TOPICS; commas separate
several. Merge commits are skipped. In a shallow clone that lacks the base, all commits that are
there are checked. Exits with 1 for a bad subject, with 77 where there is no history to check.
"""

import argparse
import pathlib
import re
import subprocess
import sys

BASE_FILE = ".ci/base"
SUBJECT_MAX = 72
SKIPPED = 77

# Modules that need not be folders.
TOPICS = {
    "docs",
    "tree",
    "build",
    "ci",
    "tests",
    "bench",
    "changelog",
    "readme",
    "license",
    "style",
    "release",
    "lint",
    "tools",
    "repo",
    "all",
    "demo",
}

# First words that are not imperatives although their endings do not show it.
NOT_IMPERATIVE = set("""
    a an the this that these those it its they their there here we our i you your he she what
    which how where whether who whose why when while if unless until since because as than and
    or but nor so not no none nothing nobody every each all any some many more most much few
    less one two three four five six several both another other such same new old newer first
    last next only also now then once again in on at by of for from to with without within under
    over above below between beside after before during through against into out off up down
    about across along per via is are was were be been being has have had does did can could may
    might must shall should will would whole full plain true false good better best worse small
    smaller large larger long longer short shorter faster slower cheap cheaper simple simpler
    single golden partial exact absent fewer lighter tighter stricter code data loss memory
    class bug cleanup wip misc room size header schema runtime context attention expert rank
    agent collector dashboard launcher checkpointing planner router communicator muster mixture
""".split())

# Endings of nouns, adjectives, participles and third persons.
ENDINGS = {
    "ing": "a participle",
    "ed": "in the past",
    "s": "a plural or third person",
    "tion": "a noun",
    "sion": "a noun",
    "ment": "a noun",
    "ity": "a noun",
    "ness": "a noun",
    "ance": "a noun",
    "ence": "a noun",
    "ism": "a noun",
    "able": "an adjective",
    "ible": "an adjective",
    "ive": "an adjective",
}

# Imperatives that end like one of those.
IMPERATIVE = set("""
    bring ring ping string swing spring cling sing fling embed need feed seed shed speed exceed
    proceed succeed shred bleed breed weed heed focus bias alias canvas process bypass pass miss
    press compress decompress suppress express address discuss dismiss guess assess access cross
    toss harness witness stress progress mention question function position condition section
    partition transition caution document implement comment augment segment supplement
    experiment increment decrement balance rebalance advance enhance instance reference
    dereference fence sequence enable disable table give receive derive drive archive live dive
    strive arrive survive revive forgive
""".split())

MODULES = re.compile(r"(?P<modules>[a-z0-9_./-]+(?:, [a-z0-9_./-]+)*): (?P<text>\S.*)$")
WORD = re.compile(r"[A-Za-z][\w'-]*")


def word_problem(word: str) -> str | None:
    """Returns why a first word is not an imperative, or None if it may be one."""
    lower = word.lower()
    if word[0].isupper():
        return f'"{word}" starts with a capital'
    if lower in IMPERATIVE:
        return None
    if lower in NOT_IMPERATIVE:
        return f'"{word}" is not an imperative'
    for ending, form in ENDINGS.items():
        if lower.endswith(ending) and len(lower) > len(ending):
            return f'"{word}" is {form}; use the imperative'
    return None


def problems(subject: str, modules: set[str]) -> list[str]:
    """Returns what is wrong with a subject, given the known modules."""
    found = []
    if len(subject) > SUBJECT_MAX:
        found.append(f"{len(subject)} characters, at most {SUBJECT_MAX}")
    match = MODULES.match(subject)
    if not match:
        return found + ['must be "module: imperative sentence"']
    for module in match["modules"].split(", "):
        if not all(part in modules for part in module.split("/")):
            found.append(f'"{module}" is neither a folder nor a known topic')
    word = WORD.match(match["text"])
    reason = word_problem(word.group()) if word else "the first word must be an imperative"
    if reason:
        found.append(reason)
    if subject.endswith("."):
        found.append("must not end in a period")
    return found


def git(root: pathlib.Path, *words: str) -> subprocess.CompletedProcess:
    return subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True)


def folders(names: list[str]) -> set[str]:
    """Returns the name of every folder above the named files."""
    return {part for name in names for part in name.split("/")[:-1]}


def read_base(root: pathlib.Path) -> str | None:
    path = root / BASE_FILE
    return path.read_text(encoding="utf-8").strip() if path.is_file() else None


def choose_range(root: pathlib.Path, base: str | None) -> tuple[str | None, str]:
    """Returns the range to check, or None, and a note that explains it."""
    if base is None:
        return (
            None,
            f"{BASE_FILE} does not exist; write the commit there after which subjects are checked",
        )
    if git(root, "cat-file", "-e", base + "^{commit}").returncode == 0:
        return f"{base}..HEAD", f"since {base[:12]}"
    if git(root, "rev-parse", "--is-shallow-repository").stdout.strip() == "true":
        return "HEAD", f"all of this shallow clone, which lacks the base {base[:12]}"
    return (
        None,
        f"the base {base[:12]} is not in this repository; "
        f"name a commit of its history in {BASE_FILE}",
    )


def check_history(root: pathlib.Path, base: str | None) -> int:
    top = git(root, "rev-parse", "--show-toplevel")
    if top.returncode != 0 or git(root, "rev-parse", "--verify", "-q", "HEAD").returncode != 0:
        print(
            "commits: skipped, there is no git history: " + (top.stderr.strip() or "no commit yet")
        )
        return SKIPPED
    if pathlib.Path(top.stdout.strip()).resolve() != root:
        print(f"commits: skipped, {root} is not the root of a git repository")
        return SKIPPED
    span, note = choose_range(root, base or read_base(root))
    if span is None:
        print("commits: " + note)
        return 1
    names = git(root, "ls-tree", "-r", "--name-only", "HEAD").stdout.splitlines()
    names += git(root, "log", "--no-merges", "--format=", "--name-only", span).stdout.splitlines()
    known = folders(names) | TOPICS
    log = git(root, "log", "--no-merges", "--format=%h %s", span).stdout.splitlines()
    bad = 0
    for commit, _, subject in (line.partition(" ") for line in log):
        reasons = problems(subject, known)
        bad += bool(reasons)
        for reason in reasons:
            print(f'{commit} "{subject}": {reason}')
    print(f"commits: {len(log)} checked ({note}), {bad} with a bad subject")
    return 1 if bad else 0


def check_message(root: pathlib.Path, path: pathlib.Path) -> int:
    lines = [
        line for line in path.read_text(encoding="utf-8").splitlines() if not line.startswith("#")
    ]
    subject = lines[0] if lines else ""
    if subject.startswith(("Merge ", "fixup! ", "squash! ")):
        return 0
    names = git(root, "ls-files", "-c").stdout.splitlines()
    names += git(root, "diff", "--cached", "--name-only").stdout.splitlines()
    reasons = problems(subject, folders(names) | TOPICS)
    if len(lines) > 1 and lines[1].strip():
        reasons.append("the second line must be empty")
    for reason in reasons:
        print(f'"{subject}": {reason}')
    return 1 if reasons else 0


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("base", nargs="?")
    parser.add_argument(
        "--root", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parent.parent
    )
    parser.add_argument("--message", type=pathlib.Path, help="check the message in this file")
    options = parser.parse_args()
    root = options.root.resolve()
    return (
        check_message(root, options.message)
        if options.message
        else check_history(root, options.base)
    )


if __name__ == "__main__":
    sys.exit(main())

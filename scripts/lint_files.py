#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prints the library sources whose check covers everything that changed.

  scripts/lint_files.py COMMIT [MAX]

Prints each changed source, then the fewest others (by greedy choice, at most MAX, 40 by default)
that include the changed headers which no changed source includes, directly or through a header.
Headers beyond MAX are named on stderr.
"""
import os
import re
import subprocess
import sys

FOLDERS = ("common wire comm kernels parallel optimizer checkpoint agent collector dashboard launcher "
           "cli trainer").split()
INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', re.M)


def git(*arguments):
    return subprocess.run(["git", *arguments], check=True, capture_output=True, text=True).stdout.split()


def reachable(start, included):
    """The headers of the tree that a file includes, directly or through others."""
    seen, todo = set(), [start]
    while todo:
        for header in included.get(todo.pop(), ()):
            if header not in seen:
                seen.add(header)
                todo.append(header)
    return seen


def main():
    since, most = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 40
    tree = [f for f in git("ls-files", "--", "*.h", "*.cpp")
            if f.split("/")[0] in FOLDERS and os.path.exists(f)]
    # Public headers are included by their path after include/, private ones by their path.
    names = {f.split("/include/")[-1]: f for f in tree if f.endswith(".h")}
    included = {}
    for file in tree:
        with open(file, encoding="utf-8") as text:
            included[file] = {names[name] for name in INCLUDE.findall(text.read()) if name in names}
    changed = set(git("diff", "--name-only", "--diff-filter=d", since)) & set(tree)
    chosen = sorted(f for f in changed if f.endswith(".cpp"))
    covers = {f: reachable(f, included) for f in tree if f.endswith(".cpp")}
    open_headers = {f for f in changed if f.endswith(".h")}.difference(*(covers[f] for f in chosen))
    for _ in range(most):
        # Among sources that cover as much, the one with the fewest headers is the cheapest.
        best = max(sorted(covers), key=lambda f: (len(covers[f] & open_headers), -len(covers[f])))
        if not covers[best] & open_headers:
            break
        chosen.append(best)
        open_headers -= covers[best]
    for header in sorted(open_headers):
        print(f"lint: {header} is not checked: no source of the library includes it, or the limit of "
              f"{most} sources is reached", file=sys.stderr)
    print("\n".join(chosen))


if __name__ == "__main__":
    main()

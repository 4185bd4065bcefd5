# SPDX-License-Identifier: Apache-2.0
"""Lists the files of a source tree, for the scripts that check it."""

import os
import pathlib
import subprocess

SKIPPED = ("node_modules", "build", ".git")


def files(root: pathlib.Path) -> list[str]:
    """Returns the relative names of the files that git tracks or would add, sorted.

    Outside a git repository, such as in an unpacked release, returns all files but build outputs.
    """
    listing = subprocess.run(
        ["git", "-C", str(root), "ls-files", "-coz", "--exclude-standard"],
        capture_output=True,
        text=True,
    )
    if listing.returncode == 0:
        return sorted(
            {name for name in listing.stdout.split("\0") if name and (root / name).is_file()}
        )
    names = []
    for folder, below, here in os.walk(root):
        below[:] = [name for name in below if name not in SKIPPED]
        names += [str(pathlib.Path(folder, name).relative_to(root)) for name in here]
    return sorted(names)


def top(name: str) -> str:
    """Returns the top folder of a file, "." for a file in the root."""
    return name.split("/", 1)[0] if "/" in name else "."

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Line coverage by module, from a build with the preset `coverage` after its tests ran.

    scripts/coverage.py [BUILD_DIR] [--gcov PROGRAM] [--files]

Reads gcov's JSON for each object, unites the counts of a source over all objects that hold
it, and prints lines, covered lines and percent for each module; --files adds the sources, the least
covered first. `make coverage` builds, runs the unit tests and calls this.
"""

import argparse
import collections
import concurrent.futures
import gzip
import json
import os
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
OUTSIDE = {"tests", "build", "benchmarks", "examples"}


def counts(gcov: str, data: pathlib.Path) -> dict[str, dict[int, int]]:
    """{source: {line: times run}} of one object, sources of the repository only."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([gcov, "--json-format", "--object-directory", str(data.parent), str(data)],
                       cwd=folder, check=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        found = {}
        for report in pathlib.Path(folder).glob("*.gcov.json.gz"):
            with gzip.open(report, "rt", encoding="utf-8") as file:
                for entry in json.load(file)["files"]:
                    source = pathlib.Path(entry["file"])
                    if not source.is_absolute():
                        source = (data.parent / source).resolve()
                    if source.is_relative_to(ROOT):
                        lines = found.setdefault(str(source.relative_to(ROOT)), {})
                        for line in entry["lines"]:
                            number = line["line_number"]
                            lines[number] = max(lines.get(number, 0), line["count"])
        return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", nargs="?", type=pathlib.Path, default=ROOT / "build" / "coverage")
    parser.add_argument("--gcov", default=os.environ.get("GCOV", "gcov"), help="of the compiler that built")
    parser.add_argument("--files", action="store_true", help="print each source, least covered first")
    options = parser.parse_args()
    objects = sorted(options.build.resolve().rglob("*.gcda"))
    if not objects:
        print(f"coverage: no test of a coverage build ran in {options.build}; run: make coverage", file=sys.stderr)
        return 2
    sources: dict[str, dict[int, int]] = collections.defaultdict(dict)
    with concurrent.futures.ThreadPoolExecutor() as pool:
        for found in pool.map(lambda data: counts(options.gcov, data), objects):
            for source, lines in found.items():
                for number, times in lines.items():
                    sources[source][number] = max(sources[source].get(number, 0), times)
    modules: dict[str, list[int]] = collections.defaultdict(lambda: [0, 0])
    rows = []
    for source, lines in sources.items():
        module = source.split("/")[0]
        if module in OUTSIDE or not lines:
            continue
        covered = sum(1 for times in lines.values() if times > 0)
        modules[module][0] += len(lines)
        modules[module][1] += covered
        rows.append((100 * covered / len(lines), len(lines), source))
    print(f"{'module':<14}{'lines':>8}{'covered':>9}{'percent':>9}")
    total = [sum(row[i] for row in modules.values()) for i in (0, 1)]
    for module, (lines, covered) in [*sorted(modules.items()), ("all", total)]:
        print(f"{module:<14}{lines:>8}{covered:>9}{100 * covered / max(lines, 1):>9.1f}")
    if options.files:
        for percent, lines, source in sorted(rows):
            print(f"{percent:6.1f} %  {lines:5} lines  {source}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

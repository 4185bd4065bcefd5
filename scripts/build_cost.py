#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""CPU seconds of a build, by target and by file.

    scripts/build_cost.py measure PRESET [TARGET...]   build from nothing in build/cost-PRESET, without
                                                       a cache, then print the table
    scripts/build_cost.py show FILE [--top N]          print the table of an earlier measurement

Times are user plus system seconds of the compiler as the kernel counted them, so that a busy machine
changes them little; wall time is not shown. `measure` places this script before the compiler
(CMAKE_CXX_COMPILER_LAUNCHER); each compilation appends one line to build/cost-PRESET/cost.tsv.
docs/operate/building.md says how to read the table.
"""

import argparse
import collections
import os
import pathlib
import re
import resource
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
OBJECT = re.compile(r"CMakeFiles/(?P<target>[\w.-]+)\.dir/(?P<file>.+)\.(o|gch)$")


def launch(log: str, command: list[str]) -> int:
    """Runs one compilation and appends its CPU seconds to the log; returns its exit status."""
    status = subprocess.run(command, check=False).returncode
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    output = command[command.index("-o") + 1] if "-o" in command else "?"
    line = f"{used.ru_utime + used.ru_stime:.2f}\t{output}\n"
    # One write of a short line to a file opened for appending is not torn.
    descriptor = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.write(descriptor, line.encode())
    os.close(descriptor)
    return status


def read(log: pathlib.Path) -> list[tuple[float, str, str]]:
    """(seconds, target, file) of each compilation; the last one counts when a file was repeated."""
    rows = {}
    for line in log.read_text(encoding="utf-8").splitlines():
        seconds, output = line.split("\t")
        match = OBJECT.search(output)
        rows[output] = (float(seconds), match["target"] if match else "?",
                        match["file"] if match else output)
    return list(rows.values())


def show(log: pathlib.Path, top: int) -> None:
    rows = read(log)
    targets = collections.Counter()
    files = collections.Counter()
    for seconds, target, _ in rows:
        targets[target] += seconds
        files[target] += 1
    total = sum(targets.values())
    tests = sum(seconds for target, seconds in targets.items() if is_test(target))
    print(f"{total:9.1f} s  {len(rows)} files in {len(targets)} targets, "
          f"{100 * tests / max(total, 1e-9):.0f} % of it tests and their headers")
    for target, seconds in targets.most_common():
        print(f"{seconds:9.1f} s  {target} ({files[target]} files)")
    print(f"\nThe {top} worst files:")
    for seconds, target, file in sorted(rows, reverse=True)[:top]:
        print(f"{seconds:9.1f} s  {target}: {file}")


def is_test(target: str) -> bool:
    return target.endswith("_test") or "test" in target.split("_") or "fixture" in target


def measure(preset: str, targets: list[str]) -> int:
    folder = ROOT / "build" / f"cost-{preset}"
    log = folder / "cost.tsv"
    subprocess.run(["rm", "-rf", str(folder)], check=True)
    folder.mkdir(parents=True)
    launcher = f"{sys.executable};{pathlib.Path(__file__).resolve()};launch;{log}"
    subprocess.run(["cmake", "--preset", preset, "-B", str(folder), f"-DCMAKE_CXX_COMPILER_LAUNCHER={launcher}"],
                   cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    build = ["cmake", "--build", str(folder)]
    for target in targets:
        build += ["--target", target]
    status = subprocess.run(build, cwd=ROOT, check=False).returncode
    show(log, 10)
    print(f"\nkept in {log.relative_to(ROOT)}")
    return status


def main() -> int:
    if len(sys.argv) > 3 and sys.argv[1] == "launch":
        return launch(sys.argv[2], sys.argv[3:])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("measure", help="build from nothing and print what it cost")
    one.add_argument("preset")
    one.add_argument("targets", nargs="*")
    two = commands.add_parser("show", help="print an earlier measurement")
    two.add_argument("file", type=pathlib.Path)
    two.add_argument("--top", type=int, default=10, help="worst files to print (default 10)")
    options = parser.parse_args()
    if options.command == "measure":
        return measure(options.preset, options.targets)
    if not options.file.is_file():
        print(f"build_cost: {options.file} does not exist; run: scripts/build_cost.py measure release",
              file=sys.stderr)
        return 2
    show(options.file, options.top)
    return 0


if __name__ == "__main__":
    sys.exit(main())

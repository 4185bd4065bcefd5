#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Changes the sources one place at a time and looks whether a test notices.

    scripts/mutate.py [--module NAME]... [--count N] [--seed N] [--jobs N] [--resume | --survivors]

Each mutant is one source with one change. It is compiled to an object of its own, linked with the test
programs that cover the module, and each is run until one fails. Objects equal to the unchanged
source's are counted as equivalent and not run. Neither the tree nor the finished build is changed;
everything is written to build/mutate, and report.md there lists what survived. With --resume, results
of an earlier run with the same sources are kept. --survivors judges only the survivors of an earlier
run again, which new tests may end, and leaves out those whose line is another now. `make mutate ARGS="--count 50"` builds and calls this.
"""

import argparse
import collections
import concurrent.futures
import dataclasses
import hashlib
import json
import os
import pathlib
import random
import re
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent

# Sources of a module, and the test programs that cover it.
MODULES = {
    "optimizer": (["optimizer/src"], [
        "optimizer_plan_test", "optimizer_rules_test", "optimizer_test", "optimizer_runtime_test"]),
    "kernels": (["kernels"], [
        "kernels_test", "newton_schulz_test", "grouped_gemm_test", "flash_attention_test", "moba_test"]),
    "parallel": (["parallel/src"], [
        "router_test", "ep_plan_test", "all_to_all_test", "ep_exchange_test", "ep_layer_test",
        "context_parallel_test"]),
    "agent": (["agent/src"], [
        "agent_verdict_test", "agent_attention_schedule_test", "agent_parts_test", "agent_test",
        "agent_uplink_test", "agent_reshard_test"]),
    "checkpoint": (["checkpoint/src"], ["checkpoint_test", "agent_reshard_test"]),
    "detectors": (["collector/detect/src"], ["detect_test", "collector_test"]),
    "policy": (["collector/policy/src"], ["policy_test", "collector_test"]),
}
KILLED, SURVIVED, TIMED_OUT = "killed", "survived", "timed out"
BROKEN, EQUIVALENT = "did not compile", "equivalent"
VERDICTS = (KILLED, TIMED_OUT, SURVIVED, EQUIVALENT, BROKEN)
MEMORY_BYTES = (8 << 30, 128 << 30)  # of address space; the second for tests that reserve more
COMPILE_LIMIT_S = 120


@dataclasses.dataclass(frozen=True)
class Mutant:
    module: str
    source: str  # relative to the repository
    line: int    # from 1
    name: str    # of the change
    before: str  # the line
    after: str

    def key(self) -> str:
        text = f"{self.source}:{self.line}:{self.before}>{self.after}"
        return hashlib.sha256(text.encode()).hexdigest()[:16]


# --- changes ---

SWAPS = [(f" {a} ", f" {b} ", name) for a, b, name in (
    ("+", "-", "arithmetic"), ("-", "+", "arithmetic"), ("*", "/", "arithmetic"), ("/", "*", "arithmetic"),
    ("%", "/", "arithmetic"), ("+=", "-=", "arithmetic"), ("-=", "+=", "arithmetic"), ("*=", "/=", "arithmetic"),
    ("/=", "*=", "arithmetic"), ("<", "<=", "off by one"), ("<=", "<", "off by one"), (">", ">=", "off by one"),
    (">=", ">", "off by one"), ("<", ">", "comparison"), (">", "<", "comparison"), ("==", "!=", "comparison"),
    ("!=", "==", "comparison"), ("&&", "||", "logic"), ("||", "&&", "logic"))]
SWAPS += [("std::min(", "std::max(", "min/max"), ("std::max(", "std::min(", "min/max"),
          ("std::min_element(", "std::max_element(", "min/max"),
          ("std::max_element(", "std::min_element(", "min/max"),
          ("return true;", "return false;", "constant"), ("return false;", "return true;", "constant"),
          ("std::any_of(", "std::all_of(", "logic"), ("std::all_of(", "std::any_of(", "logic"),
          (".begin()", ".rbegin()", "order"), ("++", "--", "arithmetic")]
NUMBER = re.compile(r"(?<![\w.\"'])(\d+)(?:\.(\d+))?(?=(?:F|U|LL|L)?\b(?!\.|'))(?![\w']*x)")
CONDITION = re.compile(r"\b(if|while) \((.*)\) \{$")
STATEMENT = re.compile(r"^\s+(?:[\w.\->\[\]()*:]+ (?:=|\+=|-=|\*=|/=|\|=|&=) .*|[\w.:\->\[\]]+\(.*\)|(?:\+\+|--)[\w.\->]+);$")
NOT_CODE = re.compile(r"^\s*(#|//|using |namespace |static_assert|template |constexpr char|\}|public:|private:|return;)")


def masked(line: str) -> str:
    """The line with the contents of strings, characters and comments as blanks."""
    line = re.sub(r'"(?:[^"\\]|\\.)*"|\'(?:[^\'\\]|\\.)\'', lambda found: '"' + " " * (len(found[0]) - 2) + '"', line)
    at = line.find("//")
    return line if at < 0 else line[:at] + " " * (len(line) - at)


def changes_of(line: str, previous: str) -> list[tuple[str, str]]:
    """(name, changed line) of every change to a line; `previous` is the line before it."""
    if NOT_CODE.match(line) or not line.strip():
        return []
    code, found = masked(line), []

    def put(begin: int, end: int, text: str, name: str) -> None:
        found.append((name, line[:begin] + text + line[end:]))

    for old, new, name in SWAPS:
        for match in re.finditer(re.escape(old), code):
            put(*match.span(), new, name)
    for match in NUMBER.finditer(code):
        if match[2] is None:
            put(*match.span(1), str(int(match[1]) + 1), "constant")
            if int(match[1]) > 0:
                put(*match.span(1), str(int(match[1]) - 1), "constant")
        else:
            put(match.start(1), match.end(2), f"{float(match[1] + '.' + match[2]) * 2 + 1}", "constant")
    if (match := CONDITION.search(code)) and ";" not in match[2]:
        put(*match.span(2), f"!({line[match.start(2):match.end(2)]})", "negated condition")
    is_whole = previous.rstrip().endswith((";", "{", "}", ":")) or not previous.strip()
    if STATEMENT.match(code) and is_whole and not re.match(r"\s+(return|const|auto|delete|using)\b", code):
        put(len(line) - len(line.lstrip()), len(line), ";", "removed statement")
    return found


def mutants_of(module: str, source: str, text: str) -> list[Mutant]:
    lines = text.split("\n")
    return [Mutant(module, source, at + 1, name, line, after)
            for at, line in enumerate(lines)
            for name, after in changes_of(line, masked(lines[at - 1]) if at else "")]


def choose(by_file: dict[str, list[Mutant]], count: int, generator: random.Random) -> list[Mutant]:
    """Up to `count` mutants, spread over the files by their numbers of places, no line twice."""
    pool = [mutant for source in sorted(by_file) for mutant in by_file[source]]
    generator.shuffle(pool)
    chosen, seen = [], set()
    for mutant in pool:
        if len(chosen) < count and (mutant.source, mutant.line) not in seen:
            seen.add((mutant.source, mutant.line))
            chosen.append(mutant)
    return chosen


# --- the finished build ---

class Build:
    """Commands of a finished build, and the folder that mutants are made in."""

    def __init__(self, folder: pathlib.Path, work: pathlib.Path, level: str):
        self.folder, self.work = folder, work
        self.compile = collections.defaultdict(list)  # source: its commands, one per instruction set
        listed = subprocess.run(["ninja", "-C", folder, "-t", "compdb"], capture_output=True, text=True, check=True)
        for entry in json.loads(listed.stdout):
            source = pathlib.Path(entry["file"])
            if entry["command"].startswith(": &&") or source.suffix != ".cpp" or not source.is_relative_to(ROOT):
                continue
            words = [word for word in shlex.split(entry["command"]) if not word.endswith("ccache")]
            for flag in ("-MT", "-MF", "-o", "-c"):
                while flag in words:
                    at = words.index(flag)
                    del words[at:at + 2]
            kept = [level if word == "-O2" else word for word in words if word not in ("-MD", "-Werror", "-Winvalid-pch")]
            self.compile[str(source.relative_to(ROOT))].append([*kept, "-w", f"-I{source.parent}"])

    def sources(self, folders: list[str]) -> list[str]:
        return sorted(source for source in self.compile if any(source.startswith(one + "/") for one in folders))

    def objects(self, source: str, text: str, scratch: pathlib.Path) -> list[pathlib.Path] | None:
        """Compiles a text in place of a source; None if it does not compile."""
        path = scratch / pathlib.Path(source).name
        path.write_text(text, encoding="utf-8")
        made = []
        for at, command in enumerate(self.compile[source]):
            made.append(scratch / f"{path.stem}.{at}.o")
            if run_limited([*command, "-c", str(path), "-o", str(made[-1])], self.folder, COMPILE_LIMIT_S, {}) != 0:
                return None
        return made

    def link(self, test: str, objects: list[pathlib.Path], program: pathlib.Path) -> bool:
        """Links a test program with objects in front of the libraries that hold the unchanged ones."""
        command = subprocess.run(["ninja", "-C", self.folder, "-t", "commands", "-s", f"bin/{test}"],
                                 capture_output=True, text=True, check=True).stdout
        line = next(line for line in command.split("\n") if " -o bin/" in line)
        line = line.replace(f"-o bin/{test}", f"-o {program} " + " ".join(map(str, objects)))
        return run_limited(["sh", "-c", line], self.folder, COMPILE_LIMIT_S, {}) == 0


def run_limited(command: list[str], folder: pathlib.Path, limit_s: float, environment: dict[str, str],
                memory: int = MEMORY_BYTES[0]) -> int | None:
    """The exit code, or None at the limit. The command has its own process group, ended with it."""
    def prepare() -> None:
        for ignored in (signal.SIGINT, signal.SIGHUP):  # by a shell that runs this in the background
            signal.signal(ignored, signal.SIG_DFL)
        pathlib.Path("/proc/self/oom_score_adj").write_text("1000")
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os.nice(5)

    with subprocess.Popen(command, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                          stderr=subprocess.DEVNULL, start_new_session=True, preexec_fn=prepare,
                          env={**os.environ, **environment}) as process:
        try:
            return process.wait(limit_s)
        except subprocess.TimeoutExpired:
            return None
        finally:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass


def run_test(program: pathlib.Path, scratch: pathlib.Path, limit_s: float, memory: int) -> int | None:
    temporary = scratch / "tmp"
    temporary.mkdir(exist_ok=True)
    code = run_limited([str(program), "--gtest_fail_fast", "--gtest_brief=1"], scratch, limit_s,
                       {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "TMPDIR": str(temporary)},
                       memory)
    shutil.rmtree(temporary, ignore_errors=True)
    return code


# --- judging ---

class Judge:
    """Compiles, links and runs mutants; safe to call from several threads."""

    def __init__(self, build: Build, limits: dict[str, tuple[float, int]]):
        self.build, self.limits = build, limits
        self.kills = collections.Counter()  # (source, test): the test that killed there comes first
        self.clean = {}                     # source: contents of the unchanged objects
        self.lock = threading.Lock()

    def judge(self, mutant: Mutant, scratch: pathlib.Path) -> tuple[str, str]:
        """(verdict, test that noticed)"""
        scratch.mkdir(parents=True, exist_ok=True)
        text = (ROOT / mutant.source).read_text(encoding="utf-8")
        with self.lock:
            if mutant.source not in self.clean:
                objects = self.build.objects(mutant.source, text, scratch)
                self.clean[mutant.source] = [one.read_bytes() for one in objects or []]
        lines = text.split("\n")
        lines[mutant.line - 1] = mutant.after
        objects = self.build.objects(mutant.source, "\n".join(lines), scratch)
        if objects is None:
            return BROKEN, ""
        if [one.read_bytes() for one in objects] == self.clean[mutant.source]:
            return EQUIVALENT, ""
        tests = sorted(MODULES[mutant.module][1],
                       key=lambda test: (-self.kills[mutant.source, test], self.limits[test]))
        for test in tests:
            program = scratch / test
            if not self.build.link(test, objects, program):
                return BROKEN, test
            code = run_test(program, scratch, *self.limits[test])
            program.unlink()
            if code != 0:
                with self.lock:
                    self.kills[mutant.source, test] += 1
                return (KILLED if code is not None else TIMED_OUT), test
        return SURVIVED, ""


def measure_limits(build: Build, tests: list[str], work: pathlib.Path) -> dict[str, tuple[float, int]]:
    """Seconds and bytes that a test program may take; unchanged, it must pass."""
    limits = {}
    for test in tests:
        for memory in MEMORY_BYTES:
            started = time.monotonic()
            code = run_test(build.folder / "bin" / test, work, 600, memory)
            took = time.monotonic() - started
            if code == 0:
                break
        if code != 0:
            sys.exit(f"mutate: {test} fails without any change (exit code {code}); build it and make it pass first")
        limits[test] = (5 + 3 * took, memory)
        print(f"mutate: {test} passes in {took:.1f} s", flush=True)
    return limits


def report(results: list[dict], seed: int) -> str:
    lines = [f"# Mutants, seed {seed}", ""]
    for title, field in (("module", "module"), ("file", "source")):
        table = collections.defaultdict(collections.Counter)
        for result in results:
            table[result[field]][result["verdict"]] += 1
        lines += [f"| {title} | " + " | ".join(VERDICTS) + " |", "|---" * (len(VERDICTS) + 1) + "|"]
        for name in sorted(table):
            lines.append(f"| {name} | " + " | ".join(str(table[name][one]) for one in VERDICTS) + " |")
        if field == "module":
            total = collections.Counter(result["verdict"] for result in results)
            lines.append("| all | " + " | ".join(str(total[one]) for one in VERDICTS) + " |")
        lines.append("")
    lines += ["## Survivors", ""]
    for result in sorted(results, key=lambda one: (one["source"], one["line"])):
        if result["verdict"] == SURVIVED:
            lines += [f"- {result['source']}:{result['line']}, {result['name']}",
                      f"  - `{result['before'].strip()}`", f"  - `{result['after'].strip()}`"]
    return "\n".join(lines) + "\n"


def survivors_of(results: list[dict], line_of) -> list[Mutant]:
    """Survivors whose line is still the same; line_of(source, line) reads it."""
    fields = [field.name for field in dataclasses.fields(Mutant)]
    return [Mutant(**{name: result[name] for name in fields}) for result in results
            if result["verdict"] == SURVIVED and line_of(result["source"], result["line"]) == result["before"]]


def run_all(judge: Judge, chosen: list[Mutant], work: pathlib.Path, jobs: int, results: list[dict], seed: int) -> None:
    log = (work / "results.jsonl").open("a", encoding="utf-8")
    done = {result["key"] for result in results}
    waiting = [mutant for mutant in chosen if mutant.key() not in done]
    started, lock, free = time.monotonic(), threading.Lock(), [work / f"job-{n}" for n in range(jobs)]
    counts = collections.Counter(result["verdict"] for result in results)

    def one(mutant: Mutant) -> None:
        with lock:
            scratch = free.pop()
        verdict, test = judge.judge(mutant, scratch)
        with lock:
            free.append(scratch)
            results.append({**dataclasses.asdict(mutant), "key": mutant.key(), "verdict": verdict, "test": test})
            log.write(json.dumps(results[-1]) + "\n")
            log.flush()
            counts[verdict] += 1
            ready = sum(counts.values()) - len(done)
            left = (time.monotonic() - started) / ready * (len(waiting) - ready)
            print(f"mutate: {ready} of {len(waiting)}, {counts[SURVIVED]} survived, about {left / 60:.0f} min left; "
                  f"{verdict} {mutant.source}:{mutant.line} {mutant.name} {test}", flush=True)
            (work / "report.md").write_text(report(results, seed), encoding="utf-8")

    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        list(pool.map(one, waiting))
    log.close()


def line_of(source: str, line: int) -> str:
    lines = (ROOT / source).read_text(encoding="utf-8").split("\n") if (ROOT / source).exists() else []
    return lines[line - 1] if line <= len(lines) else ""


def draw(build: Build, modules: list[str], count: int, generator: random.Random) -> list[Mutant]:
    """As many mutants of each module, in a random order."""
    chosen = []
    for number, module in enumerate(modules):
        by_file = {source: mutants_of(module, source, (ROOT / source).read_text(encoding="utf-8"))
                   for source in build.sources(MODULES[module][0])}
        chosen += choose(by_file, count * (number + 1) // len(modules) - count * number // len(modules), generator)
    generator.shuffle(chosen)
    return chosen


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--module", action="append", choices=sorted(MODULES), help="default: all")
    parser.add_argument("--count", type=int, default=350, help="mutants over all modules")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--resume", action="store_true", help="keep the results of an earlier run")
    parser.add_argument("--survivors", action="store_true", help="judge those of an earlier run again")
    parser.add_argument("--level", default="-O1", help="optimisation of the changed source")
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build/release", help="a finished build")
    arguments = parser.parse_args()
    modules = arguments.module or list(MODULES)
    work = ROOT / "build/mutate"
    results_file = work / "results.jsonl"
    if not (arguments.resume or arguments.survivors):
        shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True, exist_ok=True)
    print(f"mutate: seed {arguments.seed}, {arguments.count} mutants of {', '.join(modules)}", flush=True)
    build = Build(arguments.build.resolve(), work, arguments.level)
    results = [json.loads(line) for line in results_file.read_text().splitlines()] if results_file.exists() else []
    if arguments.survivors:
        chosen = survivors_of(results, line_of)
        results = [result for result in results if result["verdict"] != SURVIVED]
        modules = sorted({mutant.module for mutant in chosen})
    else:
        chosen = draw(build, modules, arguments.count, random.Random(arguments.seed))
        keys = {mutant.key() for mutant in chosen}
        results = [result for result in results if result["key"] in keys]
    results_file.write_text("".join(json.dumps(result) + "\n" for result in results))
    tests = list(dict.fromkeys(test for module in modules for test in MODULES[module][1]))
    run_all(Judge(build, measure_limits(build, tests, work)), chosen, work, arguments.jobs, results, arguments.seed)
    print(report(results, arguments.seed), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())

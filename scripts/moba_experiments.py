#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Evaluates the logs of scripts/moba_experiments.sh.

  moba_experiments.py FOLDER    writes summary.md, needle.svg and mask.svg
"""

import pathlib
import re
import sys

COLOURS = {"full": "#111827", "moba-8-4": "#c2410c", "moba-8-4-last-full": "#1d4ed8",
           "moba-4-8": "#15803d", "moba-4-12": "#0891b2", "moba-8-4-then-full": "#a21caf",
           "moba": "#c2410c", "moba-last-full-1": "#1d4ed8", "moba-last-full-2": "#15803d"}
NAMES = {"full": "full", "moba-8-4": "moba:8,4", "moba-8-4-last-full": "moba:8,4,last_full=1",
         "moba-4-8": "moba:4,8", "moba-4-12": "moba:4,12", "moba-8-4-then-full": "moba:8,4 for 90 % of the steps, then full",
         "moba": "moba:16,3", "moba-last-full-1": "moba:16,3,last_full=1",
         "moba-last-full-2": "moba:16,3,last_full=2"}
# Settings of the runs with a loss mask, as in the shell script.
LENGTH, EVERY, BLOCK, TOP_K = 400, 100, 16, 3

EVALUATION = re.compile(r"evaluation at step (\d+): loss (\S+) accuracy (\S+)"
                        r"(?: answer attended ([\d. ]+))?")
REACH = re.compile(r"step (\d+) loss .* reach ([\d./ a-z]+)$")


class Run:
    """One log: evaluations (step, loss, accuracy, attended by layer), reach by step and layer."""

    def __init__(self, file: pathlib.Path):
        match = re.fullmatch(r"(needle|mask)\.([\w-]+)(?:\.every-(\d+))?\.seed-(\d+)\.log", file.name)
        assert match, f"{file} is no log of scripts/moba_experiments.sh"
        self.task, self.mode, self.every, self.seed = match.groups()
        self.evaluations, self.reach = [], []
        for line in file.read_text(encoding="utf-8").splitlines():
            if found := EVALUATION.match(line):
                attended = [float(one) for one in (found[4] or "").split()]
                self.evaluations.append((int(found[1]), float(found[2]), float(found[3]), attended))
            elif found := REACH.match(line):
                self.reach.append((int(found[1]), [self.shares(one) for one in found[2].split()]))

    @staticmethod
    def shares(text: str) -> tuple[float, float] | None:
        """Returns (blocks, tokens) of a layer, or None for full attention."""
        return None if text == "full" else tuple(float(one) for one in text.split("/"))

    def mean_reach(self, layer: int) -> tuple[float, float] | None:
        values = [by_layer[layer] for _, by_layer in self.reach if by_layer[layer]]
        if not values:
            return None
        return tuple(sum(one[i] for one in values) / len(values) for i in range(2))


def formula() -> tuple[float, float]:
    """Block reach of the last layer if choices were random: by 1 - (1 - (k - 1) / n)^m, which takes
    every block for a candidate of every query, and with the blocks that a query has before it."""
    blocks = -(-LENGTH // BLOCK)
    queries = [position // BLOCK for position in range(EVERY - 1, LENGTH, EVERY)]
    simple = 1 - (1 - (TOP_K - 1) / blocks) ** len(queries)
    reached = 0.0
    for block in range(blocks):
        missed = 1.0
        for current in queries:
            if current == block:
                missed = 0.0
            elif current > block:
                missed *= 1 - min(1.0, (TOP_K - 1) / current)
        reached += 1 - missed
    return simple, reached / blocks


def needle_table(runs: list[Run]) -> list[str]:
    lines = ["| attention | seed | accuracy | at half of the steps | loss | answer's block attended, "
             "by layer |", "|---|---|---|---|---|---|"]
    for run in runs:
        last = run.evaluations[-1]
        half = next(one for one in run.evaluations if one[0] >= last[0] / 2)
        attended = ", ".join(f"{one:.2f}" for one in last[3])
        lines.append(f"| {NAMES[run.mode]} | {run.seed} | {last[2]:.4f} | {half[2]:.4f} | "
                     f"{last[1]:.4f} | {attended} |")
    return lines


def mask_table(runs: list[Run]) -> list[str]:
    lines = ["| loss on | attention | seed | block reach by layer | token reach by layer | loss on "
             "all tokens |", "|---|---|---|---|---|---|"]
    for run in runs:
        layers = len(run.reach[0][1]) if run.reach else 0
        reach = [run.mean_reach(layer) for layer in range(layers)]
        blocks, tokens = (", ".join("full" if one is None else f"{one[i]:.3f}" for one in reach) or "-"
                          for i in range(2))
        share = "all" if run.every == "1" else f"1 in {run.every}"
        lines.append(f"| {share} | {NAMES[run.mode]} | {run.seed} | {blocks} | {tokens} | "
                     f"{run.evaluations[-1][1]:.4f} |")
    return lines


def frame(title: str, x_ticks: list[tuple[float, str]], y_ticks: list[tuple[float, str]]) -> list[str]:
    parts = ['<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 700 385" font-family="sans-serif" '
             'font-size="12">', '<rect width="700" height="385" fill="white"/>']
    for at, text in y_ticks:
        parts.append(f'<line x1="50" x2="670" y1="{at:.1f}" y2="{at:.1f}" stroke="#ddd"/>')
        parts.append(f'<text x="44" y="{at + 4:.1f}" text-anchor="end">{text}</text>')
    for at, text in x_ticks:
        parts.append(f'<text x="{at:.1f}" y="353" text-anchor="middle">{text}</text>')
    return [*parts, f'<text x="360" y="373" text-anchor="middle">{title}</text>']


def y_of(share: float) -> float:
    return 15 + 320 * (1 - share)


SHARE_TICKS = [(y_of(tick / 5), f"{tick / 5:.1f}") for tick in range(6)]


def needle_svg(runs: list[Run]) -> str:
    steps = max(run.evaluations[-1][0] for run in runs)
    ticks = [(50 + 620 * tick / 5, f"{steps * tick / 5:.0f}") for tick in range(6)]
    parts = frame("optimizer steps; share of held out questions answered, one line per seed", ticks,
                  SHARE_TICKS)
    modes = list(dict.fromkeys(run.mode for run in runs))
    for run in runs:
        points = " ".join(f"{50 + 620 * step / steps:.1f},{y_of(accuracy):.1f}"
                          for step, _, accuracy, _ in run.evaluations)
        parts.append(f'<polyline points="{points}" fill="none" stroke="{COLOURS[run.mode]}" '
                     'stroke-width="1.5"/>')
    for index, mode in enumerate(modes):
        parts.append(f'<text x="380" y="{230 + 18 * index}" fill="{COLOURS[mode]}">{NAMES[mode]}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def mask_svg(runs: list[Run]) -> str:
    """Block reach of every layer over the steps' mean, a group of bars per kind of attention."""
    masked = [run for run in runs if run.every != "1" and run.reach]
    modes = list(dict.fromkeys(run.mode for run in masked))
    width = 620 / len(modes)
    ticks = [(50 + width * (index + 0.5), NAMES[mode]) for index, mode in enumerate(modes)]
    parts = frame("block reach of each layer, first to last; loss on one token in 100, mean of seeds",
                  ticks, SHARE_TICKS)
    for index, mode in enumerate(modes):
        of = [run for run in masked if run.mode == mode]
        layers = len(of[0].reach[0][1])
        for layer in range(layers):
            values = [run.mean_reach(layer) for run in of]
            full = values[0] is None
            share = 1.0 if full else sum(one[0] for one in values) / len(values)
            bar = width * 0.8 / layers
            x = 50 + width * (index + 0.1) + bar * layer
            parts.append(f'<rect x="{x:.1f}" y="{y_of(share):.1f}" width="{bar - 4:.1f}" '
                         f'height="{320 * share:.1f}" fill="{"#e5e7eb" if full else COLOURS[mode]}"/>')
            parts.append(f'<text x="{x + bar / 2 - 2:.1f}" y="{y_of(share) + 14:.1f}" text-anchor='
                         f'"middle" fill="{"black" if full else "white"}">'
                         f'{"full" if full else f"{share:.2f}"}</text>')
    for share, text in zip(formula(), ("1 − (1 − (k − 1) / n)^m", "random choice among past blocks")):
        parts.append(f'<line x1="50" x2="670" y1="{y_of(share):.1f}" y2="{y_of(share):.1f}" '
                     'stroke="#111827" stroke-dasharray="5 4"/>')
        parts.append(f'<text x="666" y="{y_of(share) - 5:.1f}" text-anchor="end" paint-order="stroke" '
                     f'stroke="white" stroke-width="4">{text}: {share:.3f}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def main() -> int:
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    folder = pathlib.Path(sys.argv[1])
    order = {mode: index for index, mode in enumerate(NAMES)}
    runs = sorted((Run(file) for file in folder.glob("*.log")),
                  key=lambda run: (run.task, int(run.every or 0), order[run.mode], int(run.seed)))
    needle = [run for run in runs if run.task == "needle"]
    mask = [run for run in runs if run.task == "mask"]
    simple, exact = formula()
    sections = [needle_table(needle), mask_table(mask),
                [f"random choice: {simple:.3f} by the formula, {exact:.3f} among past blocks"]]
    (folder / "summary.md").write_text("\n\n".join("\n".join(one) for one in sections) + "\n")
    (folder / "needle.svg").write_text(needle_svg(needle))
    (folder / "mask.svg").write_text(mask_svg(mask))
    return 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Evaluates the loss logs of scripts/muon_vs_adamw.sh.

  best FOLDER RULE SEED    the learning rate with the lowest final loss
  report FOLDER SEED       writes summary.md, curves.csv and curves.svg
"""

import math
import pathlib
import re
import sys

SMOOTHING_STEPS = 20  # Losses of single batches are noisy; all figures are means of as many steps.
COLOURS = {"adamw": "#c2410c", "muon": "#1d4ed8"}
NAMES = {"adamw": "AdamW", "muon": "Muon"}


def read_runs(folder: pathlib.Path) -> dict[tuple[str, str, str], list[float]]:
    runs = {}
    for file in sorted(folder.glob("*.csv")):
        match = re.fullmatch(r"(\w+)-lr([\d.]+)-seed(\d+)\.csv", file.name)
        if match:
            lines = file.read_text(encoding="utf-8").split()
            runs[match.groups()] = [float(line.split(",")[1]) for line in lines]
    return runs


def read_controls(folder: pathlib.Path) -> dict[str, list[float]]:
    """Runs of the best AdamW with one flag more, by that flag and its value."""
    controls = {}
    for file in sorted(folder.glob("adamw-*.csv")):
        match = re.fullmatch(r"adamw-lr[\d.]+-seed\d+(--[a-z0-9-]+)=([\d.]+)\.csv", file.name)
        if match:
            lines = file.read_text(encoding="utf-8").split()
            controls[f"{match[1]} {match[2]}"] = [float(line.split(",")[1]) for line in lines]
    return controls


def smooth(losses: list[float]) -> list[float]:
    """Mean of the last SMOOTHING_STEPS steps, of as many as there are at the start."""
    means = []
    for step in range(len(losses)):
        window = losses[max(0, step + 1 - SMOOTHING_STEPS):step + 1]
        means.append(sum(window) / len(window))
    return means


def final(losses: list[float]) -> float:
    last = smooth(losses)[-1]
    return last if math.isfinite(last) else math.inf


def best_lr(runs: dict, rule: str, seed: str) -> str:
    grid = [key for key in runs if key[0] == rule and key[2] == seed]
    return min(grid, key=lambda key: final(runs[key]))[1]


def steps_to(losses: list[float], target: float) -> int | None:
    """The number of steps after which the smoothed loss is at or below the target."""
    for step, loss in enumerate(smooth(losses)):
        if step + 1 >= SMOOTHING_STEPS and loss <= target:
            return step + 1
    return None


def grid_table(runs: dict, seed: str) -> list[str]:
    lines = ["| rule | peak learning rate | final loss |", "|---|---|---|"]
    for key in sorted(runs, key=lambda key: (key[0], float(key[1]))):
        if key[2] == seed:
            best = " (best)" if key[1] == best_lr(runs, key[0], seed) else ""
            lines.append(f"| {NAMES[key[0]]} | {key[1]} | {final(runs[key]):.4f}{best} |")
    return lines


def best_runs(runs: dict, seed: str) -> dict[str, list[tuple[str, list[float]]]]:
    found = {}
    for rule in NAMES:
        lr = best_lr(runs, rule, seed)
        found[rule] = [(key[2], runs[key]) for key in sorted(runs) if key[:2] == (rule, lr)]
    return found


def targets_of(best: dict) -> list[float]:
    """Losses between the first ones and where the worst seed of AdamW ends, and that end."""
    worst_end = max(final(losses) for _, losses in best["adamw"])
    start = min(smooth(losses)[SMOOTHING_STEPS - 1] for of in best.values() for _, losses in of)
    targets = [round(worst_end + (start - worst_end) * share, 2) for share in (0.5, 0.25, 0.1)]
    return [*targets, math.ceil(worst_end * 100) / 100]


def controls_table(runs: dict, controls: dict, seed: str) -> list[str]:
    targets = targets_of(best_runs(runs, seed))
    lines = ["| AdamW with | final loss |" + "".join(f" steps to {one:.2f} |" for one in targets),
             "|---|---|" + "---|" * len(targets)]
    for name, losses in controls.items():
        steps = "".join(f" {steps_to(losses, one) or '-'} |" for one in targets)
        lines.append(f"| {name} | {final(losses):.4f} |{steps}")
    return lines


def steps_table(runs: dict, seed: str) -> list[str]:
    best = best_runs(runs, seed)
    targets = targets_of(best)
    lines = ["| loss | seed | steps with AdamW | steps with Muon | Muon / AdamW |", "|---|---|---|---|---|"]
    for target in targets:
        for (number, adamw), (_, muon) in zip(best["adamw"], best["muon"]):
            slow, fast = steps_to(adamw, target), steps_to(muon, target)
            ratio = f"{fast / slow:.2f}" if slow and fast else "-"
            lines.append(f"| {target:.2f} | {number} | {slow or '-'} | {fast or '-'} | {ratio} |")
    return lines


def final_table(runs: dict, seed: str) -> list[str]:
    lines = ["| rule | seed | final loss |", "|---|---|---|"]
    for rule, of in best_runs(runs, seed).items():
        lines += [f"| {NAMES[rule]} | {number} | {final(losses):.4f} |" for number, losses in of]
    return lines


def curves_csv(runs: dict, seed: str) -> str:
    best = {rule: smooth(of[0][1]) for rule, of in best_runs(runs, seed).items()}
    lines = ["steps," + ",".join(best)]
    for step in range(SMOOTHING_STEPS - 1, len(next(iter(best.values()))), SMOOTHING_STEPS):
        lines.append(f"{step + 1}," + ",".join(f"{losses[step]:.4f}" for losses in best.values()))
    return "\n".join(lines) + "\n"


def curves_svg(runs: dict, seed: str) -> str:
    best = best_runs(runs, seed)
    everything = [loss for of in best.values() for _, losses in of
                  for loss in smooth(losses)[SMOOTHING_STEPS - 1:]]
    low, high = math.floor(min(everything) * 5) / 5, math.ceil(max(everything) * 5) / 5
    steps = len(next(iter(best.values()))[0][1])
    left, top, width, height = 50, 15, 620, 320

    def x(step: float) -> float:
        return left + width * step / steps

    def y(loss: float) -> float:
        return top + height * (high - loss) / (high - low)

    parts = ['<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 700 385" font-family="sans-serif" '
             'font-size="12">', '<rect width="700" height="385" fill="white"/>']
    for tick in range(6):
        loss = low + (high - low) * tick / 5
        parts.append(f'<line x1="{left}" x2="{left + width}" y1="{y(loss):.1f}" y2="{y(loss):.1f}" '
                     'stroke="#ddd"/>')
        parts.append(f'<text x="{left - 6}" y="{y(loss) + 4:.1f}" text-anchor="end">{loss:.2f}</text>')
        step = steps * tick / 5
        parts.append(f'<text x="{x(step):.1f}" y="{top + height + 18}" text-anchor="middle">'
                     f'{step:.0f}</text>')
    parts.append(f'<text x="{left + width / 2}" y="{top + height + 38}" text-anchor="middle">'
                 f'optimizer steps; loss in nats per byte, mean of {SMOOTHING_STEPS} steps; one line '
                 'per seed</text>')
    for index, (rule, of) in enumerate(best.items()):
        for _, losses in of:
            points = " ".join(f"{x(step + 1):.1f},{y(loss):.1f}"
                              for step, loss in enumerate(smooth(losses))
                              if step + 1 >= SMOOTHING_STEPS)
            parts.append(f'<polyline points="{points}" fill="none" stroke="{COLOURS[rule]}" '
                         'stroke-width="1.5"/>')
        lr = best_lr(runs, rule, seed)
        parts.append(f'<text x="{left + width - 160}" y="{top + 24 + 18 * index}" '
                     f'fill="{COLOURS[rule]}">{NAMES[rule]}, peak rate {lr}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def report(folder: pathlib.Path, seed: str) -> None:
    runs = read_runs(folder)
    sections = [grid_table(runs, seed), final_table(runs, seed), steps_table(runs, seed),
                controls_table(runs, read_controls(folder), seed)]
    (folder / "summary.md").write_text("\n\n".join("\n".join(s) for s in sections) + "\n")
    (folder / "curves.csv").write_text(curves_csv(runs, seed))
    (folder / "curves.svg").write_text(curves_svg(runs, seed))


def main() -> int:
    if len(sys.argv) == 5 and sys.argv[1] == "best":
        print(best_lr(read_runs(pathlib.Path(sys.argv[2])), sys.argv[3], sys.argv[4]))
    elif len(sys.argv) == 4 and sys.argv[1] == "report":
        report(pathlib.Path(sys.argv[2]), sys.argv[3])
    else:
        print(__doc__, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""scripts/find_and_act.py BIN DATA OUT: what docs/evidence/find_and_act.md shows. Trains BIN/moe_lm
with two ranks under BIN/muster's collector and writes summary.md and find_and_act.svg to OUT:

  clipped   Muon without weight decay on DATA: logits grow, the built-in policy arms QK-clip
  growing   the same run under a policy that only records
  jumping   text with a stretch of noise: the loss jumps, the policy skips a step

The collector runs beside the ranks, so the steps at which commands apply differ between repetitions
by a few; everything before is the same bit for bit.
"""

import pathlib
import random
import sqlite3
import struct
import subprocess
import sys

MODEL = ["--batch", "8", "--seq", "32", "--layers", "2", "--d-model", "32", "--heads", "2",
         "--experts", "4", "--ep-size", "1", "--seed", "7", "--schedule", "constant", "--print-every", "0"]
GROWING = ["--lr", "0.03", "--weight-decay", "0", "--steps", "800"]
RECORD_LOGITS = "version: 1\nrules:\n  - {name: record_logits, finding: max_logit, actions: [record]}\n"
SKIP = ("version: 1\nrules:\n  - {name: skip_after_spike, finding: spike, subject: loss, "
        "actions: [skip_step], cooldown_steps: 10}\n")
BLUE, ORANGE, GREY = "#1d4ed8", "#c2410c", "#666"
LEFT, WIDTH, HEIGHT = 60, 620, 220


def train(binaries: pathlib.Path, out: pathlib.Path, name: str, policy: str, flags: list[str]) -> None:
    folder = out / name
    if (folder / "done").exists():
        return
    print(f"find_and_act: {name}", file=sys.stderr)
    folder.mkdir(parents=True, exist_ok=True)
    line = [binaries / "muster", "collector", "--db", folder / "muster.db", "--listen", "127.0.0.1:0",
            "--http", "127.0.0.1:0"]
    if policy:
        (folder / "policy.yaml").write_text(policy)
        line += ["--policy", folder / "policy.yaml"]
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as collector:
        words = next(line for line in collector.stdout if line.startswith("collector ")).split()
        subprocess.run([binaries / "muster", "run", "--nproc-per-node", "2", "--run-id", name,
                        "--checkpoint-root", folder / "checkpoints", "--collector", words[1], "--",
                        binaries / "moe_lm", *MODEL, *flags],
                       check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        collector.terminate()
    (folder / "done").touch()


def write_text_with_noise(path: pathlib.Path) -> None:
    lines = [f"Line {n}: the {'grey sea' if n % 7 else 'white whale'} rose {n * n % 101} fathoms under the "
             "keel, and the watch sang out.\n" for n in range(400)]
    text = "".join(lines).encode()
    generator = random.Random(1)
    noise = bytes(generator.randrange(128, 256) for _ in range(96))
    path.write_bytes(text[:len(text) // 2] + noise + text[len(text) // 2:])


def series(out: pathlib.Path, name: str, metric: str) -> list[float]:
    """Values by step of a metric without a group, the largest over layers and heads."""
    with sqlite3.connect(out / name / "muster.db") as database:
        columns = {}
        for schema, position in database.execute(
                "SELECT schema_id, position FROM schema_metrics WHERE name = ? AND grp = ''", (metric,)):
            columns.setdefault(schema, []).append(position)
        values = {}
        for key, schema, blob in database.execute(
                "SELECT frame_key, schema_id, samples FROM frames JOIN streams "
                "ON stream_id = frame_key >> 35 WHERE rank = 0"):
            samples = struct.unpack(f"<{len(blob) // 4}f", blob)
            values[key & ((1 << 35) - 1)] = max(samples[at] for at in columns[schema])
    return [values[step] for step in sorted(values)]


def events(out: pathlib.Path, name: str, kind: str) -> list[tuple[int, str]]:
    with sqlite3.connect(out / name / "muster.db") as database:
        return list(database.execute(
            "SELECT step, reason FROM events WHERE kind = ? ORDER BY event_id", (kind,)))


class Panel:
    """Curves over steps in a frame whose upper edge is `top`."""

    def __init__(self, top: float, steps: int, high: float, title: str):
        self.top, self.steps, self.high, self.parts = top, steps, high, []
        for tick in range(6):
            value, step = high * tick / 5, steps * tick / 5
            self.line(0, steps, value, value, "#ddd")
            self.text(LEFT - 6, self.y(value) + 4, f"{value:g}", GREY, "end")
            self.text(self.x(step), top + HEIGHT + 16, f"{step:.0f}", GREY, "middle")
        self.text(LEFT, top - 8, title, "black", "start")

    def x(self, step: float) -> float:
        return LEFT + WIDTH * step / self.steps

    def y(self, value: float) -> float:
        return self.top + HEIGHT * (1 - min(value, self.high) / self.high)

    def text(self, x: float, y: float, text: str, colour: str, anchor: str) -> None:
        self.parts.append(f'<text x="{x:.1f}" y="{y:.1f}" fill="{colour}" text-anchor="{anchor}">{text}</text>')

    def line(self, first: float, last: float, low: float, high: float, colour: str, dash: str = "") -> None:
        self.parts.append(f'<line x1="{self.x(first):.1f}" x2="{self.x(last):.1f}" y1="{self.y(low):.1f}" '
                          f'y2="{self.y(high):.1f}" stroke="{colour}"'
                          + (f' stroke-dasharray="{dash}"' if dash else "") + "/>")

    def curve(self, values: list[float], colour: str) -> None:
        points = " ".join(f"{self.x(step):.1f},{self.y(value):.1f}" for step, value in enumerate(values))
        self.parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.3"/>')

    def mark(self, step: int, text: str, row: int, anchor: str = "start") -> None:
        self.line(step, step, 0, self.high, GREY, "3 3")
        self.text(self.x(step) + (4 if anchor == "start" else -4), self.top + 14 + 16 * row, text, GREY, anchor)


def logit_panel(out: pathlib.Path, lines: list[str]) -> Panel:
    clipped, growing = (series(out, name, "train_attn_logit_max") for name in ("clipped", "growing"))
    found = events(out, "clipped", "finding")[0]
    applied = events(out, "clipped", "command_applied")[0][0]
    same = clipped[:applied + 1] == growing[:applied + 1]
    after = clipped[applied + 1:]
    lines += [f"- clipped, finding: {found[1]}", f"- clipped, applied at step {applied}",
              f"- equal to growing up to that step: {same}",
              f"- clipped after it: largest {max(after):.1f}, mean {sum(after) / len(after):.1f}",
              f"- growing: largest {max(growing):.1f}, mean of the last 100 steps {sum(growing[-100:]) / 100:.1f}"]
    for name in ("clipped", "growing"):
        losses = series(out, name, "train_loss_nats")[-100:]
        lines.append(f"- {name}: mean loss of the last 100 steps {sum(losses) / 100:.3f}")
    high = -(-max(growing) // 500) * 500
    panel = Panel(30, len(growing), high, "Largest attention logit of all heads")
    panel.line(0, len(growing), 100, 100, BLUE, "6 4")
    panel.curve(growing, ORANGE)
    panel.curve(clipped, BLUE)
    panel.mark(found[0], f"found at step {found[0]}", 0, "end")
    panel.mark(applied, f"clipped from step {applied}, on both ranks", 0)
    panel.text(LEFT + WIDTH - 6, panel.y(growing[-1]) - 40, "policy records only", ORANGE, "end")
    panel.text(LEFT + WIDTH - 6, panel.y(100) - 30, "built-in policy arms QK-clip, tau 100", BLUE, "end")
    return panel


def loss_panel(out: pathlib.Path, lines: list[str]) -> Panel:
    loss = series(out, "jumping", "train_loss_nats")
    found = events(out, "jumping", "finding")
    skipped = [step for step, value in enumerate(series(out, "jumping", "train_step_skipped")) if value]
    lines += [f"- jumping, finding: {reason}" for _, reason in found]
    lines += [f"- jumping, action: {reason}" for _, reason in events(out, "jumping", "action")]
    lines.append(f"- jumping, skipped steps: {skipped}")
    panel = Panel(HEIGHT + 90, len(loss), 6, "Loss in nats per byte, some text is noise")
    panel.curve(loss, BLUE)
    steps = [step for step, _ in found]
    for row, (what, at, colour) in enumerate((("found at", steps, ORANGE), ("skipped", skipped, GREY))):
        for step in at:
            panel.line(step, step, 0, panel.high, colour, "3 3")
        panel.text(panel.x(steps[0]) - 6, panel.top + 16 + 18 * row,
                   f"{what} {', '.join(map(str, at))}", colour, "end")
    return panel


def main() -> int:
    if len(sys.argv) != 4:
        print(__doc__, file=sys.stderr)
        return 2
    binaries, data, out = (pathlib.Path(argument) for argument in sys.argv[1:])
    out.mkdir(parents=True, exist_ok=True)
    text = out / "noise.txt"
    write_text_with_noise(text)
    train(binaries, out, "clipped", "", ["--data", data, *GROWING])
    train(binaries, out, "growing", RECORD_LOGITS, ["--data", data, *GROWING])
    train(binaries, out, "jumping", SKIP, ["--data", text, "--lr", "0.01", "--steps", "400"])
    lines = []
    panels = [logit_panel(out, lines), loss_panel(out, lines)]
    height = 2 * HEIGHT + 130
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 700 {height}" font-family="sans-serif" '
             f'font-size="12">', f'<rect width="700" height="{height}" fill="white"/>']
    parts += [part for panel in panels for part in panel.parts]
    parts.append(f'<text x="{LEFT + WIDTH / 2}" y="{height - 8}" text-anchor="middle">optimizer steps</text>')
    (out / "find_and_act.svg").write_text("\n".join([*parts, "</svg>"]) + "\n")
    (out / "summary.md").write_text("\n".join(lines) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

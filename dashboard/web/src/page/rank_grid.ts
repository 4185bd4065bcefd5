// SPDX-License-Identifier: Apache-2.0
// One tile per rank: whether it is alive, its step, and its compute time compared with the others.

import type { RunModel } from "../data/run_model";
import type { RankStatus } from "../data/types";
import { fill, h } from "../ui/dom";
import { age, seconds, step } from "../ui/format";

const COMPACT_FROM = 65; // ranks
const STRAGGLER = 1.05; // times the median; a real straggler on a busy GPU is 2.5 to 5 percent slower
const SLOW = 1.2;
const SMOOTHING = 0.15; // weight of the newest step: one slow step must not mark a straggler

export class RankGrid {
  readonly element: HTMLElement;
  private readonly grid = h("div", { class: "rank-grid" });
  private readonly note = h("span", { class: "note" });
  private readonly paces = new Map<number, { step: number; seconds: number }>();
  private drawnAt = -Infinity;

  constructor(private readonly model: RunModel) {
    this.element = h("section", { class: "card", id: "ranks", "aria-label": "Ranks" },
      h("header", { class: "card-header" }, h("h2", {}, "Ranks"), this.note), this.grid);
    this.update();
  }

  update(): void {
    // Redrawing thousands of tiles four times a second would keep the page from doing anything else.
    if (this.model.ranks.size >= COMPACT_FROM && performance.now() - this.drawnAt < 1000) return;
    this.drawnAt = performance.now();
    const ranks = [...this.model.ranks.values()].sort((a, b) => a.rank - b.rank);
    const compact = ranks.length >= COMPACT_FROM;
    ranks.forEach((rank) => this.smooth(rank));
    const median = medianOf(ranks.filter((rank) => this.model.isAlive(rank)).map((rank) => this.pace(rank)));
    this.grid.classList.toggle("compact", compact);
    this.note.textContent = median > 0 ? `median compute ${seconds(median)}` : "";
    fill(this.grid, ...(ranks.length > 0
      ? ranks.map((rank) => this.tile(rank, median, compact))
      : [h("p", { class: "empty" }, "No rank has connected yet.")]));
  }

  private tile(rank: RankStatus, median: number, compact: boolean): HTMLElement {
    const alive = this.model.isAlive(rank);
    const ratio = alive && median > 0 ? this.pace(rank) / median : 1;
    const pace = !alive ? (this.model.hasEnded ? "ended" : "lost") : ratio >= SLOW ? "slow" : ratio >= STRAGGLER ? "late" : "even";
    const facts = [
      `rank ${rank.rank}, generation ${rank.generation}, step ${rank.step}`,
      `compute ${seconds(this.pace(rank))} (${ratio.toFixed(2)} of the median), smoothed over steps`,
      `seen ${age(this.model.now() - rank.last_seen_unix_ms)} ago`,
      `${rank.dropped_count} frames dropped`,
    ].join("\n");
    const tile = h("div", { class: "rank", "data-pace": pace, "data-rank": rank.rank, title: facts, tabindex: 0 });
    if (compact) return tile;
    tile.append(
      h("b", {}, String(rank.rank)),
      h("span", { class: "rank-step" }, alive ? step(rank.step) : this.model.hasEnded ? "ended" : "lost"),
      h("span", { class: "rank-time" }, seconds(this.pace(rank))));
    if (rank.dropped_count > 0) tile.append(h("span", { class: "rank-drop" }, `${rank.dropped_count} dropped`));
    return tile;
  }

  private pace(rank: RankStatus): number {
    return this.paces.get(rank.rank)?.seconds ?? NaN;
  }

  private smooth(rank: RankStatus): void {
    const before = this.paces.get(rank.rank);
    if (before?.step === rank.step) return;
    const now = computeSeconds(rank);
    const known = before !== undefined && Number.isFinite(before.seconds) && Number.isFinite(now);
    this.paces.set(rank.rank, {
      step: rank.step, seconds: known ? before.seconds + SMOOTHING * (now - before.seconds) : now });
  }
}

function computeSeconds(rank: RankStatus): number {
  return typeof rank.compute_seconds === "number" ? rank.compute_seconds : NaN;
}

function medianOf(values: number[]): number {
  const sorted = values.filter((value) => value > 0).sort((a, b) => a - b);
  return sorted[Math.floor(sorted.length / 2)] ?? 0;
}

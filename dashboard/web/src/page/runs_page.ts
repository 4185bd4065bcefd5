// SPDX-License-Identifier: Apache-2.0
// All runs of the database, newest first.

import { fetchRuns } from "../data/api";
import type { RunInfo } from "../data/types";
import { fill, h } from "../ui/dom";
import { age, dateTime, number, si, step } from "../ui/format";

const POLL_MS = 2000;
const STALE_MS = 15000;

export class RunsPage {
  private readonly list = h("div", { class: "run-list" });
  private readonly problem = h("p", { class: "problem banner", role: "alert", hidden: true });
  readonly element = h("main", { class: "runs-page" }, h("h1", {}, "Runs"), this.problem, this.list);

  async start(): Promise<void> {
    await this.refresh();
    window.setInterval(() => {
      if (!document.hidden) void this.refresh();
    }, POLL_MS);
  }

  private async refresh(): Promise<void> {
    try {
      const answer = await fetchRuns();
      this.problem.hidden = true;
      fill(this.list, ...(answer.runs.length > 0
        ? answer.runs.map((run) => row(run, answer.now_unix_ms))
        : [emptyState()]));
    } catch (error) {
      this.problem.hidden = false;
      this.problem.textContent = error instanceof Error ? error.message : String(error);
    }
  }
}

function row(run: RunInfo, now: number): HTMLElement {
  const silence = now - run.last_seen_unix_ms;
  const live = silence < STALE_MS;
  const loss = run.last_step < 0 ? "–" : typeof run.last_loss === "number" ? number(run.last_loss) : "not finite";
  const fact = (name: string, value: string) => h("div", { class: "fact" }, h("span", {}, name), h("b", {}, value));
  return h(
    "a", { class: "run-row", href: `?run=${encodeURIComponent(run.run_id)}`, "data-run": run.run_id },
    h("div", { class: "run-name" }, h("b", {}, run.run_id),
      h("span", { class: "status", "data-health": live ? "live" : "stale" }, live ? "live" : `silent for ${age(silence)}`)),
    fact("Step", step(run.last_step)), fact("Loss", loss), fact("Ranks", String(run.world_size)),
    fact("Generation", String(run.generation)), fact("Samples", si(run.sample_count)),
    fact("Started", dateTime(run.started_unix_ms)));
}

function emptyState(): HTMLElement {
  return h("div", { class: "empty large" },
    h("p", {}, "No run has reported to this collector yet."),
    h("pre", {}, "muster run --nproc-per-node 4 -- ./train"));
}

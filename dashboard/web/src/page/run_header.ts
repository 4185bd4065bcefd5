// SPDX-License-Identifier: Apache-2.0
// The top of a run's page: its name, its status and the most important numbers.

import type { RunModel } from "../data/run_model";
import { h, setText } from "../ui/dom";
import { age, dateTime, number, si, step } from "../ui/format";

export type Health = "live" | "stale" | "ended" | "disconnected" | "waiting";

const STALE_MS = 15000;

export function healthOf(model: RunModel): Health {
  if (model.connection === "lost") return "disconnected";
  if (model.hasEnded) return "ended";
  if (model.run.last_step < 0) return "waiting";
  return model.now() - model.run.last_seen_unix_ms > STALE_MS ? "stale" : "live";
}

const HEALTH_TEXT: Record<Health, (silence: string, ending: string) => string> = {
  live: () => "live",
  stale: (silence) => `silent for ${silence}`,
  ended: (_, ending) => ending,
  disconnected: () => "collector not reachable",
  waiting: () => "waiting for the first step",
};

interface Figure {
  element: HTMLElement;
  value: HTMLElement;
  note: HTMLElement;
}

export class RunHeader {
  readonly element: HTMLElement;
  private readonly badge = h("span", { class: "status", id: "run-status" });
  private readonly figures = new Map<string, Figure>();

  constructor(private readonly model: RunModel, private readonly tokensPerSecond: () => number | null) {
    const names = ["Step", "Loss", "Tokens/s", "Ranks alive", "Generation", "Restarts", "Last checkpoint", "Samples"];
    for (const name of names) this.figures.set(name, figure(name));
    this.element = h(
      "section", { class: "run-header" },
      h("div", { class: "run-title" }, h("h1", {}, model.runId), this.badge),
      h("dl", { class: "figures" }, ...[...this.figures.values()].map((one) => one.element)));
    this.update();
  }

  update(): void {
    const { run } = this.model;
    const health = healthOf(this.model);
    this.badge.dataset["health"] = health;
    this.badge.dataset["connection"] = this.model.connection;
    const silence = age(this.model.now() - run.last_seen_unix_ms);
    setText(this.badge, HEALTH_TEXT[health](silence, this.model.ending ?? ""));
    this.set("Step", step(run.last_step), `since ${dateTime(run.started_unix_ms)}`);
    this.set("Loss", run.last_step < 0 ? "–" : typeof run.last_loss === "number" ? number(run.last_loss) : "not finite", "nats per token");
    const rate = this.tokensPerSecond();
    this.set("Tokens/s", rate === null ? "–" : si(rate), "all ranks");
    const alive = this.model.aliveCount;
    this.set("Ranks alive", `${alive} / ${run.world_size}`, health === "ended" ? "run ended" : alive < run.world_size ? "some are missing" : "all there");
    this.mark("Ranks alive", alive < run.world_size && health !== "ended");
    this.set("Generation", String(run.generation), "launch of the job");
    this.set("Restarts", String(this.model.restarts), this.lastRestart());
    this.setCheckpoint();
    this.set("Samples", si(run.sample_count), run.dropped_count > 0 ? `${si(run.dropped_count)} frames dropped` : "none dropped");
    this.mark("Samples", run.dropped_count > 0);
  }

  private setCheckpoint(): void {
    const saved = this.model.events.filter((event) => event.kind === "checkpoint_committed").at(-1);
    // The event has the step at which rank 0 noticed the commit; the checkpoint may be of an earlier step.
    const at = saved?.inputs["checkpoint_step"] ?? saved?.step;
    this.set("Last checkpoint", typeof at === "number" ? step(at) : "none",
      saved ? `${age(this.model.now() - saved.unix_ms)} ago` : "");
  }

  private lastRestart(): string {
    const last = this.model.events.filter((event) => event.kind === "restart").at(-1);
    return last ? `last ${age(this.model.now() - last.unix_ms)} ago` : "";
  }

  private set(name: string, value: string, note: string): void {
    const found = this.figures.get(name);
    if (!found) return;
    setText(found.value, value);
    setText(found.note, note);
  }

  private mark(name: string, warning: boolean): void {
    this.figures.get(name)?.element.classList.toggle("warning", warning);
  }
}

function figure(name: string): Figure {
  const value = h("dd", { class: "figure-value", "data-figure": name });
  const note = h("dd", { class: "figure-note" });
  return { element: h("div", { class: "figure" }, h("dt", {}, name), value, note), value, note };
}

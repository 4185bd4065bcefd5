// SPDX-License-Identifier: Apache-2.0
// State of one run, updated by the live stream.

import { fetchEvents, fetchRun, fetchSeries } from "./api";
import { Catalog } from "./catalog";
import { LiveStream, type LiveState } from "./live";
import type {
  CommandAccess, CommandStatus, GenerationInfo, LiveUpdate, RankStatus, RunEvent, RunInfo,
} from "./types";

// The parts that a change affects; only these are drawn again.
export type Change = "run" | "events" | "ranks" | "commands" | "catalog" | "connection";

// Events with which a run ends or starts again.
const TURNS = ["run_ended", "run_started", "run_resumed", "restart"];

export class RunModel {
  run!: RunInfo;
  generations: GenerationInfo[] = [];
  catalog = new Catalog([]);
  events: RunEvent[] = [];
  ranks = new Map<number, RankStatus>();
  commands: CommandStatus[] = [];
  access: CommandAccess = "off";
  connection: LiveState = "connecting";
  private clockOffsetMs = 0; // server minus browser

  constructor(
    readonly runId: string,
    private readonly onChange: (changes: Set<Change>) => void,
  ) {}

  async load(): Promise<void> {
    await this.loadRun();
    this.events = await fetchEvents(this.runId);
    const after = this.events[this.events.length - 1]?.id ?? 0;
    new LiveStream(
      this.runId, after,
      (update) => void this.apply(update),
      (state) => {
        this.connection = state;
        this.onChange(new Set(["connection"]));
      });
  }

  // The server's time, so that ages do not depend on this machine's clock.
  now(): number {
    return Date.now() + this.clockOffsetMs;
  }

  get restarts(): number {
    return Math.max(
      this.events.filter((event) => event.kind === "restart").length, this.generations.length - 1);
  }

  get aliveCount(): number {
    return [...this.ranks.values()].filter((rank) => this.isAlive(rank)).length;
  }

  isAlive(rank: RankStatus): boolean {
    return rank.connected && rank.generation === this.run.generation;
  }

  // The end of the run: "finished", "stopped", "preempted" or "failed"; null while it runs.
  get ending(): string | null {
    const turns = this.events.filter((event) => TURNS.includes(event.kind));
    const ended = turns.slice(turns.map((event) => event.kind !== "run_ended").lastIndexOf(true) + 1);
    if (ended.length === 0) return null;
    // Rank 0 reports the reason, then the launcher the exit code.
    const why = ended.flatMap((event) => event.labels["ending"] ?? []).at(-1);
    const failed = ended.some((event) => event.severity !== "info");
    const asked = why === "preempted" || why === "stopped";
    return failed && !asked ? "failed" : (why ?? "finished");
  }

  get hasEnded(): boolean {
    return this.ending !== null;
  }

  private async loadRun(): Promise<void> {
    const [answer, series] = await Promise.all([fetchRun(this.runId), fetchSeries(this.runId)]);
    this.run = answer.run;
    this.generations = answer.generations;
    this.access = answer.commands;
    this.clockOffsetMs = answer.now_unix_ms - Date.now();
    this.catalog = new Catalog(series);
  }

  private async apply(update: LiveUpdate): Promise<void> {
    const changes = new Set<Change>();
    this.clockOffsetMs = update.now_unix_ms - Date.now();
    const before = this.run;
    const knownRanks = this.ranks.size;
    if (update.run) {
      this.run = update.run;
      changes.add("run");
      const current = this.generations.find((one) => one.generation === this.run.generation);
      if (current) current.step_last = Math.max(current.step_last, this.run.last_step);
    }
    for (const rank of update.ranks ?? []) {
      this.ranks.set(rank.rank, rank);
      changes.add("ranks");
    }
    if (update.events) {
      this.events.push(...update.events);
      changes.add("events");
    }
    if (update.commands) {
      this.commands = update.commands;
      changes.add("commands");
    }
    // A new launch or a new rank has series that are not in the catalog.
    const listed = this.generations.some((one) => one.generation === this.run.generation);
    const grown = this.run.generation !== before.generation || this.ranks.size !== knownRanks ||
      (!listed && this.run.last_step >= 0);
    if (grown) {
      await this.loadRun().then(() => changes.add("catalog"), () => undefined);
    }
    this.onChange(changes);
  }
}

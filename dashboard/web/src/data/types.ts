// SPDX-License-Identifier: Apache-2.0
// Types of the API's answers (docs/operate/dashboard.md).

// JSON has no NaN and infinity; the server writes them as strings.
export type JsonNumber = number | "NaN" | "Infinity" | "-Infinity";

export interface RunInfo {
  run_id: string;
  world_size: number;
  generation: number;
  first_step: number;
  last_step: number;
  started_unix_ms: number;
  last_seen_unix_ms: number;
  last_loss: JsonNumber;
  sample_count: number;
  dropped_count: number;
}

export interface GenerationInfo {
  generation: number;
  step_first: number;
  step_last: number;
  started_unix_ms: number;
}

export interface SeriesInfo {
  id: number;
  name: string;
  unit: string;
  scope: "job" | "rank";
  rank: number;
  layer: number;
  index: number;
  group: string;
}

// All series of a metric at one step, as columns.
export interface StepAnswer {
  metric: string;
  unit: string;
  generation: number;
  step: number; // -1 if this generation has no samples
  step_first: number;
  step_last: number;
  rank: number[];
  layer: number[];
  index: number[];
  group: string[];
  value: (JsonNumber | null)[]; // null if the step has no sample
}

export type Severity = "info" | "warning" | "error";

export interface RunEvent {
  id: number;
  generation: number;
  rank: number;
  kind: string;
  severity: Severity;
  step: number;
  unix_ms: number;
  reason: string;
  inputs: Record<string, JsonNumber>;
  labels: Record<string, string>;
}

export interface RankStatus {
  rank: number;
  generation: number;
  incarnation: string;
  step: number;
  last_seen_unix_ms: number;
  connected: boolean;
  compute_seconds: JsonNumber;
  dropped_count: number;
}

export type CommandKind = "checkpoint_now" | "skip_step" | "set_qk_clip_threshold" | "stop";

export interface CommandStatus {
  id: number;
  kind: CommandKind;
  argument: JsonNumber;
  reason: string;
  issuer: string;
  state: "issued" | "armed" | "applied" | "rejected" | "expired";
  state_reason: string;
  applied_step: number;
  ranks_armed: number;
  ranks_applied: number;
}

export type CommandAccess = "off" | "open" | "token";

export interface RunsAnswer {
  runs: RunInfo[];
  commands: CommandAccess;
  now_unix_ms: number;
}

export interface RunAnswer {
  run: RunInfo;
  generations: GenerationInfo[];
  commands: CommandAccess;
  now_unix_ms: number;
}

export interface LiveUpdate {
  now_unix_ms: number;
  run?: RunInfo;
  events?: RunEvent[];
  ranks?: RankStatus[];
  commands?: CommandStatus[];
}

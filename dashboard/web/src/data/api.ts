// SPDX-License-Identifier: Apache-2.0
// Requests to the server. Every failure is an Error with a message for people.

import { decodeRanges, type RangeEntry } from "./range_codec";
import type {
  CommandKind, RankStatus, RunAnswer, RunEvent, RunsAnswer, SeriesInfo, StepAnswer,
} from "./types";

const EVENTS_PER_REQUEST = 2000;
const EVENTS_MAX = 20000;

async function request(path: string, init?: RequestInit): Promise<Response> {
  let response: Response;
  try {
    response = await fetch(path, init);
  } catch {
    throw new Error("the collector does not answer");
  }
  if (!response.ok) {
    const text = await response.text();
    let message = text.trim();
    try {
      message = (JSON.parse(text) as { error: string }).error;
    } catch {
      // Plain text is a message too.
    }
    throw new Error(message || `the server answered ${response.status}`);
  }
  return response;
}

async function json<T>(path: string): Promise<T> {
  return (await (await request(path)).json()) as T;
}

export function runPath(runId: string, leaf = ""): string {
  return `/api/runs/${encodeURIComponent(runId)}${leaf}`;
}

export function fetchRuns(): Promise<RunsAnswer> {
  return json("/api/runs");
}

export function fetchRun(runId: string): Promise<RunAnswer> {
  return json(runPath(runId));
}

export async function fetchSeries(runId: string): Promise<SeriesInfo[]> {
  return (await json<{ series: SeriesInfo[] }>(runPath(runId, "/series"))).series;
}

export async function fetchRanks(runId: string): Promise<RankStatus[]> {
  return (await json<{ ranks: RankStatus[] }>(runPath(runId, "/ranks"))).ranks;
}

// The events so far, oldest first, at most EVENTS_MAX. The live stream continues from there and sends
// the rest.
export async function fetchEvents(runId: string): Promise<RunEvent[]> {
  const events: RunEvent[] = [];
  while (events.length < EVENTS_MAX) {
    const after = events[events.length - 1]?.id ?? 0;
    const path = runPath(runId, `/events?after=${after}&limit=${EVENTS_PER_REQUEST}`);
    const page = (await json<{ events: RunEvent[] }>(path)).events;
    events.push(...page);
    if (page.length < EVENTS_PER_REQUEST) break;
  }
  return events;
}

export interface RangeQuery {
  series: number[];
  generations: number[];
  from: number;
  to: number; // exclusive; -1 if the end is open
  buckets: number;
}

export async function fetchRange(
  runId: string, query: RangeQuery, signal?: AbortSignal,
): Promise<RangeEntry[]> {
  const parameters = [
    `series=${compressIds(query.series)}`,
    `generation=${compressIds(query.generations)}`,
    `from=${query.from}`,
    ...(query.to >= 0 ? [`to=${query.to}`] : []),
    `buckets=${query.buckets}`,
  ];
  const init = signal ? { signal } : {};
  const response = await request(runPath(runId, `/range?${parameters.join("&")}`), init);
  return decodeRanges(await response.arrayBuffer());
}

// If `step` is -1, the server answers for the newest step that all senders have.
export function fetchStep(runId: string, metric: string, generation: number, step: number): Promise<StepAnswer> {
  const parameters = `metric=${encodeURIComponent(metric)}&generation=${generation}&step=${step}`;
  return json(runPath(runId, `/step?${parameters}`));
}

export async function postCommand(
  runId: string, kind: CommandKind, argument: number, reason: string, token: string,
): Promise<number> {
  const headers: Record<string, string> = {
    "Content-Type": "application/json",
    "X-Muster-Operator": "dashboard",
  };
  if (token) headers["Authorization"] = `Bearer ${token}`;
  const response = await request(runPath(runId, "/commands"), {
    method: "POST",
    headers,
    body: JSON.stringify({ kind, argument, reason }),
  });
  return ((await response.json()) as { id: number }).id;
}

// [3, 4, 5, 9] -> "3-5,9", so that the ids of four thousand heads fit into one address.
export function compressIds(ids: number[]): string {
  const sorted = [...new Set(ids)].sort((a, b) => a - b);
  const parts: string[] = [];
  for (let i = 0; i < sorted.length; ++i) {
    const first = sorted[i];
    while (sorted[i + 1] === (sorted[i] ?? 0) + 1) ++i;
    parts.push(first === sorted[i] ? `${first}` : `${first}-${sorted[i]}`);
  }
  return parts.join(",");
}

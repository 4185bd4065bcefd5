// SPDX-License-Identifier: Apache-2.0
// Colours: twelve for curves (the first eight distinguishable with any colour vision), one ramp for heatmaps, one per kind
// of event. Values for both themes live in styles/theme.css.

import { color } from "../ui/theme";

const CURVE_COUNT = 12;

export function curveColor(index: number): string {
  return color(`--curve-${index % CURVE_COUNT}`);
}

export function withAlpha(hex: string, alpha: number): string {
  const value = parseInt(hex.slice(1), 16);
  return `rgba(${(value >> 16) & 255}, ${(value >> 8) & 255}, ${value & 255}, ${alpha})`;
}

// Viridis: even in lightness, readable in grey and with any colour vision.
const RAMP = [
  [68, 1, 84], [72, 40, 120], [62, 73, 137], [49, 104, 142], [38, 130, 142], [31, 158, 137],
  [53, 183, 121], [110, 206, 88], [181, 222, 43], [253, 231, 37],
] as const;

const LOOKUP = Array.from({ length: 256 }, (_, i) => rampAt(i / 255));

function rampAt(t: number): [number, number, number] {
  const place = Math.min(Math.max(t, 0), 1) * (RAMP.length - 1);
  const low = Math.min(Math.floor(place), RAMP.length - 2);
  const a = RAMP[low] ?? RAMP[0];
  const b = RAMP[low + 1] ?? RAMP[0];
  const f = place - low;
  return [0, 1, 2].map((c) => Math.round((a[c] ?? 0) * (1 - f) + (b[c] ?? 0) * f)) as
    [number, number, number];
}

// t in [0, 1].
export function rampColor(t: number): [number, number, number] {
  return LOOKUP[Math.round(Math.min(Math.max(t, 0), 1) * 255)] ?? [0, 0, 0];
}

export function rampCss(): string {
  return `linear-gradient(90deg, ${RAMP.map((c) => `rgb(${c.join(" ")})`).join(", ")})`;
}

// Blue below, orange above, the grey of the surface at t = 0.5: distinguishable with any colour vision.
export function divergingColor(t: number): [number, number, number] {
  const even = hexColor(color("--map-even"));
  const far = hexColor(color(t < 0.5 ? "--map-under" : "--map-over"));
  const f = Math.min(1, Math.abs(t - 0.5) * 2);
  return [0, 1, 2].map((c) => Math.round((even[c] ?? 0) * (1 - f) + (far[c] ?? 0) * f)) as [number, number, number];
}

export function hexColor(hex: string): [number, number, number] {
  const value = parseInt(hex.slice(1), 16);
  return [(value >> 16) & 255, (value >> 8) & 255, value & 255];
}

const EVENT_COLORS: Record<string, string> = {
  checkpoint_committed: "--event-good",
  run_started: "--event-good",
  run_resumed: "--event-restart",
  run_ended: "--event-action",
  restart: "--event-restart",
  rank_lost: "--event-bad",
  checkpoint_failed: "--event-bad",
  divergence: "--event-bad",
  step_skipped: "--event-skip",
  qk_clip: "--event-skip",
  gradient_clipped: "--event-quiet",
  finding: "--event-finding",
  action: "--event-action",
  command_applied: "--event-action",
  command_rejected: "--event-bad",
  attention_mode_changed: "--event-mode",
  attention_schedule_changed: "--event-mode",
};

export function eventVariable(kind: string): string {
  return EVENT_COLORS[kind] ?? "--event-quiet";
}

// SPDX-License-Identifier: Apache-2.0
// Numbers, times and names as text for people.

const DASH = "–";

// Four significant digits; an exponent only where a plain number would not fit.
export function number(value: number): string {
  if (Number.isNaN(value)) return "NaN";
  if (!Number.isFinite(value)) return value > 0 ? "+Inf" : "−Inf";
  const size = Math.abs(value);
  if (size === 0) return "0";
  if (size >= 1e6 || size < 1e-3) {
    return minus(value.toExponential(2).replace(/\.?0+e/, "e").replace("e+", "e"));
  }
  if (size >= 1000) return minus(grouped(Math.round(value)));
  return minus(String(Number(value.toPrecision(4))));
}

// A tick label: shorter, and the same everywhere on an axis.
export function tick(value: number): string {
  const size = Math.abs(value);
  if (size >= 1e3 && size < 1e9) return minus(si(value));
  if (size !== 0 && (size < 1e-4 || size >= 1e9)) return minus(value.toExponential(0).replace("e+", "e"));
  return minus(String(Number(value.toPrecision(6))));
}

export function si(value: number): string {
  for (const [limit, suffix] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]] as const) {
    if (Math.abs(value) >= limit) {
      return `${Number((value / limit).toPrecision(3))}${suffix}`;
    }
  }
  return String(Number(value.toPrecision(3)));
}

export function grouped(value: number): string {
  return String(Math.trunc(value)).replace(/\B(?=(\d{3})+(?!\d))/g, "\u202f");
}

export function step(value: number): string {
  return value < 0 ? DASH : grouped(value);
}

export function seconds(value: number): string {
  if (!Number.isFinite(value)) return DASH;
  if (value === 0) return "0 s";
  const size = Math.abs(value);
  const [scaled, unit] = size < 1e-3 ? [value * 1e6, "µs"] : size < 1 ? [value * 1e3, "ms"] : [value, "s"];
  return `${minus(String(Number(scaled.toPrecision(3))))}\u00a0${unit}`;
}

// "3 s", "4 min", "2 h 10 min", "5 d".
export function age(milliseconds: number): string {
  const total = Math.max(0, Math.round(milliseconds / 1000));
  if (total < 60) return `${total} s`;
  if (total < 3600) return `${Math.floor(total / 60)} min`;
  const hours = Math.floor(total / 3600);
  if (hours >= 48) return `${Math.floor(hours / 24)} d`;
  const minutes = Math.floor((total % 3600) / 60);
  return minutes > 0 ? `${hours} h ${minutes} min` : `${hours} h`;
}

export function clockTime(unixMs: number): string {
  return unixMs > 0 ? new Date(unixMs).toLocaleTimeString([], { hour12: false }) : DASH;
}

export function dateTime(unixMs: number): string {
  if (unixMs <= 0) return DASH;
  const date = new Date(unixMs);
  const day = date.toLocaleDateString([], { day: "numeric", month: "short" });
  return `${day}, ${date.toLocaleTimeString([], { hour12: false, hour: "2-digit", minute: "2-digit" })}`;
}

// "checkpoint_committed" -> "checkpoint committed"
export function words(name: string): string {
  return name.replaceAll("_", " ");
}

function minus(text: string): string {
  return text.replaceAll("-", "−");
}

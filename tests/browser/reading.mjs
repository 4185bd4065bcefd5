// SPDX-License-Identifier: Apache-2.0
// Reads the numbers that the page writes for people (dashboard/web/src/ui/format.ts).

const GROUP = "\u202f"; // between thousands
const MINUS = "\u2212";

const plain = (text) => text.replaceAll(GROUP, "").replaceAll(MINUS, "-");

// The number that `text` shows, with or without k, M or G; NaN when it shows anything else.
export function numberIn(text) {
  const [, value, suffix] = plain(text).trim().match(/^([+-]?(?:\d+(?:\.\d+)?(?:e-?\d+)?|Inf))([kMG]?)$/) ?? [];
  if (value === undefined) return NaN;
  return Number(value.replace("Inf", "Infinity")) * { "": 1, k: 1e3, M: 1e6, G: 1e9 }[suffix];
}

// The step that a sentence names, as in "applied 4/4 at step 1 148"; NaN when it names none.
export function stepIn(text) {
  const [, value] = plain(text).match(/\bstep (\d+)/) ?? [];
  return value === undefined ? NaN : Number(value);
}

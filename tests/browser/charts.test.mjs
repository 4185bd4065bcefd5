// SPDX-License-Identifier: Apache-2.0
// Tests of the charts: data, spikes, NaN, events, both histories, zoom, live growth.
import assert from "node:assert/strict";
import { test } from "node:test";

import { connected, eventually, fact, pixels } from "./fixture.mjs";
import { numberIn } from "./reading.mjs";
import { DESK, reading, watching } from "./stage.mjs";

const CHARTS = ["loss", "grad_norm", "learning_rate", "tokens", "step_time", "clip", "statistic1"];
const HEATMAPS = ["attention", "maxvio", "expert_load"];

// Puts the pointer over a step of a chart.
async function hoverStep(page, chart, step) {
  const over = page.locator(`[data-chart="${chart}"] .u-over`);
  const { width } = await over.boundingBox();
  const [from, to] = [await fact(page, chart, "from"), await fact(page, chart, "to")];
  await over.hover({ position: { x: ((step - from) / (to - from)) * width, y: 80 } });
}

// Counts the pixels of (nearly) this colour in a rectangle of a chart's canvas, which is given in
// fractions of the canvas: [left, top, right, bottom].
async function countPixels(page, chart, rgb, box) {
  const data = await pixels(page.locator(`[data-chart="${chart}"] canvas`).first(), box);
  let count = 0;
  for (let i = 0; i < data.length; i += 4) {
    const near = rgb.every((value, c) => Math.abs(data[i + c] - value) < 40);
    if (near && data[i + 3] > 60) count++;
  }
  return count;
}

const BLUE = [90, 169, 255]; // the first curve, dark theme
const RED = [255, 107, 107]; // the mark of a value that is not finite

test("every chart and heatmap of a run has data", reading(async ({ page, problems }) => {
  for (const chart of [...CHARTS, ...HEATMAPS]) {
    await eventually(() => fact(page, chart, "points"), (n) => n > 100, `points of ${chart}`);
  }
  assert.ok(await countPixels(page, "grad_norm", BLUE, [0, 0, 1, 1]) > 300, "the curve is drawn");
  assert.equal(await fact(page, "attention", "rows"), 16);
  assert.deepEqual(problems, []);
}));

test("a spike of one step in 100,000 is drawn", watching("long-haul", DESK, async ({ page }) => {
  await eventually(() => fact(page, "loss", "width"), (width) => width >= 64, "steps per bucket");
  assert.ok(await fact(page, "loss", "y-max") > 7, "the axis reaches the spike");
  // Step 54,321 of 100,000, where only the spike reaches the upper half.
  const column = [0.53, 0.1, 0.59, 0.45];
  assert.ok(await countPixels(page, "grad_norm", BLUE, column) > 20, "the spike's pixels");
  assert.equal(await countPixels(page, "grad_norm", BLUE, [0.65, 0.1, 0.71, 0.45]), 0);
}));

test("zooming to the spike shows its exact value", watching("long-haul&from=54200&to=54400", DESK, async ({ page }) => {
  await eventually(() => fact(page, "loss", "width"), (width) => width === 1, "steps per bucket");
  const top = await fact(page, "grad_norm", "y-max");
  assert.ok(top > 7, `the spike is still there: ${top}`);
}));

test("NaN is a mark, not a gap", reading(async ({ page }) => {
  assert.equal(await fact(page, "loss", "nonfinite"), 1);
  assert.match(await page.locator('[data-chart="loss"] .badge').innerText(), /1 not finite/);
  assert.ok(await countPixels(page, "loss", RED, [0.4, 0, 0.55, 0.2]) > 10, "the cross is drawn");
}));

test("events are marked on every chart and heatmap, and the filter applies to all", reading(async ({ page }) => {
  const counts = {};
  for (const chart of [...CHARTS, ...HEATMAPS]) {
    counts[chart] = await eventually(() => fact(page, chart, "marks"), (n) => n >= 8, `marks on ${chart}`);
  }
  await page.locator('[data-kind="checkpoint_committed"]').click();
  for (const chart of ["loss", "attention"]) {
    await eventually(() => fact(page, chart, "marks"), (n) => n <= counts[chart] - 3, `marks on ${chart}`);
  }
  await page.locator('[data-kind="checkpoint_committed"]').click();
  for (const chart of ["loss", "attention"]) {
    await eventually(() => fact(page, chart, "marks"), (n) => n === counts[chart], `all marks on ${chart}`);
  }
}));

test("touching a mark shows the reason and the inputs of the decision, on that chart only", reading(async ({ page }) => {
  await hoverStep(page, "grad_norm", 420);
  const tooltip = page.locator('[data-chart="grad_norm"] .tooltip');
  await eventually(() => tooltip.innerText(), (text) => text.includes("no rank applied the step"), "tooltip");
  assert.match(await tooltip.innerText(), /nonfinite count 3/);
  assert.equal(await page.locator(".tooltip:visible").count(), 1);
}));

test("the other charts' legends follow the cursor", reading(async ({ page }) => {
  const legend = page.locator('[data-chart="learning_rate"] .legend-item b');
  const rate = async () => numberIn(await legend.innerText());
  await hoverStep(page, "loss", 15);
  await eventually(rate, (value) => value < 6e-4, "the rate while it warms up");
  await hoverStep(page, "loss", 60);
  await eventually(rate, (value) => value > 18e-4, "the rate after that");
}));

test("a step that was done twice shows both values", reading(async ({ page }) => {
  await hoverStep(page, "loss", 730);
  const tooltip = page.locator('[data-chart="loss"] .tooltip');
  await eventually(() => tooltip.innerText(), (text) => /loss, launch 1/.test(text), "the replaced value");
  const [kept, replaced] = (await tooltip.locator(".tooltip-row b").allInnerTexts()).map(numberIn);
  assert.ok(kept > 0 && replaced > 0 && kept !== replaced, `${kept} and ${replaced}`);
}));

test("a heatmap shows both values of a step that was done twice", reading(async ({ page, fixture }) => {
  const map = page.locator('[data-chart="attention"]');
  await map.scrollIntoViewIfNeeded();
  await eventually(() => fact(page, "attention", "points"), (n) => n > 0, "cells");
  const { width } = await map.locator("canvas").boundingBox();
  const plot = width - 56 - 12; // geometry.ts
  await map.locator("canvas").hover({ position: { x: 56 + (730 / fixture.lastStep) * plot, y: 60 } });
  await eventually(() => map.locator(".tooltip").innerText(), (text) => /launch 1/.test(text), "both values");
}));

test("a restart keeps both histories", reading(async ({ page }) => {
  assert.equal(await page.locator('[data-chart="loss"]').getAttribute("data-generations"), "1,2");
  const replaced = await fact(page, "loss", "replaced");
  assert.ok(replaced > 50, "steps 700 to 760 of the first launch");
  await page.locator("#toggle-replaced").click();
  await eventually(() => fact(page, "loss", "replaced"), (n) => n === 0, "replaced steps are hidden");
  assert.equal(await page.locator('[data-chart="loss"]').getAttribute("data-generations"), "1,2");
  await page.locator("#toggle-replaced").click();
  await eventually(() => fact(page, "loss", "replaced"), (n) => n === replaced, "and shown again");
}));

test("drag zooms all charts and asks the server again, double-click goes back", reading(async ({ page, ranges, fixture }) => {
  const before = ranges.length;
  const box = await page.locator('[data-chart="loss"] .u-over').boundingBox();
  await page.mouse.move(box.x + box.width * 0.3, box.y + 60);
  await page.mouse.down();
  await page.mouse.move(box.x + box.width * 0.4, box.y + 60, { steps: 5 });
  await page.mouse.up();
  const span = () => Promise.all(["from", "to"].map((name) => fact(page, "tokens", name)));
  const [from, to] = await eventually(span, ([a, b]) => b - a < 120, "the other charts' range");
  assert.ok(from > 200 && to < 450, `zoomed to ${from}..${to}`);
  const asked = () => ranges.slice(before).filter((one) => one.from > 200 && one.to < 460);
  await eventually(asked, (narrow) => narrow.length > 0, "a request for the narrower range");
  assert.match(page.url(), /from=\d+&to=\d+/);

  await page.reload();
  await eventually(span, ([a, b]) => a === from && b === to, "the range after a reload");
  await page.locator('[data-chart="loss"] .u-over').dblclick({ position: { x: 100, y: 60 } });
  await eventually(span, ([a, b]) => a === 0 && b >= fixture.lastStep, "the whole range");
}));

test("dragging a heatmap zooms too", reading(async ({ page, fixture }) => {
  await eventually(() => fact(page, "attention", "points"), (n) => n > 0, "cells");
  const box = await page.locator('[data-chart="attention"] canvas').boundingBox();
  await page.mouse.move(box.x + box.width * 0.5, box.y + 60);
  await page.mouse.down();
  await page.mouse.move(box.x + box.width * 0.7, box.y + 60, { steps: 5 });
  await page.mouse.up();
  await eventually(() => fact(page, "loss", "to"), (to) => to < 700, "the charts' range");
  await page.keyboard.press("0");
  await eventually(() => fact(page, "loss", "to"), (to) => to >= fixture.lastStep, "the whole range");
}));

test("the cursor is shared by all charts", reading(async ({ page }) => {
  const over = page.locator('[data-chart="loss"] .u-over');
  const { width } = await over.boundingBox();
  await over.hover({ position: { x: width / 2, y: 60 } });
  const line = page.locator('[data-chart="learning_rate"] .u-cursor-x');
  await eventually(() => line.boundingBox(), (box) => box !== null && box.x > 0, "the other cursor");
  const ours = await page.locator('[data-chart="loss"] .u-cursor-x').boundingBox();
  const other = await line.boundingBox();
  const offset = async (chart) => (await page.locator(`[data-chart="${chart}"] .u-over`).boundingBox()).x;
  const difference = ours.x - (await offset("loss")) - (other.x - (await offset("learning_rate")));
  assert.ok(Math.abs(difference) < 1.5, `cursors are ${difference} px apart`);
}));

test("new steps arrive by themselves and only they are fetched", watching("night-shift", DESK, async ({ page, ranges, problems, fixture }) => {
  await connected(page);
  const [points, to] = [await fact(page, "loss", "points"), await fact(page, "loss", "to")];
  const before = ranges.length;
  await fixture.tell("advance 7");
  await eventually(() => fact(page, "loss", "to"), (now) => now === to + 7, "the last step");
  await eventually(() => fact(page, "loss", "points"), (now) => now === points + 14, "points");
  const step = () => page.locator('[data-figure="Step"]').innerText();
  await eventually(step, (text) => numberIn(text) === to + 7, "the step in the header");
  const tails = ranges.slice(before);
  assert.ok(tails.length > 0 && tails.every((one) => Number(one.from) > to - 40), JSON.stringify(tails));
  assert.deepEqual(problems, []);
}));

test("a new event appears in the list and on the charts", reading(async ({ page, fixture }) => {
  await connected(page);
  await fixture.tell("event divergence 333 parameters of rank 2 differ");
  await eventually(
    () => page.locator("#events li").first().innerText(), (text) => text.includes("rank 2 differ"), "list");
  await hoverStep(page, "tokens", 333);
  const tooltip = page.locator('[data-chart="tokens"] .tooltip');
  await eventually(() => tooltip.innerText(), (text) => text.includes("rank 2 differ"), "tooltip");
}));

test("a paused page stands still until it is told to go on", reading(async ({ page, fixture }) => {
  await connected(page);
  await page.keyboard.press("p");
  const to = await fact(page, "loss", "to");
  await fixture.tell("advance 3");
  const step = () => page.locator('[data-figure="Step"]').innerText(); // the header stays live
  await eventually(step, (text) => numberIn(text) === to + 3, "the step in the header");
  await page.keyboard.press("b"); // A redraw for any reason keeps the range.
  await eventually(() => page.locator("#toggle-band").getAttribute("aria-pressed"), (on) => on === "false", "band");
  assert.equal(await fact(page, "loss", "to"), to);
  await page.keyboard.press("p");
  await eventually(() => fact(page, "loss", "to"), (now) => now === to + 3, "the last step");
  await page.keyboard.press("b");
  await eventually(() => page.locator("#toggle-band").getAttribute("aria-pressed"), (on) => on === "true", "band");
}));

test("a logarithmic scale survives NaN and a reload", watching("night-shift&log=loss", DESK, async ({ page }) => {
  assert.ok(await fact(page, "loss", "y-min") > 0);
  assert.ok(await fact(page, "loss", "points") > 900);
}));

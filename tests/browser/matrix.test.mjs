// SPDX-License-Identifier: Apache-2.0
// Tests of attention modes and experts: the strip, the curves, and the matrices of one step.
import assert from "node:assert/strict";
import { test } from "node:test";

import { connected, eventually, fact, pixels } from "./fixture.mjs";
import { numberIn } from "./reading.mjs";
import { reading, TALL, watching } from "./stage.mjs";

const MATRICES = ["load_matrix", "wait_matrix"];

const panel = (page, id) => page.locator(`[data-chart="${id}"]`);

async function filledMatrices(page) {
  await eventually(() => fact(page, "load_matrix", "points"), (n) => n === 32, "cells of the load");
  await eventually(() => fact(page, "wait_matrix", "points"), (n) => n === 16, "cells of the waits");
}

async function followNewest(page, fixture) {
  await panel(page, "wait_matrix").getByText("Newest").click();
  for (const id of MATRICES) {
    await eventually(() => fact(page, id, "step"), (step) => step === fixture.lastStep, id);
  }
}

// The colour of a canvas's pixel, in the page's units.
async function pixelAt(canvas, x, y) {
  const { width, height } = await canvas.boundingBox();
  return (await pixels(canvas, [x / width, y / height, x / width, y / height])).slice(0, 4);
}

// Moves the pointer to a cell and returns the text of its box.
async function pointAt(page, id, row, column) {
  const canvas = panel(page, id).locator("canvas");
  const { width } = await canvas.boundingBox();
  const [rows, columns] = [await fact(page, id, "rows"), await fact(page, id, "columns")];
  const heights = Math.min(30, Math.max(15, 120 / rows)); // matrix_plot.ts
  const x = 64 + ((column + 0.5) / columns) * (width - 64 - 96);
  await canvas.hover({ position: { x, y: 18 + (row + 0.5) * heights } });
  const box = panel(page, id).locator(".tooltip");
  await eventually(() => box.isVisible(), (visible) => visible, "the box");
  return box.innerText();
}

test("both matrices show the newest step, with legend and units", reading(async ({ page, problems, fixture }) => {
  await filledMatrices(page);
  for (const id of MATRICES) assert.equal(await fact(page, id, "step"), fixture.lastStep, id);
  assert.match(await panel(page, "load_matrix").innerText(), /tokens over the layer's mean[\s\S]*2× the mean/);
  assert.match(await panel(page, "wait_matrix").innerText(), /0 s[\s\S]*\d\sms/);
  assert.deepEqual(problems, []);
}));

test("a cell says its exact numbers under the pointer", reading(async ({ page, fixture }) => {
  const url = `${fixture.url}/api/runs/night-shift/step?metric=train_moe_expert_tokens&step=${fixture.lastStep}`;
  const answer = await (await fetch(url)).json();
  const of = (layer) => answer.value.filter((_, i) => answer.layer[i] === layer);
  const row = of(2);
  const mean = row.reduce((a, b) => a + b) / row.length;
  const text = await pointAt(page, "load_matrix", 2, 5);
  assert.match(text, /layer 2 · expert 5/);
  assert.ok(text.includes(`${Number((row[5] / mean).toPrecision(4))}×`), `${text} has ${row[5] / mean}`);
  assert.ok(text.includes(`${Number((Math.max(...row) / mean - 1).toPrecision(4))}`), `${text}: maxvio`);
  const waits = await pointAt(page, "wait_matrix", 1, 2);
  assert.match(waits, /rank 1 for EP rank 2\s+3\.\d+\sms/);
  assert.match(waits, /all for EP rank 2\s+(9|10)[.\d]*\sms/);
}));

test("cells are read with the keyboard alone", reading(async ({ page }) => {
  const box = panel(page, "load_matrix").locator(".tooltip");
  await panel(page, "load_matrix").locator("canvas").focus();
  const range = page.locator("#range");
  const before = await range.innerText();
  for (const key of ["ArrowDown", "ArrowRight", "ArrowRight"]) await page.keyboard.press(key);
  await eventually(() => box.innerText(), (text) => /layer 1 · expert 2/.test(text), "the cell");
  await page.keyboard.press("End");
  await eventually(() => box.innerText(), (text) => /layer 1 · expert 7/.test(text), "the last cell");
  await page.keyboard.press("ArrowRight");
  assert.match(await box.innerText(), /layer 1 · expert 7/, "the edge holds");
  assert.equal(await range.innerText(), before, "the arrow keys of the page did nothing");
  await page.keyboard.press("Escape");
  await eventually(() => box.isVisible(), (visible) => !visible, "no box");
}));

test("matrices follow the run", reading(async ({ page, problems, fixture }) => {
  await connected(page);
  await filledMatrices(page);
  const step = await fact(page, "wait_matrix", "step");
  await fixture.tell("advance 3");
  for (const id of MATRICES) await eventually(() => fact(page, id, "step"), (now) => now === step + 3, id);
  assert.deepEqual(problems, []);
}));

test("a paused page keeps its matrices", reading(async ({ page, fixture }) => {
  await connected(page);
  await filledMatrices(page);
  const step = await fact(page, "load_matrix", "step");
  await page.keyboard.press("p");
  await fixture.tell("advance 2");
  const shown = () => page.locator('[data-figure="Step"]').innerText();
  await eventually(shown, (text) => numberIn(text) >= step + 2, "the step in the header");
  await page.keyboard.press("b");
  assert.equal(await fact(page, "load_matrix", "step"), step);
  await page.keyboard.press("p");
  await eventually(() => fact(page, "load_matrix", "step"), (now) => now >= step + 2, "the newest step");
  await page.keyboard.press("b");
}));

test("the slider goes to a step in both matrices, and the address keeps it", reading(async ({ page, steps, fixture }) => {
  await filledMatrices(page);
  const slider = panel(page, "load_matrix").locator("input[type=range]");
  await slider.fill("650");
  for (const id of MATRICES) await eventually(() => fact(page, id, "step"), (step) => step === 650, id);
  assert.equal(steps.at(-1).generation, "1");
  await slider.focus();
  await page.keyboard.press("ArrowRight");
  for (const id of MATRICES) await eventually(() => fact(page, id, "step"), (step) => step === 651, id);
  await eventually(() => page.url(), (url) => url.includes("c.step=651"), "the address");
  await page.reload();
  for (const id of MATRICES) await eventually(() => fact(page, id, "step"), (step) => step === 651, id);
  await fixture.tell("advance 1");
  await followNewest(page, fixture);
  assert.ok(!page.url().includes("c.step"), page.url());
}));

test("of a step that was done twice the newer launch is shown", watching("night-shift&c.step=730", TALL, async ({ page, steps }) => {
  await filledMatrices(page);
  assert.equal(await fact(page, "load_matrix", "step"), 730);
  assert.equal(await fact(page, "load_matrix", "generation"), 2);
  assert.ok(steps.every((asked) => asked.generation === "2"), JSON.stringify(steps));
}));

test("a moving slider asks once at a time and ends where it rests", reading(async ({ page, steps, fixture }) => {
  await filledMatrices(page);
  const slider = panel(page, "load_matrix").locator("input[type=range]");
  const before = steps.length;
  await slider.evaluate((input) => {
    for (let step = 100; step <= 500; ++step) {
      input.value = String(step);
      input.dispatchEvent(new Event("input"));
    }
  });
  await eventually(() => fact(page, "load_matrix", "step"), (step) => step === 500, "the last place");
  await eventually(() => page.url(), (url) => url.includes("c.step=500"), "the address");
  const asked = steps.slice(before).filter((one) => one.metric === "train_moe_expert_tokens");
  assert.ok(asked.length <= 4, `${asked.length} requests for 401 places`);
  await followNewest(page, fixture);
}));

test("a run without experts says what would publish them", watching("long-haul", TALL, async ({ page, problems, steps }) => {
  const text = (id) => panel(page, id).innerText();
  await eventually(() => text("load_matrix"), (t) => /train_moe_expert_tokens/.test(t), "load");
  assert.match(await text("wait_matrix"), /train_ep_wait_seconds[\s\S]*record_ep/);
  for (const id of MATRICES) {
    assert.equal(await panel(page, id).locator("canvas").isVisible(), false);
    assert.equal(await panel(page, id).locator("input").isVisible(), false);
  }
  assert.deepEqual(steps, [], "nothing is asked for that is not there");
  assert.deepEqual(problems, []);
}));

test("the strip shows which layers choose blocks, in colour, in words, and at the pointer", reading(async ({ page }) => {
  const strip = panel(page, "attention_mode");
  await eventually(() => fact(page, "attention_mode", "points"), (n) => n > 1000, "cells");
  await eventually(() => strip.innerText(), (text) => /layers 0–2 moba:128,8 · layer 3 full/.test(text), "now");
  const canvas = strip.locator("canvas");
  const { width } = await canvas.boundingBox();
  const last = await fact(page, "attention_mode", "to");
  const at = async (step, row) => {
    await canvas.hover({ position: { x: 56 + (step / last) * (width - 68), y: 14 + (row + 0.5) * 14 } });
    return strip.locator(".tooltip").innerText();
  };
  assert.match(await at(200, 1), /layer 1\s+full/);
  assert.match(await at(450, 1), /layer 1\s+moba:512,3/);
  assert.match(await at(650, 1), /layer 1\s+moba:128,8/);
  assert.match(await at(650, 3), /layer 3\s+full/);
  const pixel = async (share, y) => (await pixelAt(canvas, 56 + share * (width - 68), y)).slice(0, 3);
  const colors = [await pixel(0.2, 21), await pixel(0.5, 21), await pixel(0.5, 63)];
  assert.deepEqual(colors[0], colors[2], "full before the switch and in the last layer");
  assert.notDeepEqual(colors[0], colors[1]);
}));

test("a switch of modes is marked on the charts, with its reason", reading(async ({ page }) => {
  const over = page.locator('[data-chart="grad_norm"] .u-over');
  const { width } = await over.boundingBox();
  const last = await fact(page, "grad_norm", "to");
  await over.hover({ position: { x: (300 / last) * width, y: 80 } });
  const tooltip = page.locator('[data-chart="grad_norm"] .tooltip');
  await eventually(() => tooltip.innerText(), (text) => /goes from full to moba:512,3/.test(text), "tooltip");
}));

test("menus name the metrics of attention and experts and say what they are", reading(async ({ page }) => {
  const curves = panel(page, "attention_curve");
  await eventually(() => fact(page, "attention_curve", "points"), (n) => n > 3000, "points");
  assert.match(await curves.innerText(), /Share of \(KV head, block\) pairs/);
  const rows = await fact(page, "attention", "rows");
  const [curve, cells] = await Promise.all([curves, panel(page, "attention")].map((one) => one.locator("select").inputValue()));
  await curves.locator("select").selectOption("train_moba_sink_share");
  await eventually(() => curves.innerText(), (text) => /Share of block 0/.test(text), "the line");
  await eventually(() => fact(page, "attention_curve", "points"), (n) => n > 1500 && n < 2500, "of three layers");
  assert.equal(await fact(page, "attention_curve", "nonfinite"), 0, "full layers have none to report");
  const map = panel(page, "attention");
  await map.locator("select").selectOption("train_moba_block_share");
  await eventually(() => fact(page, "attention", "rows"), (n) => n === 24, "rows of the three layers that choose");
  assert.equal(await fact(page, "attention", "nonfinite"), 0);
  assert.match(await map.innerText(), /first part on top/);
  const options = await panel(page, "expert_curve").locator("option").allInnerTexts();
  assert.deepEqual(options, ["rank imbalance ρ", "padding"], "only what the run has");
  assert.match(await panel(page, "expert_time").innerText(), /rank 3/);
  await curves.locator("select").selectOption(curve);
  await map.locator("select").selectOption(cells);
  await eventually(() => fact(page, "attention", "rows"), (n) => n === rows, "the rows from before");
}));

for (const scheme of ["dark", "light"]) {
  test(`over and under the mean look different in ${scheme}, with any colour vision`, reading(async ({ page, fixture }) => {
    await page.emulateMedia({ colorScheme: scheme });
    // Step 5: expert 1 has well over the mean, expert 0 under it (synthetic_run.cpp).
    await panel(page, "load_matrix").locator("input[type=range]").fill("5");
    for (const id of MATRICES) await eventually(() => fact(page, id, "step"), (step) => step === 5, id);
    assert.equal(await page.locator("html").getAttribute("data-theme"), scheme);
    await page.evaluate(() => new Promise((resolve) => requestAnimationFrame(() => requestAnimationFrame(resolve))));
    const canvas = panel(page, "load_matrix").locator("canvas");
    const cell = ((await canvas.boundingBox()).width - 64 - 96) / 8;
    const [under, over] = [await pixelAt(canvas, 64 + 3, 22), await pixelAt(canvas, 64 + cell + 3, 22)];
    assert.ok(under[2] > under[0] + 15, `under is blue: ${under}`);
    assert.ok(over[0] > over[2] + 40, `over is orange: ${over}`);
    await page.emulateMedia({ colorScheme: "dark" });
    await followNewest(page, fixture);
  }));
}

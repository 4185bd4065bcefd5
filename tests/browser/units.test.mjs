// SPDX-License-Identifier: Apache-2.0
// Tests of the page's calculations without a browser: modules independent of the DOM, built and imported.
import assert from "node:assert/strict";
import { test } from "node:test";
import { fileURLToPath } from "node:url";

import { numberIn, stepIn } from "./reading.mjs";

const WEB = fileURLToPath(new URL("../../dashboard/web", import.meta.url));

async function load(module) {
  const { buildSync } = await import(`${WEB}/node_modules/esbuild/lib/main.js`);
  const { outputFiles } = buildSync({
    entryPoints: [`${WEB}/src/${module}`], bundle: true, format: "esm", write: false, target: "es2022" });
  return import(`data:text/javascript;base64,${Buffer.from(outputFiles[0].contents).toString("base64")}`);
}

const matrix = await load("data/matrix.ts");
const modes = await load("data/attention_modes.ts");
const format = await load("ui/format.ts");

// Layers 0 and 2, experts 0 to 2; the values in any order.
function answer(values) {
  return {
    metric: "m", unit: "tokens", generation: 1, step: 5, step_first: 0, step_last: 9,
    rank: values.map(() => -1), layer: values.map((one) => one[0]), index: values.map((one) => one[1]),
    group: values.map(() => ""), value: values.map((one) => one[2]) };
}

const LOADS = answer([[2, 0, 0], [2, 1, 0], [2, 2, 0], [0, 2, 9], [0, 0, 1], [0, 1, 2]]);

test("a matrix has its rows and columns in order, whatever the order of the answer", () => {
  const made = matrix.matrixOf(LOADS, "layer");
  assert.deepEqual(made.rows, [0, 2]);
  assert.deepEqual(made.columns, [0, 1, 2]);
  assert.deepEqual([...made.values], [1, 2, 9, 0, 0, 0]);
  assert.equal(matrix.filled(made), 6);
});

test("what is missing or not reported is a hole, what is infinite is marked", () => {
  const made = matrix.matrixOf(answer([[0, 0, 4], [0, 1, null], [0, 2, "NaN"], [0, 3, "Infinity"]]), "layer");
  assert.deepEqual([...made.values], [4, NaN, NaN, NaN]);
  assert.deepEqual([...made.broken], [0, 0, 0, 1]);
  assert.equal(matrix.filled(made), 1);
});

test("loads are shares of their row's mean, and maxvio is the largest share less 1", () => {
  const made = matrix.matrixOf(LOADS, "layer");
  assert.deepEqual([...matrix.overRowMean(made).values], [0.25, 0.5, 2.25, NaN, NaN, NaN]);
  assert.equal(matrix.maxvio(made, 0), 1.25);
  assert.ok(Number.isNaN(matrix.maxvio(made, 1)), "nothing was routed: no imbalance to state");
});

test("rows and columns are summed over what is there", () => {
  const made = matrix.matrixOf(answer([[0, 0, 1], [0, 1, 2], [1, 0, 4], [1, 1, null]]), "layer");
  assert.equal(matrix.rowSum(made, 1), 4);
  assert.equal(matrix.columnSum(made, 0), 5);
  assert.equal(matrix.columnSum(made, 1), 2);
});

test("an answer without series is a matrix without cells", () => {
  const made = matrix.matrixOf(answer([]), "rank");
  assert.equal(made.rows.length, 0);
  assert.equal(matrix.filled(made), 0);
});

const LAUNCHES = [
  { generation: 1, step_first: 0, step_last: 760 }, { generation: 2, step_first: 700, step_last: 919 }];

test("a step that two launches did belongs to the newer one", () => {
  assert.equal(matrix.generationAt(LAUNCHES, 650), 1);
  assert.equal(matrix.generationAt(LAUNCHES, 730), 2);
  assert.equal(matrix.generationAt(LAUNCHES, 5000), -1);
});

function change(generation, step, from, to, layer = "0") {
  return { kind: "attention_mode_changed", generation, step, labels: { layer, from, to } };
}

const RUN = {
  generations: LAUNCHES,
  events: [
    change(1, 300, "full", "moba:512,3"), change(1, 600, "moba:512,3", "moba:128,8"),
    change(1, 730, "moba:128,8", "moba:64,16"), change(1, 600, "full", "moba:7,7", "1")] };

test("the last change before a step names the blocks, the first one after it what it ended", () => {
  const text = (step, generation = 1) => modes.modeText(RUN, 0, generation, step, 1);
  assert.equal(text(299), "blocks", "the change of step 300 says that it was full: no name for blocks");
  assert.equal(text(300), "moba:512,3");
  assert.equal(text(599), "moba:512,3");
  assert.equal(text(600), "moba:128,8");
  assert.equal(modes.modeText({ generations: LAUNCHES, events: RUN.events.slice(1, 2) }, 0, 1, 10, 1), "moba:512,3");
});

test("samples decide between full and blocks, whatever events say", () => {
  assert.equal(modes.modeText(RUN, 0, 1, 650, 0), "full");
  assert.equal(modes.modeText({ generations: [], events: [] }, 0, 1, 650, 1), "blocks");
});

test("a later launch keeps the changes up to its first step and none after it", () => {
  assert.equal(modes.modeText(RUN, 0, 2, 750, 1), "moba:128,8");
  assert.equal(modes.modeText(RUN, 0, 1, 750, 1), "moba:64,16");
});

test("neighbouring layers of one mode are named together", () => {
  const of = (...texts) => modes.summarise(texts.map((text, layer) => ({ layer, text })));
  assert.equal(of("moba:512,3", "moba:512,3", "full"), "layers 0–1 moba:512,3 · layer 2 full");
  assert.equal(of("full"), "layer 0 full");
  assert.equal(of(), "");
});

test("a step is read back from a sentence, however many digits it has", () => {
  for (const step of [0, 7, 999, 1148, 54321, 1234567]) {
    assert.equal(stepIn(`applied 4/4 at step ${format.step(step)}`), step);
    assert.equal(stepIn(`checkpoint of step ${step} is on disk`), step, "reasons do not group digits");
  }
  assert.ok(Number.isNaN(stepIn("applied")), "no step");
  assert.ok(Number.isNaN(stepIn(`step ${format.step(-1)}`)), "no step yet");
});

test("a number is read back as the page shows it, whatever its size", () => {
  for (const value of [0, 1.25, 999, 1148, 54321, 1234567, 1.5e9, 0.000912, -3.5, -0.00002, Infinity, -Infinity]) {
    const shown = numberIn(format.number(value));
    assert.ok(shown === value || Math.abs(shown / value - 1) < 5e-3, `${value}: "${format.number(value)}" is ${shown}`);
  }
  for (const step of [0, 999, 1148, 1234567]) assert.equal(numberIn(format.step(step)), step);
  assert.equal(numberIn(format.si(26400)), 26400);
  assert.ok(Number.isNaN(numberIn("not finite")));
  assert.ok(Number.isNaN(numberIn(format.step(-1))));
});

// SPDX-License-Identifier: Apache-2.0
// A real job steered and watched from a real browser: collector, launcher, four ranks, the page.
import assert from "node:assert/strict";
import { readdir } from "node:fs/promises";
import { join } from "node:path";
import { test } from "node:test";

import { connected, eventually, fact, launchBrowser, openPage } from "./fixture.mjs";
import { Collector, Job, verifyCheckpoint, withFolder } from "./job.mjs";
import { numberIn, stepIn } from "./reading.mjs";

const RUN = "night-watch";

const figure = (page, name) => page.locator(`[data-figure="${name}"]`).innerText();
const step = async (page) => numberIn(await figure(page, "Step"));
const stepReaches = (page, target) => eventually(() => step(page), (now) => now >= target, `step ${target}`);

// The newest event of a kind, as the list shows it.
const eventText = (page, kind) => page.locator("#events li", { hasText: kind }).first().innerText();

async function openFromList(page, url) {
  await page.goto(url);
  const row = page.locator(`[data-run="${RUN}"]`);
  await row.waitFor();
  await row.click();
  await connected(page);
}

async function give(page, command) {
  await page.locator(`#commands [data-command="${command}"]`).click();
  await page.locator('dialog input[name="reason"]').fill(`${command} from a browser`);
  await page.locator("#confirm-command").click();
  const newest = page.locator("#commands li").first();
  await eventually(() => newest.innerText(), (text) => text.includes(`${command} from a browser`), "the command");
  await eventually(() => newest.getAttribute("data-state"), (state) => state === "applied", `${command} applied`);
  const [applied, ranks] = (await newest.innerText()).match(/applied (\d)\/4 at step .*/);
  assert.ok(Number(ranks) >= 1);
  return stepIn(applied);
}

async function seeItTrain(page) {
  await eventually(() => figure(page, "Ranks alive"), (text) => text === "4 / 4", "four ranks");
  await eventually(() => fact(page, "loss", "points"), (n) => n > 0, "points of the loss");
  const before = await step(page);
  await stepReaches(page, before + 10);
  const drawn = () => fact(page, "loss", "to");
  await eventually(drawn, (to) => to >= before + 10, "the loss chart follows");
  const loss = numberIn(await figure(page, "Loss"));
  assert.ok(loss > 0 && loss < 6, `the header shows a loss: ${loss}`);
}

// Returns the step of the checkpoint, which is the number of updates in it.
async function saveOnDemand(page, folder) {
  const at = (await give(page, "checkpoint_now")) + 1;
  await page.locator('[data-kind="checkpoint_committed"]').waitFor();
  const committed = (await eventText(page, "checkpoint committed")).match(/checkpoint of step .* is on disk/)?.[0];
  assert.equal(stepIn(committed ?? ""), at);
  await eventually(() => figure(page, "Last checkpoint"), (text) => numberIn(text) === at, "the last checkpoint");
  const root = join(folder, "checkpoints", RUN);
  const saved = (await readdir(root)).filter((name) => name.startsWith("step-"));
  assert.deepEqual(saved, [`step-${at}.gen-1`]);
  await verifyCheckpoint(join(root, saved[0]));
  return at;
}

async function surviveALostRank(page, job, checkpoint) {
  await stepReaches(page, checkpoint + 10);
  process.kill((await job.pids())[2], "SIGKILL");
  await eventually(() => figure(page, "Generation"), (text) => text === "2", "generation 2");
  await eventually(() => figure(page, "Ranks alive"), (text) => text === "4 / 4", "four ranks again");
  await eventually(() => figure(page, "Restarts"), (text) => text === "1", "one restart");
  await page.locator('[data-kind="rank_lost"]').waitFor();
  await page.locator('[data-kind="run_resumed"]').waitFor();
  const resumed = (await eventText(page, "run resumed")).match(/checkpoint of step .*/)?.[0];
  assert.equal(stepIn(resumed ?? ""), checkpoint);
  assert.match(await eventText(page, "rank lost"), /killed by signal 9/);

  const launches = () => page.locator('[data-chart="loss"]').getAttribute("data-generations");
  await eventually(launches, (text) => text === "1,2", "both launches in the loss chart");
  // A bucket of the chart holds several steps once the job is past a few thousand.
  const again = async () => (await fact(page, "loss", "replaced")) * (await fact(page, "loss", "width"));
  await eventually(again, (steps) => steps >= 10, "the steps that were done again");
  // Rows that have no statistics to report yet (the first of a launch) are not shown as broken.
  await page.locator('[data-chart="statistic1"]').scrollIntoViewIfNeeded();
  await eventually(() => fact(page, "statistic1", "points"), (n) => n > 0, "statistics of the optimizer");
  assert.equal(await fact(page, "statistic1", "nonfinite"), 0);
  const before = await step(page);
  await stepReaches(page, before + 10);
}

async function stopIt(page, job) {
  const at = await give(page, "stop");
  assert.equal(await job.ended(), 93, job.output);
  const status = page.locator("#run-status");
  await eventually(() => status.getAttribute("data-health"), (health) => health === "ended", "the end");
  await eventually(() => status.innerText(), (text) => text === "stopped", "how it ended");
  await eventually(() => step(page), (last) => last === at, "the last step");
  assert.ok(await page.locator('#commands [data-command="stop"]').isDisabled(), "nothing is left to steer");
  const paces = () => page.locator("[data-rank]").evaluateAll((tiles) => tiles.map((tile) => tile.dataset.pace));
  await eventually(paces, (all) => all.join() === "ended,ended,ended,ended", "ranks that ended");
}

test("a job is watched, saved, survives kill -9, and is stopped, from the browser", () => withFolder(async (folder) => {
  const started = [];
  const own = (child) => { started.unshift(child); return child; };
  let browser;
  try {
    const collector = own(await Collector.start(folder));
    const job = own(await Job.start(folder, collector, RUN));
    browser = await launchBrowser();
    const { page, problems } = await openPage(browser);
    await openFromList(page, collector.url);
    await seeItTrain(page);
    const checkpoint = await saveOnDemand(page, folder);
    await surviveALostRank(page, job, checkpoint);
    await stopIt(page, job);
    assert.deepEqual(problems, []);
  } finally {
    for (const child of started) await child.end();
    await browser?.close();
  }
}));

// What is around the charts: runs, ranks, commands, themes, sizes, and what must not happen.
import assert from "node:assert/strict";
import { createServer } from "node:http";
import { after, before, test } from "node:test";

import { connected, eventually, fact, Fixture, launchBrowser, openPage } from "./fixture.mjs";
import { numberIn, stepIn } from "./reading.mjs";

let fixture;
let browser;

before(async () => {
  [fixture, browser] = await Promise.all([Fixture.start(), launchBrowser()]);
});

after(async () => {
  await browser?.close();
  assert.equal(await fixture?.stop(), 0);
});

async function openRun(options = {}) {
  const opened = await openPage(browser, options);
  await opened.page.goto(`${fixture.url}/?run=night-shift`);
  await eventually(() => fact(opened.page, "loss", "points"), (n) => n > 0, "points of the loss");
  return opened;
}

test("the list of runs leads to a run, without an error on the way", async () => {
  const { page, context, problems } = await openPage(browser);
  await page.goto(fixture.url);
  await page.locator("[data-run]").first().waitFor();
  const runs = await page.locator("[data-run]").evaluateAll((rows) => rows.map((row) => row.dataset.run));
  assert.deepEqual(runs.sort(), ["long-haul", "night-shift", "not-yet-started"]);
  await page.locator('[data-run="night-shift"]').click();
  await eventually(() => fact(page, "loss", "points"), (n) => n > 0, "points of the loss");
  assert.equal(await page.title(), "night-shift · muster");
  assert.deepEqual(problems, []);
  await context.close();
});

test("a run without samples says that it waits", async () => {
  const { page, context, problems } = await openPage(browser);
  await page.goto(`${fixture.url}/?run=not-yet-started`);
  await eventually(() => page.locator("#run-status").innerText(), (t) => t.includes("waiting"), "status");
  assert.match(await page.locator(".charts").innerText(), /No samples yet/);
  assert.deepEqual(problems, []);
  await context.close();
});

test("an unknown run is named in the error", async () => {
  const { page, context } = await openPage(browser);
  await page.goto(`${fixture.url}/?run=nobody`);
  await eventually(() => page.locator("main").innerText(), (t) => t.includes('"nobody"'), "message");
  await context.close();
});

test("the header shows step, loss, ranks, generation and restarts", async () => {
  const { page, context } = await openRun();
  const figure = (name) => page.locator(`[data-figure="${name}"]`).innerText();
  await eventually(() => figure("Ranks alive"), (text) => text === "4 / 4", "ranks");
  assert.equal(await figure("Generation"), "2");
  assert.equal(await figure("Restarts"), "1");
  assert.equal(numberIn(await figure("Last checkpoint")), 900);
  assert.ok(numberIn(await figure("Loss")) > 1);
  await eventually(() => figure("Tokens/s"), (text) => /^2\d(\.\d)?k$/.test(text), "tokens per second");
  await context.close();
});

test("checkpoint now asks first, is sent once, and its state is followed", async () => {
  const { page, context, problems } = await openRun();
  await page.locator('#commands [data-command="checkpoint_now"]').click();
  const dialog = page.locator("dialog");
  assert.match(await dialog.innerText(), /night-shift/);
  assert.match(await dialog.innerText(), /All ranks save a checkpoint at the same step/);
  await dialog.getByText("Cancel").click();
  assert.deepEqual(fixture.commands, []);

  await page.locator('#commands [data-command="checkpoint_now"]').click();
  await dialog.locator('input[name="reason"]').fill("before the weekend");
  await page.locator("#confirm-command").click();
  const row = page.locator("#commands li").first();
  await eventually(() => row.getAttribute("data-state"), (state) => state === "issued", "state");
  assert.deepEqual(fixture.commands, ["night-shift checkpoint_now 0 before the weekend"]);
  await fixture.tell("report armed");
  await eventually(() => row.innerText(), (text) => text.includes("armed 4/4"), "armed");
  await fixture.tell("report applied");
  await eventually(() => row.innerText(), (text) => text.includes("applied 4/4") && stepIn(text) > 0, "applied");
  assert.deepEqual(problems, []);
  await context.close();
});

test("stop can be given with the keyboard alone", async () => {
  const { page, context } = await openRun();
  const before = fixture.commands.length;
  await page.locator('#commands [data-command="stop"]').focus();
  await page.keyboard.press("Enter");
  await page.locator("dialog").waitFor();
  assert.equal(await page.evaluate(() => document.activeElement.textContent), "Cancel");
  await page.keyboard.press("Tab");
  await page.keyboard.press("Enter");
  await eventually(async () => fixture.commands.length, (n) => n === before + 1, "commands");
  assert.match(fixture.commands.at(-1), /^night-shift stop 0 Stop from the dashboard/);
  await context.close();
});

test("a foreign page cannot give a command", async () => {
  const foreign = createServer((_, response) => response.end("<title>foreign</title>"));
  await new Promise((resolve) => foreign.listen(0, "127.0.0.1", resolve));
  const { page, context } = await openPage(browser);
  await page.goto(`http://127.0.0.1:${foreign.address().port}/`);
  const before = fixture.commands.length;
  const url = `${fixture.url}/api/runs/night-shift/commands`;
  const outcome = await page.evaluate(async (target) => {
    const body = JSON.stringify({ kind: "stop", argument: 0, reason: "x" });
    const simple = await fetch(target, { method: "POST", mode: "no-cors", body }).then((r) => r.type);
    const custom = await fetch(target, {
      method: "POST", body,
      headers: { "Content-Type": "application/json", "X-Muster-Operator": "evil" },
    }).then(() => "sent", () => "blocked");
    return { simple, custom };
  }, url);
  assert.deepEqual(outcome, { simple: "opaque", custom: "blocked" });
  assert.equal(fixture.commands.length, before);
  await context.close();
  foreign.close();
});

test("a lost rank is shown as lost and a slow one as late", async () => {
  const { page, context } = await openRun();
  const pace = (rank) => page.locator(`[data-rank="${rank}"]`).getAttribute("data-pace");
  await eventually(() => pace(2), (value) => value === "late", "the pace of rank 2");
  await fixture.tell("lose 3");
  await eventually(() => pace(3), (value) => value === "lost", "the pace of rank 3");
  const alive = page.locator('[data-figure="Ranks alive"]');
  await eventually(() => alive.innerText(), (text) => text === "3 / 4", "ranks alive");
  await context.close();
});

test("the theme follows the system and the reader's choice", async () => {
  const background = (page) => page.evaluate(() => getComputedStyle(document.body).backgroundColor);
  const dark = await openRun({ colorScheme: "dark" });
  const light = await openRun({ colorScheme: "light" });
  assert.equal(await background(dark.page), "rgb(13, 16, 21)");
  assert.equal(await background(light.page), "rgb(244, 246, 249)");
  await light.page.locator("#theme-toggle").click();
  assert.equal(await background(light.page), "rgb(13, 16, 21)");
  await light.page.reload();
  assert.equal(await background(light.page), "rgb(13, 16, 21)");
  await dark.context.close();
  await light.context.close();
});

for (const width of [390, 320]) {
  test(`nothing sticks out at ${width} pixels`, async () => {
    const { page, context } = await openRun({ viewport: { width, height: 800 }, isMobile: true });
    for (const path of ["/?run=night-shift", "/"]) {
      await page.goto(fixture.url + path);
      await page.locator("[data-chart], [data-run]").first().waitFor();
      const size = await page.evaluate(() => [document.documentElement.scrollWidth, innerWidth]);
      assert.ok(size[0] <= width && size[1] <= width, `${path}: ${size}`);
    }
    await context.close();
  });
}

test("a collector that goes away is said so, and the page comes back with it", async () => {
  const { page, context } = await openRun();
  await connected(page);
  await fixture.tell("down");
  const status = page.locator("#run-status");
  await eventually(() => status.innerText(), (text) => text.includes("not reachable"), "status");
  await fixture.tell("up");
  await connected(page);
  const to = await fact(page, "loss", "to");
  await fixture.tell("advance 2");
  await eventually(() => fact(page, "loss", "to"), (now) => now === to + 2, "the last step");
  await context.close();
});

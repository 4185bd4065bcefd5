// SPDX-License-Identifier: Apache-2.0
// Tests of everything around the charts: runs, ranks, commands, themes, sizes, and errors.
import assert from "node:assert/strict";
import { createServer } from "node:http";
import { test } from "node:test";

import { connected, eventually, fact, openPage } from "./fixture.mjs";
import { numberIn, stepIn } from "./reading.mjs";
import { reading, stage, visiting, watching, DESK } from "./stage.mjs";

test("the list of runs leads to a run, without an error on the way", visiting("/", DESK, async ({ page, problems }) => {
  await page.locator("[data-run]").first().waitFor();
  const runs = await page.locator("[data-run]").evaluateAll((rows) => rows.map((row) => row.dataset.run));
  assert.deepEqual(runs.sort(), ["long-haul", "night-shift", "not-yet-started"]);
  await page.locator('[data-run="night-shift"]').click();
  await eventually(() => fact(page, "loss", "points"), (n) => n > 0, "points of the loss");
  assert.equal(await page.title(), "night-shift · muster");
  assert.deepEqual(problems, []);
}));

test("a run without samples says that it waits", visiting("/?run=not-yet-started", DESK, async ({ page, problems }) => {
  await eventually(() => page.locator("#run-status").innerText(), (t) => t.includes("waiting"), "status");
  assert.match(await page.locator(".charts").innerText(), /No samples yet/);
  assert.deepEqual(problems, []);
}));

test("an unknown run is named in the error", visiting("/?run=nobody", DESK, async ({ page }) => {
  await eventually(() => page.locator("main").innerText(), (t) => t.includes('"nobody"'), "message");
}));

test("the header shows step, loss, ranks, generation and restarts", reading(async ({ page }) => {
  const figure = (name) => page.locator(`[data-figure="${name}"]`).innerText();
  await eventually(() => figure("Ranks alive"), (text) => text === "4 / 4", "ranks");
  assert.equal(await figure("Generation"), "2");
  assert.equal(await figure("Restarts"), "1");
  assert.equal(numberIn(await figure("Last checkpoint")), 900);
  assert.ok(numberIn(await figure("Loss")) > 1);
  await eventually(() => figure("Tokens/s"), (text) => /^2\d(\.\d)?k$/.test(text), "tokens per second");
}));

test("checkpoint now asks first, is sent once, and its state is followed", reading(async ({ page, problems, fixture }) => {
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
  await eventually(() => row.innerText(), (text) => text.includes("applied 4/4") && stepIn(text) === fixture.lastStep + 1, "applied");
  assert.deepEqual(problems, []);
}));

test("stop can be given with the keyboard alone", reading(async ({ page, fixture }) => {
  const before = fixture.commands.length;
  await page.locator('#commands [data-command="stop"]').focus();
  await page.keyboard.press("Enter");
  await page.locator("dialog").waitFor();
  assert.equal(await page.evaluate(() => document.activeElement.textContent), "Cancel");
  await page.keyboard.press("Tab");
  await page.keyboard.press("Enter");
  await eventually(async () => fixture.commands.length, (n) => n === before + 1, "commands");
  assert.match(fixture.commands.at(-1), /^night-shift stop 0 Stop from the dashboard/);
}));

test("a foreign page cannot give a command", async () => {
  const { fixture, browser } = await stage();
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

test("a lost rank is shown as lost and a slow one as late", reading(async ({ page, fixture }) => {
  const pace = (rank) => page.locator(`[data-rank="${rank}"]`).getAttribute("data-pace");
  await eventually(() => pace(2), (value) => value === "late", "the pace of rank 2");
  await fixture.tell("lose 3");
  await eventually(() => pace(3), (value) => value === "lost", "the pace of rank 3");
  const alive = page.locator('[data-figure="Ranks alive"]');
  await eventually(() => alive.innerText(), (text) => text === "3 / 4", "ranks alive");
}));

test("the theme follows the system and the reader's choice", watching("night-shift", DESK, async ({ page }) => {
  const background = () => page.evaluate(() => getComputedStyle(document.body).backgroundColor);
  assert.equal(await background(), "rgb(13, 16, 21)");
  await page.emulateMedia({ colorScheme: "light" });
  await page.reload();
  assert.equal(await background(), "rgb(244, 246, 249)");
  await page.locator("#theme-toggle").click();
  assert.equal(await background(), "rgb(13, 16, 21)");
  await page.reload();
  assert.equal(await background(), "rgb(13, 16, 21)");
}));

for (const width of [390, 320]) {
  test(`nothing sticks out at ${width} pixels`, visiting(
    "/?run=night-shift", { viewport: { width, height: 800 }, isMobile: true }, async ({ page, fixture }) => {
      await eventually(() => fact(page, "loss", "points"), (n) => n > 0, "points of the loss");
      for (const path of ["/?run=night-shift", "/"]) {
        if (path === "/") await page.goto(fixture.url);
        await page.locator("[data-chart], [data-run]").first().waitFor();
        const size = await page.evaluate(() => [document.documentElement.scrollWidth, innerWidth]);
        assert.ok(size[0] <= width && size[1] <= width, `${path}: ${size}`);
      }
    }));
}

test("a collector that goes away is said so, and the page comes back with it", watching("night-shift", DESK, async ({ page, fixture }) => {
  await connected(page);
  await fixture.tell("down");
  const status = page.locator("#run-status");
  await eventually(() => status.innerText(), (text) => text.includes("not reachable"), "status");
  await fixture.tell("up");
  await connected(page);
  const to = await fact(page, "loss", "to");
  await fixture.tell("advance 2");
  await eventually(() => fact(page, "loss", "to"), (now) => now === to + 2, "the last step");
}));

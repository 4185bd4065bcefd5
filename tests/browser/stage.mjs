// SPDX-License-Identifier: Apache-2.0
// Shared by the dashboard's tests, in one process or file by file: one dashboard_fixture,
// one browser, and one page of the run night-shift. They start with the first test that needs them.
import assert from "node:assert/strict";
import { after } from "node:test";

import { eventually, fact, Fixture, launchBrowser, openPage } from "./fixture.mjs";

// The page fetches and draws only panels on the screen.
export const DESK = { viewport: { width: 1440, height: 1000 } };
export const TALL = { viewport: { width: 1440, height: 4200 } }; // every chart, heatmap and matrix

let starting = null;
let reader = null;

export async function stage() {
  starting ??= { fixture: Fixture.start(), browser: launchBrowser() };
  return { fixture: await starting.fixture, browser: await starting.browser };
}

after(async () => {
  if (!starting) return;
  const [browser, fixture] = await Promise.allSettled([starting.browser, starting.fixture]);
  await browser.value?.close();
  assert.equal(await fixture.value?.stop(), 0);
});

// A page at a path of the dashboard. `ranges` and `steps` are the queries it sends.
async function openAt(path, options) {
  const { fixture, browser } = await stage();
  const opened = { fixture, ranges: [], steps: [], ...await openPage(browser, options) };
  opened.page.on("request", (request) => {
    const { pathname, searchParams } = new URL(request.url());
    if (pathname.endsWith("/range")) opened.ranges.push(Object.fromEntries(searchParams));
    if (pathname.endsWith("/step")) opened.steps.push(Object.fromEntries(searchParams));
  });
  await opened.page.goto(fixture.url + path);
  return opened;
}

async function openRun(query, options) {
  const opened = await openAt(`/?run=${query}`, options);
  await eventually(() => fact(opened.page, "loss", "points"), (n) => n > 0, "points of the loss");
  return opened;
}

async function closing(opened, body) {
  try {
    await body(opened);
  } finally {
    await opened.context.close();
  }
}

// A test on a new page, and one on a new page of a run that has samples.
export const visiting = (path, options, body) => async () => closing(await openAt(path, options), body);
export const watching = (query, options, body) => async () => closing(await openRun(query, options), body);

// A test on the tall page of night-shift that all such tests share. It leaves the view as it found
// it. After a failure the next test gets a new page.
export const reading = (body) => async () => {
  reader ??= await openRun("night-shift", TALL);
  try {
    await body(reader);
    assert.deepEqual(reader.problems, []);
    await reader.page.mouse.move(0, 0);
  } catch (error) {
    const { context } = reader;
    reader = null;
    await context.close();
    throw error;
  }
};

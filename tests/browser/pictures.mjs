// SPDX-License-Identifier: Apache-2.0
// Writes the pictures of docs/images from a real run, best while a `muster demo` is near its end:
//   node pictures.mjs URL RUN FOLDER
import { connected, eventually, fact, launchBrowser, openPage } from "./fixture.mjs";

const [url, run, folder] = process.argv.slice(2);
const WIDE = { width: 1600, height: 1100 };
const PHONE = { viewport: { width: 390, height: 844 }, deviceScaleFactor: 2, isMobile: true };
const browser = await launchBrowser();

async function picture(name, options, prepare = async () => {}) {
  const { page, context } = await openPage(browser, options);
  await page.goto(`${url}/?run=${encodeURIComponent(run)}`);
  await connected(page);
  await eventually(() => fact(page, "loss", "points"), (n) => n > 0, "points of the loss");
  await page.evaluate(() => document.fonts.ready);
  const ranks = () => page.locator("[data-rank]").count();
  await eventually(ranks, (n) => n > 0, "ranks");
  await prepare(page);
  await page.screenshot({ path: `${folder}/${name}.png` });
  await context.close();
}

async function scrollToMaps(page) {
  await page.locator('[data-chart="statistic1"]').evaluate((element) => element.scrollIntoView());
  await page.mouse.wheel(0, -110);
  for (const chart of ["statistic1", "statistic2", "attention"]) {
    await eventually(() => fact(page, chart, "points"), (n) => n > 0, chart);
  }
}

// Needs a run with attention modes and expert parallelism; otherwise the existing picture stays.
async function scrollToExperts(page) {
  await page.locator('[data-chart="attention_mode"]').evaluate((element) => element.scrollIntoView());
  await page.mouse.wheel(0, -150);
  for (const chart of ["attention_mode", "attention_curve", "load_matrix", "wait_matrix"]) {
    await eventually(() => fact(page, chart, "points"), (n) => n > 0, chart);
  }
}

async function hasModes() {
  const answer = await fetch(`${url}/api/runs/${encodeURIComponent(run)}/step?metric=train_attn_mode`);
  return (await answer.json()).value.length > 0;
}

await picture("dashboard", { viewport: WIDE });
await picture("dashboard-maps", { viewport: WIDE }, scrollToMaps);
await picture("dashboard-phone", PHONE);
await picture("dashboard-light", { viewport: WIDE, colorScheme: "light" });
if (await hasModes()) await picture("dashboard-experts", { viewport: { ...WIDE, height: 1400 } }, scrollToExperts);
await browser.close();

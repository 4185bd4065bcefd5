// Writes the pictures of docs/images: node pictures.mjs FOLDER, with MUSTER_FIXTURE set.
import { connected, eventually, fact, Fixture, launchBrowser, openPage } from "./fixture.mjs";

const folder = process.argv[2] ?? ".";
const fixture = await Fixture.start();
const browser = await launchBrowser();

async function picture(name, options, prepare = async () => {}) {
  const { page, context } = await openPage(browser, options);
  await page.goto(`${fixture.url}/?run=night-shift`);
  await connected(page);
  await eventually(() => fact(page, "loss", "points"), (n) => n > 0, "points of the loss");
  await page.evaluate(() => document.fonts.ready);
  await fixture.tell("advance 1"); // a run that is seen to be live
  await prepare(page);
  await page.waitForTimeout(600);
  await page.screenshot({ path: `${folder}/${name}.png` });
  await context.close();
}

async function touchFinding(page) {
  const over = page.locator('[data-chart="loss"] .u-over');
  const { width } = await over.boundingBox();
  await over.hover({ position: { x: (612 / 919) * width, y: 70 } });
}

async function scrollToMaps(page) {
  await page.locator('[data-chart="statistic1"]').evaluate((element) => element.scrollIntoView());
  await page.mouse.wheel(0, -110);
}

async function askCheckpoint(page) {
  await page.locator('#commands [data-command="checkpoint_now"]').click();
  await page.locator('dialog input[name="reason"]').fill("before the weekend");
}

await picture("dashboard", { viewport: { width: 1600, height: 1000 } }, touchFinding);
await picture("dashboard-light", { viewport: { width: 1600, height: 1000 }, colorScheme: "light" });
await picture("dashboard-maps", { viewport: { width: 1600, height: 1000 } }, scrollToMaps);
await picture("dashboard-phone", { viewport: { width: 390, height: 844 }, deviceScaleFactor: 2, isMobile: true });
await picture("dashboard-dialog", { viewport: { width: 1600, height: 1000 }, colorScheme: "light" }, askCheckpoint);
await browser.close();
await fixture.stop();

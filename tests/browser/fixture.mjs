// SPDX-License-Identifier: Apache-2.0
// Starts dashboard_fixture and Chromium for all browser tests.
import { spawn } from "node:child_process";
import { once } from "node:events";
import { createInterface } from "node:readline";

import { chromium } from "playwright-core";

const CHROMIUM_ARGS = [
  "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
  "--disable-background-networking", "--disable-component-update", "--disable-sync",
];
// Generous, so that a busy machine fails no test.
const PATIENCE_MS = 60_000;

// The C++ host: `tell` sends a line and waits for its "ok"; `commands` are those that the page sent.
export class Fixture {
  static async start() {
    const path = process.env.MUSTER_FIXTURE;
    if (!path) throw new Error("MUSTER_FIXTURE must name the dashboard_fixture executable");
    const args = process.env.MUSTER_WEB_ROOT ? [process.env.MUSTER_WEB_ROOT] : [];
    const fixture = new Fixture(spawn(path, args, { stdio: ["pipe", "pipe", "inherit"] }));
    const first = await fixture.nextLine("url ");
    fixture.url = first.slice(4);
    return fixture;
  }

  constructor(process_) {
    this.process = process_;
    this.commands = [];
    this.lastStep = 919; // of night-shift
    this.lines = [];
    this.waiting = null;
    createInterface({ input: process_.stdout }).on("line", (line) => {
      if (line.startsWith("command ")) this.commands.push(line.slice(8));
      else this.lines.push(line);
      this.waiting?.();
    });
  }

  async nextLine(start) {
    const deadline = Date.now() + 60_000;
    while (Date.now() < deadline) {
      const found = this.lines.findIndex((line) => line.startsWith(start));
      if (found >= 0) return this.lines.splice(found, 1)[0];
      await new Promise((resolve) => {
        const timer = setTimeout(resolve, 1000);
        this.waiting = () => { clearTimeout(timer); resolve(); };
      });
    }
    throw new Error(`the fixture did not print "${start}"`);
  }

  async tell(line) {
    this.process.stdin.write(`${line}\n`);
    await this.nextLine("ok");
    if (line.startsWith("advance ")) this.lastStep += Number(line.slice(8));
  }

  async stop() {
    const { exitCode, signalCode } = this.process;
    if (exitCode !== null || signalCode !== null) return exitCode ?? signalCode;
    const ended = once(this.process, "exit");
    this.process.stdin.end();
    const [code] = await ended;
    return code;
  }
}

export function launchBrowser() {
  return chromium.launch({
    executablePath: process.env.MUSTER_CHROMIUM || "/usr/bin/chromium", args: CHROMIUM_ARGS });
}

// A page that records what must not happen: console errors and failed requests. Animations are off, because
// the pulse of the live mark alone would redraw the page 60 times a second.
export async function openPage(browser, options = {}) {
  const context = await browser.newContext({
    viewport: { width: 1440, height: 1000 }, colorScheme: "dark", reducedMotion: "reduce", ...options });
  const page = await context.newPage();
  page.setDefaultTimeout(PATIENCE_MS);
  const problems = [];
  page.on("console", (message) => {
    if (message.type() === "error" || message.type() === "warning") problems.push(message.text());
  });
  page.on("pageerror", (error) => problems.push(error.message));
  page.on("response", (response) => {
    if (response.status() >= 400) problems.push(`${response.status()} ${response.url()}`);
  });
  return { page, context, problems };
}

// A data attribute in which a panel describes its drawing, as a number.
export async function fact(page, chart, name) {
  return Number(await page.locator(`[data-chart="${chart}"]`).getAttribute(`data-${name}`));
}

// The colours of canvas pixels in a rectangle of fractions of the canvas, as [red, green, blue, alpha]
// one after the other. Reads a copy: Chromium warns about a canvas that is read often.
export function pixels(canvas, [left, top, right, bottom]) {
  return canvas.evaluate((element, [left, top, right, bottom]) => {
    const { width, height } = element;
    const copy = new OffscreenCanvas(width, height).getContext("2d", { willReadFrequently: true });
    copy.drawImage(element, 0, 0);
    const [x0, x1] = [left, right].map((f) => Math.round(f * width));
    const [y0, y1] = [top, bottom].map((f) => Math.round(f * height));
    return [...copy.getImageData(x0, y0, Math.max(1, x1 - x0), Math.max(1, y1 - y0)).data];
  }, [left, top, right, bottom]);
}

// Waits for the live stream of a run's page.
export function connected(page) {
  const read = () => page.locator("#run-status").getAttribute("data-connection");
  return eventually(read, (state) => state === "live", "the live stream");
}

// Waits until `accept` returns true for the value of `read`; the error shows the last value.
export async function eventually(read, accept, what, patienceMs = PATIENCE_MS) {
  const deadline = Date.now() + patienceMs;
  let value;
  do {
    value = await read();
    if (accept(value)) return value;
    await new Promise((resolve) => setTimeout(resolve, 50));
  } while (Date.now() < deadline);
  throw new Error(`${what}: still ${JSON.stringify(value)} after ${patienceMs} ms`);
}

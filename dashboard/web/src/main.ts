// SPDX-License-Identifier: Apache-2.0
// Entry point: selects the page by the address.

import "uplot/dist/uPlot.min.css";
import "./styles/theme.css";
import "./styles/layout.css";
import "./styles/components.css";

import { h } from "./ui/dom";
import { RunPage } from "./page/run_page";
import { RunsPage } from "./page/runs_page";
import { showHelp } from "./page/shortcuts";
import { initTheme, themeButton } from "./ui/theme";

function logo(): HTMLElement {
  return h("img", { src: "/favicon.svg", alt: "", width: 24, height: 24 });
}

function topBar(runId: string | null): HTMLElement {
  return h(
    "nav", { class: "top-bar", "aria-label": "muster" },
    h("a", { class: "brand", href: "/" }, logo(), "muster"),
    runId === null ? null : h("a", { class: "crumb", href: "/" }, "Runs"),
    h("span", { class: "spacer" }),
    runId === null ? null : h("button", { class: "icon-button", title: "Keys (?)", "aria-label": "Keys", onclick: showHelp }, "?"),
    themeButton());
}

async function start(): Promise<void> {
  initTheme();
  const runId = new URLSearchParams(location.search).get("run");
  const page = runId === null ? new RunsPage() : new RunPage(runId);
  document.title = runId === null ? "muster" : `${runId} · muster`;
  const app = document.getElementById("app");
  app?.replaceChildren(topBar(runId), page.element);
  try {
    await page.start();
  } catch (error) {
    const message = error instanceof Error ? error.message : String(error);
    page.element.replaceChildren(
      h("div", { class: "empty large" }, h("p", {}, message), h("p", {}, h("a", { href: "/" }, "All runs"))));
  }
}

void start();

// SPDX-License-Identifier: Apache-2.0
// The page of one run: header, charts, and beside them commands, ranks and events.

import { Heatmap } from "../charts/heatmap";
import { RangeCache } from "../data/range_cache";
import { RunModel, type Change } from "../data/run_model";
import { CommandPanel } from "./command_panel";
import { fill, h } from "../ui/dom";
import { EventList } from "./event_list";
import { buildSections } from "./panels";
import { RankGrid } from "./rank_grid";
import { Refresher } from "./refresher";
import { RunHeader } from "./run_header";
import { bindShortcuts } from "./shortcuts";
import { onThemeChange } from "../ui/theme";
import { Toolbar } from "./toolbar";
import { View } from "../data/view";

// On a narrow page the side column is below all charts; these links jump to it.
function jumpBar(): HTMLElement {
  const link = (target: string, text: string) => h("a", { class: "chip", href: `#${target}` }, text);
  return h("nav", { class: "jump-bar", "aria-label": "Parts of the page" },
    link("commands", "Steering"), link("ranks", "Ranks"), link("events", "Events"));
}

const LINE_BUCKETS = 1500;
const MAP_BUCKETS = 512;
const MAP_CELLS = 400_000;

export class RunPage {
  readonly element = h("main", { class: "run-page" });
  private readonly view = new View();
  private readonly model: RunModel;
  private readonly lines: RangeCache;
  private readonly maps: RangeCache;
  private readonly refresher: Refresher;
  private readonly charts = h("div", { class: "charts" });
  private readonly problem = h("p", { class: "problem banner", role: "alert", hidden: true });
  private header!: RunHeader;
  private toolbar!: Toolbar;
  private commands!: CommandPanel;
  private ranks!: RankGrid;
  private events!: EventList;
  private pending = new Set<Change>();
  private built = ""; // the catalog from which the panels were built

  constructor(runId: string) {
    this.model = new RunModel(runId, (changes) => this.follow(changes));
    this.lines = new RangeCache(runId, () => LINE_BUCKETS);
    this.maps = new RangeCache(
      runId, (count) => Math.max(64, Math.min(MAP_BUCKETS, Math.floor(MAP_CELLS / Math.max(1, count)))));
    this.refresher = new Refresher(
      this.model, this.view, (message) => this.showProblem(message), () => this.header.update());
  }

  async start(): Promise<void> {
    await this.model.load();
    this.header = new RunHeader(this.model, () => this.tokensPerSecond());
    this.toolbar = new Toolbar(this.model, this.view);
    this.commands = new CommandPanel(this.model);
    this.ranks = new RankGrid(this.model);
    this.events = new EventList(this.model, this.view);
    fill(this.element, this.header.element, this.problem, jumpBar(), this.toolbar.element,
      h("div", { class: "columns" }, this.charts,
        h("aside", { class: "side" }, this.commands.element, this.ranks.element, this.events.element)));
    this.buildPanels();
    this.bind();
  }

  private bind(): void {
    this.view.onChange((change) => {
      if (change === "cursor") {
        this.refresher.showCursor();
        return;
      }
      this.toolbar.update();
      if (change === "range") this.refresher.reload();
      if (change === "style") {
        this.events.update();
        this.refresher.paint();
      }
      if (change === "pause" && !this.view.paused) this.resume();
    });
    bindShortcuts(this.view, this.model);
    onThemeChange(() => this.refresher.paint());
    window.setInterval(() => {
      this.header.update();
      this.ranks.update();
    }, 1000);
  }

  private buildPanels(): void {
    const context = (cache: RangeCache) => ({ model: this.model, view: this.view, cache });
    const sections = buildSections({
      lines: context(this.lines), maps: context(this.maps), onVisible: () => this.refresher.run() });
    const empty = sections.length === 0 || this.model.run.last_step < 0;
    this.built = empty ? "" : this.model.catalog.signature;
    if (empty) {
      fill(this.charts, h("p", { class: "empty large" }, "No samples yet. Charts appear with the first step."));
    } else {
      fill(this.charts, ...sections.flatMap((section) => [
        h("h2", { class: "section-title" }, section.title),
        h("div", { class: "panels" }, ...section.panels.map((panel) => panel.element))]));
    }
    const panels = sections.flatMap((section) => section.panels);
    const rate = this.model.catalog.one("train_tokens_per_second");
    this.refresher.setGroups([
      { cache: this.lines, panels: panels.filter((panel) => !(panel instanceof Heatmap)), alwaysWanted: () => (rate ? [rate.id] : []) },
      { cache: this.maps, panels: panels.filter((panel) => panel instanceof Heatmap), alwaysWanted: () => [] },
    ]);
  }

  private follow(changes: Set<Change>): void {
    if (!this.header) return;
    if (this.view.paused) {
      changes.forEach((change) => this.pending.add(change));
      return;
    }
    if (changes.has("catalog")) this.followCatalog();
    if (changes.has("events")) this.events.update();
    if (changes.has("ranks") || changes.has("run")) this.ranks.update();
    if (changes.has("commands") || changes.has("events")) this.commands.update();
    this.header.update();
    this.toolbar.update();
    if (changes.has("run")) this.refresher.follow();
    else if (changes.has("events")) this.refresher.paint();
  }

  // A restart adds a generation but mostly no new series, so the settings of existing panels stay.
  private followCatalog(): void {
    if (this.built === this.model.catalog.signature) this.refresher.reload();
    else this.buildPanels();
  }

  private resume(): void {
    const missed = this.pending;
    this.pending = new Set();
    this.follow(missed);
    this.refresher.reload();
  }

  private tokensPerSecond(): number | null {
    const info = this.model.catalog.one("train_tokens_per_second");
    const last = info && this.lines.track(info.id, this.model.run.generation)?.lastBucket;
    return last && last.count > 0 ? last.last : null;
  }

  private showProblem(message: string | null): void {
    this.problem.hidden = message === null;
    this.problem.textContent = message === null ? "" : `Charts are not up to date: ${message}`;
  }
}

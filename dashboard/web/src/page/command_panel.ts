// SPDX-License-Identifier: Apache-2.0
// The operator's buttons and the progress of each command: issued, armed on every rank, applied.

import type { RunModel } from "../data/run_model";
import type { CommandStatus } from "../data/types";
import { askCommand, COMMANDS } from "./command_dialog";
import { fill, h } from "../ui/dom";
import { number, step, words } from "../ui/format";

const SHOWN = 8;
const STAGES = ["issued", "armed", "applied"] as const;

export class CommandPanel {
  readonly element: HTMLElement;
  private readonly buttons: HTMLButtonElement[];
  private readonly list = h("ol", { class: "commands" });

  constructor(private readonly model: RunModel) {
    this.buttons = COMMANDS.map((form) => h(
      "button",
      { class: form.kind === "stop" ? "danger-quiet" : form.kind === "checkpoint_now" ? "primary-quiet" : "quiet",
        "data-command": form.kind, onclick: () => askCommand(model.runId, form, model.access) },
      form.title));
    this.element = h("section", { class: "card", id: "commands", "aria-label": "Steering" },
      h("header", { class: "card-header" }, h("h2", {}, "Steering")),
      h("div", { class: "command-buttons" }, ...this.buttons), this.list);
    this.update();
  }

  update(): void {
    const off = this.model.access === "off";
    const ended = this.model.hasEnded;
    this.buttons.forEach((button, i) => {
      button.disabled = off || ended;
      button.title = off ? "Commands are disabled: this dashboard is read-only"
        : ended ? "The run has ended: no rank can receive a command" : (COMMANDS[i]?.effect ?? "");
    });
    const newest = [...this.model.commands].sort((a, b) => b.id - a.id).slice(0, SHOWN);
    fill(this.list, ...(newest.length > 0
      ? newest.map((command) => this.row(command))
      : [h("li", { class: "empty" }, off ? "Commands are off here." : "No commands yet.")]));
  }

  private row(command: CommandStatus): HTMLElement {
    const failed = command.state === "rejected" || command.state === "expired";
    const reached = STAGES.indexOf(command.state as (typeof STAGES)[number]);
    const stages = STAGES.map((stage, i) => h(
      "span", { class: "stage", "data-reached": !failed && i <= reached }, this.stageText(stage, command)));
    const argument = command.kind === "set_qk_clip_threshold" && typeof command.argument === "number"
      ? ` ${number(command.argument)}` : "";
    return h(
      "li", { "data-id": command.id, "data-state": command.state },
      h("div", { class: "command-head" }, h("b", {}, words(command.kind) + argument),
        h("span", { class: "note" }, `#${command.id} · ${command.issuer}`)),
      command.reason ? h("div", { class: "event-reason" }, command.reason) : null,
      h("div", { class: "stages" }, ...(failed
        ? [h("span", { class: "stage failed" }, `${command.state}${command.state_reason ? `: ${command.state_reason}` : ""}`)]
        : stages)));
  }

  private stageText(stage: (typeof STAGES)[number], command: CommandStatus): string {
    const world = this.model.run.world_size;
    if (stage === "armed") return `armed ${command.ranks_armed}/${world}`;
    if (stage === "applied" && command.applied_step >= 0) {
      return `applied ${command.ranks_applied}/${world} at step ${step(command.applied_step)}`;
    }
    return stage;
  }
}

// SPDX-License-Identifier: Apache-2.0
// The dialog that asks before a command is sent: it names the run and the effect, and asks for a reason.

import { postCommand } from "../data/api";
import type { CommandAccess, CommandKind } from "../data/types";
import { h } from "../ui/dom";

export interface CommandForm {
  kind: CommandKind;
  title: string;
  effect: string;
  confirm: string;
  danger: boolean;
  argument?: { label: string; value: number };
}

export const COMMANDS: CommandForm[] = [
  { kind: "checkpoint_now", title: "Checkpoint now", confirm: "Save a checkpoint", danger: false,
    effect: "All ranks save a checkpoint at the same step, the first at which every rank has the command. Training continues." },
  { kind: "stop", title: "Stop", confirm: "Stop the run", danger: true,
    effect: "All ranks save a checkpoint at one agreed step and end with exit code 0. The launcher does not restart the run." },
  { kind: "skip_step", title: "Skip a step", confirm: "Skip the update", danger: true,
    effect: "All ranks skip the update of the next agreed step. Parameters and optimizer state do not change in that step." },
  { kind: "set_qk_clip_threshold", title: "QK-clip threshold", confirm: "Set the threshold", danger: false,
    effect: "From the next agreed step on, heads whose largest attention logit exceeds the threshold are scaled down. 0 disables the clip.",
    argument: { label: "Threshold τ", value: 100 } },
];

let token = ""; // kept for this page only, never stored

export function askCommand(runId: string, form: CommandForm, access: CommandAccess): void {
  const reason = h("input", { name: "reason", maxlength: 200, autocomplete: "off", placeholder: "why, for the record" });
  const argument = h("input", { name: "argument", type: "number", min: 0, step: "any", value: form.argument?.value ?? 0 });
  const secret = h("input", { name: "token", type: "password", autocomplete: "off", value: token });
  const problem = h("p", { class: "problem", role: "alert", hidden: true });
  const confirm = h("button", { class: form.danger ? "danger" : "primary", type: "submit", id: "confirm-command" }, form.confirm);
  const cancel = h("button", { type: "button", class: "quiet", onclick: () => dialog.close() }, "Cancel");
  const field = (label: string, input: HTMLElement) => h("label", {}, h("span", {}, label), input);
  const body = h("form", { method: "dialog" },
    h("h2", {}, `${form.title}?`),
    h("p", {}, "Run ", h("b", {}, runId)),
    h("p", { class: "effect" }, form.effect),
    form.argument ? field(form.argument.label, argument) : null,
    field("Reason", reason),
    access === "token" ? field("Operator token", secret) : null,
    problem,
    h("div", { class: "dialog-buttons" }, cancel, confirm));
  const dialog = h("dialog", { class: "command-dialog", "data-command": form.kind }, body);
  body.addEventListener("submit", (event) => {
    event.preventDefault();
    token = secret.value;
    confirm.disabled = true;
    const why = reason.value.trim() || `${form.title} from the dashboard`;
    postCommand(runId, form.kind, form.argument ? Number(argument.value) : 0, why, token).then(
      () => dialog.close(),
      (error: Error) => {
        confirm.disabled = false;
        problem.hidden = false;
        problem.textContent = error.message;
      });
  });
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
  cancel.focus();
}

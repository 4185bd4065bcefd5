// SPDX-License-Identifier: Apache-2.0
// Dark and light theme: the system's setting until the reader selects one.

import { h } from "./dom";

type Theme = "dark" | "light";

const KEY = "muster-theme";
const system = window.matchMedia("(prefers-color-scheme: light)");
const listeners: (() => void)[] = [];

function stored(): Theme | null {
  const value = localStorage.getItem(KEY);
  return value === "dark" || value === "light" ? value : null;
}

function current(): Theme {
  return stored() ?? (system.matches ? "light" : "dark");
}

function apply(): void {
  document.documentElement.dataset["theme"] = current();
  for (const listener of listeners) listener();
}

export function initTheme(): void {
  system.addEventListener("change", apply);
  apply();
}

// Canvases do not follow style sheets by themselves.
export function onThemeChange(listener: () => void): void {
  listeners.push(listener);
}

export function toggleTheme(): void {
  localStorage.setItem(KEY, current() === "dark" ? "light" : "dark");
  apply();
}

// The value of a colour variable of the style sheet, such as "--muted".
export function color(name: string): string {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

export function themeButton(): HTMLElement {
  return h(
    "button",
    { class: "icon-button", title: "Dark or light (t)", "aria-label": "Switch between dark and light",
      id: "theme-toggle", onclick: toggleTheme },
    "◐");
}

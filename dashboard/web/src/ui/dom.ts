// SPDX-License-Identifier: Apache-2.0
// Creates and fills elements without a framework.

export type Child = Node | string | null | undefined | false;
type Props = Record<string, string | number | boolean | EventListener | undefined>;

// h("button", {class: "quiet", onclick: save, disabled: true}, "Save"). A property that starts with
// "on" is a listener; true sets an empty attribute; false and undefined set none.
export function h<K extends keyof HTMLElementTagNameMap>(
  tag: K,
  props: Props = {},
  ...children: Child[]
): HTMLElementTagNameMap[K] {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (typeof value === "function") {
      element.addEventListener(name.slice(2), value);
    } else if (value !== false && value !== undefined) {
      element.setAttribute(name, value === true ? "" : String(value));
    }
  }
  fill(element, ...children);
  return element;
}

export function fill(element: Element, ...children: Child[]): void {
  element.replaceChildren(...children.filter((child): child is Node | string => !!child));
}

// Sets the text only when it differs: a live page should not disturb a selection or a reader.
export function setText(element: Element, text: string): void {
  if (element.textContent !== text) {
    element.textContent = text;
  }
}

// SPDX-License-Identifier: Apache-2.0
// The live stream: server-sent events with backoff, resumed after the last event received, closed while
// the page is hidden.

import { runPath } from "./api";
import type { LiveUpdate } from "./types";

export type LiveState = "connecting" | "live" | "lost" | "sleeping";

const RETRY_FIRST_MS = 250;
const RETRY_MAX_MS = 10000;

export class LiveStream {
  private source: EventSource | null = null;
  private timer = 0;
  private retryMs = RETRY_FIRST_MS;

  constructor(
    private readonly runId: string,
    private afterEventId: number,
    private readonly onUpdate: (update: LiveUpdate) => void,
    private readonly onState: (state: LiveState) => void,
  ) {
    document.addEventListener("visibilitychange", () => this.followVisibility());
    this.open();
  }

  private open(): void {
    this.onState("connecting");
    const source = new EventSource(runPath(this.runId, `/live?after=${this.afterEventId}`));
    this.source = source;
    source.onopen = () => {
      this.retryMs = RETRY_FIRST_MS;
      this.onState("live");
    };
    source.addEventListener("update", (message) => {
      this.afterEventId = Number(message.lastEventId) || this.afterEventId;
      this.onUpdate(JSON.parse(message.data as string) as LiveUpdate);
    });
    // The browser retries without backoff and jitter, so this code does it instead.
    source.onerror = () => {
      this.close();
      this.onState("lost");
      this.timer = window.setTimeout(() => this.open(), this.retryMs * (0.5 + Math.random()));
      this.retryMs = Math.min(this.retryMs * 2, RETRY_MAX_MS);
    };
  }

  private close(): void {
    window.clearTimeout(this.timer);
    this.source?.close();
    this.source = null;
  }

  // A browser allows six connections per server: a hidden tab must not hold one.
  private followVisibility(): void {
    if (document.hidden) {
      this.close();
      this.onState("sleeping");
    } else if (!this.source) {
      this.close();
      this.retryMs = RETRY_FIRST_MS;
      this.open();
    }
  }
}

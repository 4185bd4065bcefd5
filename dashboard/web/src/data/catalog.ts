// SPDX-License-Identifier: Apache-2.0
// Finds the series of a run by metric, rank, layer and group.

import type { SeriesInfo } from "./types";

export class Catalog {
  readonly signature: string; // equal for equal series
  private readonly byName = new Map<string, SeriesInfo[]>();

  constructor(series: SeriesInfo[]) {
    this.signature = series.map((info) => info.id).sort((a, b) => a - b).join();
    for (const info of series) {
      const list = this.byName.get(info.name);
      if (list) list.push(info);
      else this.byName.set(info.name, [info]);
    }
    for (const list of this.byName.values()) {
      list.sort((a, b) =>
        a.rank - b.rank || a.layer - b.layer || a.index - b.index || a.group.localeCompare(b.group));
    }
  }

  all(name: string): SeriesInfo[] {
    return this.byName.get(name) ?? [];
  }

  has(name: string): boolean {
    return this.byName.has(name);
  }

  // The series of the whole job, or the one without a group.
  one(name: string): SeriesInfo | undefined {
    const list = this.all(name);
    return list.find((info) => info.group === "" && info.layer < 0 && info.index < 0) ?? list[0];
  }

  // By group, without the total (group "").
  grouped(name: string): SeriesInfo[] {
    return this.all(name).filter((info) => info.group !== "");
  }

  ofRank(name: string, rank: number): SeriesInfo[] {
    return this.all(name).filter((info) => info.rank === rank || info.rank < 0);
  }

  layers(name: string): number[] {
    return [...new Set(this.all(name).map((info) => info.layer))].sort((a, b) => a - b);
  }
}

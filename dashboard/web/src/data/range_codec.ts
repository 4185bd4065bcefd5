// SPDX-License-Identifier: Apache-2.0
// Reads the binary answer of /range; the layout is in dashboard/server/range_codec.h.

export interface RangeEntry {
  seriesId: number;
  generation: number;
  stepBegin: number;
  stepEnd: number;
  bucketSteps: number;
  stepFirst: Float64Array;
  stepLast: Float64Array;
  min: Float32Array;
  max: Float32Array;
  last: Float32Array;
  count: Uint32Array;
  nonfinite: Uint32Array;
}

const MAGIC = 0x474e524d; // "MRNG", little-endian
const VERSION = 1;

export function decodeRanges(bytes: ArrayBuffer): RangeEntry[] {
  const header = new Uint32Array(bytes, 0, 4);
  if (header[0] !== MAGIC || header[1] !== VERSION) {
    throw new Error("the server sent a range of another version; reload the page");
  }
  const entries: RangeEntry[] = [];
  let offset = 16;
  for (let i = 0; i < (header[2] ?? 0); ++i) {
    const scalars = new Float64Array(bytes, offset, 5);
    const n = new Uint32Array(bytes, offset + 40, 1)[0] ?? 0;
    const doubles = offset + 48;
    const floats = doubles + 16 * n;
    entries.push({
      seriesId: scalars[0] ?? 0,
      generation: scalars[1] ?? 0,
      stepBegin: scalars[2] ?? 0,
      stepEnd: scalars[3] ?? 0,
      bucketSteps: Math.max(1, scalars[4] ?? 1),
      stepFirst: new Float64Array(bytes, doubles, n),
      stepLast: new Float64Array(bytes, doubles + 8 * n, n),
      min: new Float32Array(bytes, floats, n),
      max: new Float32Array(bytes, floats + 4 * n, n),
      last: new Float32Array(bytes, floats + 8 * n, n),
      count: new Uint32Array(bytes, floats + 12 * n, n),
      nonfinite: new Uint32Array(bytes, floats + 16 * n, n),
    });
    offset = floats + 20 * n + (n % 2) * 4;
  }
  return entries;
}

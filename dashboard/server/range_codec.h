// SPDX-License-Identifier: Apache-2.0
// Series ranges as bytes for the browser. Binary because JSON has no NaN and costs ten times more.
//
// Little-endian. Steps are float64: exact up to 2^53, and a typed array on the other side.
//   u32 magic 'MRNG' | u32 version 1 | u32 entry_count | u32 0
//   then per entry
//     f64 series_id | f64 generation | f64 step_begin | f64 step_end | f64 bucket_steps
//     u32 bucket_count n | u32 0
//     f64 step_first[n] | f64 step_last[n]
//     f32 min[n] | f32 max[n] | f32 last[n] | u32 count[n] | u32 nonfinite_count[n]
//     u32 0 when n is odd, so that the next entry starts at a multiple of 8
#pragma once

#include <muster/store/query.h>

#include <string>
#include <vector>

namespace muster::dashboard {

[[nodiscard]] std::string encode_ranges(const std::vector<store::SeriesRange>& ranges);

}  // namespace muster::dashboard

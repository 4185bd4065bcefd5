// SPDX-License-Identifier: Apache-2.0
// Numbers of `muster plan ep`, in decimal units like link rates.
#pragma once

#include <muster/common/expected.h>
#include <muster/parallel/experts/plan.h>

#include <cstdint>
#include <string>

namespace muster::cli {

[[nodiscard]] std::string decimal(double value, int digits);
[[nodiscard]] std::string grouped(std::int64_t count);    // "65,536"
[[nodiscard]] std::string decimal_bytes(double bytes);    // "4.23 GB"
[[nodiscard]] std::string short_seconds(double seconds);  // "1.21 ms"
[[nodiscard]] std::string percent(double fraction);       // "18.6 %"

// "450G", "700T", "1.5e12": a positive number with k, M, G, T or P. kInvalidArgument naming
// `flag`.
[[nodiscard]] Expected<double> parse_rate(const std::string& text, const std::string& flag);

// "none", "exact" or "tolerant".
[[nodiscard]] Expected<parallel::EpBalanceMode> parse_balance_mode(const std::string& text);

// "tolerant 0.05, 48 slots, padding 128, speeds 1 0.8".
[[nodiscard]] std::string describe_planner(
    const parallel::EpShape& shape, const parallel::EpBalance& balance);

}  // namespace muster::cli

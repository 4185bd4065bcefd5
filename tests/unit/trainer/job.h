// SPDX-License-Identifier: Apache-2.0
// Runs a whole moe_lm job with ranks as threads, no collector, and a text made up on the spot.
#pragma once

#include "tests/support/scratch_folder.h"
#include "trainer/moe_lm/src/trainer.h"

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

namespace muster::moe_lm {

using test::ScratchFolder;

// Words of a small vocabulary in random order: something to learn, equal on every call.
[[nodiscard]] const std::string& sample_text();

// Two layers, four experts: every part of the model, milliseconds per step.
[[nodiscard]] TrainOptions small_options();

// The result of every rank. `adjust` may change a rank's set-up.
[[nodiscard]] std::vector<Expected<TrainResult>> run_job(
    int ranks, const TrainOptions& options, const std::function<void(TrainSetup&)>& adjust = {});

// Losses of rank 0 of a job whose ranks must all end well.
[[nodiscard]] std::vector<double> losses_of_job(int ranks, const TrainOptions& options);

// Expects that every loss is finite and the last one much smaller than the first.
void expect_learns(const std::vector<double>& losses);

// The dumps of all ranks of a job that must end well, one after the other.
[[nodiscard]] std::string final_bits(
    int ranks, TrainOptions options, const std::function<void(TrainSetup&)>& adjust = {});

// The bytes of a file, or a failed expectation.
[[nodiscard]] std::string bytes_of(const std::filesystem::path& file);

}  // namespace muster::moe_lm

// SPDX-License-Identifier: Apache-2.0
// Options of `muster demo`, and the facts it is judged by.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace muster::demo {

struct DemoOptions {
  std::filesystem::path data;     // text file or folder of *.txt
  std::filesystem::path folder;   // database, checkpoints and logs; must not hold an older demo
  std::filesystem::path trainer;  // the moe_lm program
  std::string http{"127.0.0.1:0"};
  int ranks{4};
  std::int64_t steps{600};
  std::int64_t checkpoint_interval{0};  // 0 selects a twelfth of the steps
  std::uint64_t seed{1};
  // For the trainer: its sequences of 128 bytes have 8 blocks of 16, of which a query sees 3.
  std::string attention{"moba:16,3,last_full=1"};
  bool keep{false};  // leave collector and dashboard up after the summary

  // The faults: a NaN gradient on one rank, later kill -9 of another. By default a fifth and a bit
  // over half of the way.
  int nan_rank{1};
  std::int64_t nan_step{-1};
  int kill_rank{2};
  std::int64_t kill_step{-1};

  // The last ten steps' mean loss must be below this many nats per byte. Uniform guessing is
  // ln 256 = 5.55; a text's single-byte frequencies alone give about 3.1 on English.
  double loss_bound{2.6};
};

// Uniform guessing over 256 byte values, in nats.
inline constexpr double kUniformLoss = 5.545;

struct SkippedStep {
  std::int64_t step{0};
  std::int64_t generation{0};
  std::string reason;
  int ranks{0};  // that reported no update at that step
};

// Attention mode and statistics of one layer in the last step.
struct AttentionFact {
  int layer{0};
  bool in_blocks{false};
  double reach{1};  // share of its key blocks that gradients reached
};

struct RestartFact {
  std::string reason;
  std::string resumed_from;  // checkpoint folder name, empty for a fresh start
  std::int64_t resumed_step{0};
  double seconds{0};  // kill to the first new step
};

// Facts from the database and the launcher after the end of the job.
struct DemoFacts {
  int launcher_exit_code{-1};
  std::string launcher_reason;
  int ranks{0};
  std::int64_t steps{0};  // last step of the newest generation + 1
  double first_loss{0};
  double last_loss{0};
  double tokens_per_second{0};  // median over the steps
  std::vector<SkippedStep> skipped;
  std::vector<RestartFact> restarts;
  std::vector<AttentionFact> attention;  // by layer
  std::int64_t checkpoints_committed{0};
  std::int64_t samples_stored{0};
  std::int64_t frames_dropped{0};
  double seconds{0};
};

}  // namespace muster::demo

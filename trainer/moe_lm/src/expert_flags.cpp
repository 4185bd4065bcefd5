// SPDX-License-Identifier: Apache-2.0
#include "trainer/moe_lm/src/expert_flags.h"

#include "trainer/moe_lm/src/named_flag.h"

namespace muster::moe_lm {

void add_expert_flags(CLI::App& app, ExpertOptions& options) {
  add_named(
      app,
      "--ep",
      options.exchange,
      &parse_expert_exchange,
      "expert parallelism: alltoall (each row to its expert's rank), muster (equal rows on every "
      "rank; busy experts are copied for the step)",
      to_string(options.exchange));
  app.add_option(
         "--ep-tolerance",
         options.tolerance,
         "imbalance that --ep muster tolerates, relative to the mean load")
      ->capture_default_str();
  app.add_option(
      "--ep-trace", options.trace, "record choices and plans for `muster plan ep replay`");
  app.add_option("--skew", options.skew, "draw experts with this maxvio instead of choosing them");
  add_named(
      app,
      "--router",
      options.score,
      &parse_router_score,
      "scores of the router: softmax, sigmoid",
      to_string(options.score));
  app.add_option("--switch-loss", options.switch_loss, "weight of the Switch auxiliary loss")
      ->capture_default_str();
  app.add_option("--sequence-loss", options.sequence_loss, "weight of the sequence-wise loss")
      ->capture_default_str();
  app.add_option("--z-loss", options.z_loss, "weight of the router's z-loss")
      ->capture_default_str();
}

}  // namespace muster::moe_lm

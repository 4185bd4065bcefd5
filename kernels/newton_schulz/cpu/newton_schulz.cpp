// SPDX-License-Identifier: Apache-2.0
// The public calls: what is planned once, and who works on which matrix.
#include "kernels/newton_schulz/cpu/engine.h"

#include <muster/common/check.h>
#include <muster/kernels/newton_schulz.h>

#include <algorithm>
#include <vector>

namespace muster::kernels {

struct NewtonSchulzWorkspace::State {
  std::unique_ptr<ThreadTeam> team{std::make_unique<ThreadTeam>(1)};
  ThreadTeam alone{1};  // for threads that each work on a separate matrix
  std::vector<NewtonSchulzEngine> engines{1};

  // Plans and what they were made for: one takes as long as a small matrix.
  struct Planned {
    std::int64_t rows;
    std::int64_t cols;
    NewtonSchulzForm form;
    NewtonSchulzPlan plan;
  };

  std::vector<Planned> plans;

  const NewtonSchulzPlan& plan_for(
      std::int64_t rows, std::int64_t cols, const NewtonSchulzOptions& options) {
    constexpr std::size_t kKept = 256;  // distinct shapes of a model, and more
    auto found = std::find_if(plans.begin(), plans.end(), [&](const Planned& planned) {
      return planned.rows == rows && planned.cols == cols && planned.form == options.form &&
             planned.plan.precision == options.precision &&
             std::equal(
                 planned.plan.coefficients.begin(),
                 planned.plan.coefficients.end(),
                 options.coefficients.begin(),
                 options.coefficients.end());
    });
    if (found == plans.end()) {
      if (plans.size() >= kKept) {
        plans.clear();
      }
      plans.push_back({rows, cols, options.form, plan_newton_schulz(rows, cols, options)});
      found = plans.end() - 1;
    }
    found->plan.diagnostics = options.diagnostics;
    return found->plan;
  }
};

NewtonSchulzWorkspace::NewtonSchulzWorkspace() : state_(std::make_unique<State>()) {}

NewtonSchulzWorkspace::~NewtonSchulzWorkspace() = default;
NewtonSchulzWorkspace::NewtonSchulzWorkspace(NewtonSchulzWorkspace&&) noexcept = default;
NewtonSchulzWorkspace& NewtonSchulzWorkspace::operator=(NewtonSchulzWorkspace&&) noexcept = default;

void newton_schulz_batch(
    std::span<float> x,
    std::int64_t count,
    std::int64_t rows,
    std::int64_t cols,
    const NewtonSchulzOptions& options,
    NewtonSchulzWorkspace& workspace,
    std::span<NewtonSchulzReport> reports) {
  MUSTER_CHECK(
      count >= 0 && rows >= 0 && cols >= 0 && std::ssize(x) == count * rows * cols,
      "newton_schulz_batch: x does not have count * rows * cols elements");
  MUSTER_CHECK(
      reports.empty() || std::ssize(reports) == count,
      "newton_schulz_batch: reports is neither empty nor one per matrix");
  MUSTER_CHECK(
      options.precision == DType::kFloat32 || options.precision == DType::kBFloat16,
      "newton_schulz_batch: precision is neither fp32 nor bf16");
  if (x.empty()) {
    std::fill(reports.begin(), reports.end(), NewtonSchulzReport{});
    return;
  }
  NewtonSchulzWorkspace::State& state = workspace.state();
  const NewtonSchulzPlan& plan = state.plan_for(rows, cols, options);
  const int threads = std::max(options.threads, 1);
  if (state.team->members() != threads) {
    state.team = std::make_unique<ThreadTeam>(threads);
  }
  const auto size = static_cast<std::size_t>(rows * cols);
  const auto run = [&](std::int64_t number, int engine, ThreadTeam& team) {
    const auto i = static_cast<std::size_t>(number);
    const NewtonSchulzReport report = state.engines[static_cast<std::size_t>(engine)].run(
        x.subspan(i * size, size), rows, cols, plan, team);
    if (!reports.empty()) {
      reports[i] = report;
    }
  };
  if (count < threads) {
    for (std::int64_t i = 0; i < count; ++i) {
      run(i, 0, *state.team);
    }
    return;
  }
  if (static_cast<int>(state.engines.size()) < threads) {
    state.engines.resize(static_cast<std::size_t>(threads));
  }
  state.team->run(
      count, [&](std::int64_t number, int member) { run(number, member, state.alone); });
}

}  // namespace muster::kernels

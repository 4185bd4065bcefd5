// SPDX-License-Identifier: Apache-2.0
#include "trainer/moe_lm/src/trainer.h"

#include "trainer/moe_lm/src/model.h"
#include "trainer/moe_lm/src/needle.h"
#include "trainer/moe_lm/src/parameter_dump.h"
#include "trainer/moe_lm/src/parameters.h"
#include "trainer/moe_lm/src/text.h"
#include "trainer/moe_lm/src/weights.h"

#include <muster/common/text.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <fstream>
#include <limits>
#include <memory>
#include <ostream>
#include <utility>

namespace muster::moe_lm {
namespace {

using agent::Phase;
constexpr const char* kCursor = "data_cursor";
constexpr const char* kDataOrder = "data_order";

// Objects that live as long as the run, in order of dependence.
class Trainer final : public TrainingLoop {
 public:
  Trainer(comm::Communicator& world, TrainSetup setup)
      : world_(world), setup_(std::move(setup)), options_(setup_.options) {}

  Status start();
  [[nodiscard]] Expected<agent::Verdict> step() override;
  [[nodiscard]] Expected<TrainResult> finish() override;

  [[nodiscard]] agent::Agent& agent() override { return *agent_; }

  [[nodiscard]] bool done() const override { return result_.ending != agent::Ending::kContinue; }

 private:
  Status create_optimizer();
  Status join_agent();
  Status resume();
  void set_attention(std::int64_t step);
  Status open_loss_log();
  Expected<double> forward_backward(std::int64_t batch_index);
  Expected<double> forward(const Batch& batch);
  void skip_left_out_batch();
  void inject_kill() const;
  void inject_nan();
  [[nodiscard]] Batch training_part(std::int64_t batch_index, std::int64_t pass) const;
  [[nodiscard]] Batch evaluation_part() const;
  Status evaluate_when_due();
  Status pass(std::int64_t batch_index, std::int64_t index, double& loss_sum);
  void set_draws(std::int64_t batch_index, std::int64_t pass);
  void trace_plans();
  void balance_experts(const agent::ReducedLanes& lanes);
  void report(const agent::Verdict& verdict, std::int64_t step);

  [[nodiscard]] bool hits(const std::optional<FaultPoint>& fault) const;
  [[nodiscard]] std::int64_t tokens_per_rank() const;
  [[nodiscard]] std::int64_t total_steps() const;
  [[nodiscard]] std::string data_order() const;

  comm::Communicator& world_;
  const TrainSetup setup_;
  const TrainOptions& options_;
  std::unique_ptr<comm::Communicator> expert_group_;
  std::unique_ptr<comm::Communicator> expert_peers_;
  std::unique_ptr<ExpertRuntime> experts_;
  std::unique_ptr<optimizer::Optimizer> optimizer_;
  std::unique_ptr<Weights> weights_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<agent::Agent> agent_;
  agent::TrainerState state_;
  std::int64_t cursor_{0};
  std::string attention_shown_;
  std::ofstream loss_log_;
  TrainResult result_;
};

Status Trainer::create_optimizer() {
  const auto deadline = Deadline::after(setup_.agent.collective_timeout);
  const int rank = world_.rank();
  const int ep_size = options_.ep_size;
  // Neighbours share a set of experts; ranks at the same index of their groups hold the same ones.
  MUSTER_ASSIGN_OR_RETURN(expert_group_, world_.split(rank / ep_size, rank, deadline));
  MUSTER_ASSIGN_OR_RETURN(expert_peers_, world_.split(rank % ep_size, rank, deadline));
  MUSTER_ASSIGN_OR_RETURN(
      experts_,
      ExpertRuntime::create(
          options_, world_.size(), *expert_group_, setup_.agent.collective_timeout));
  optimizer::OptimizerOptions chosen = optimizer_options(options_);
  chosen.expert_memory = experts_->memory_source();
  MUSTER_ASSIGN_OR_RETURN(
      optimizer_,
      optimizer::Optimizer::create(
          parameter_specs(options_.model, ep_size, options_.update),
          std::move(chosen),
          world_,
          expert_peers_.get(),
          deadline));
  MUSTER_RETURN_IF_ERROR(
      set_initial_values(*optimizer_, options_.model, options_.seed, expert_group_->rank()));
  weights_ = std::make_unique<Weights>(*optimizer_, setup_.agent.collective_timeout);
  MUSTER_ASSIGN_OR_RETURN(ExpertLayers layers, experts_->make_layers(*optimizer_, *weights_));
  model_ = std::make_unique<Model>(options_, *weights_, *experts_, std::move(layers));
  return {};
}

Status Trainer::join_agent() {
  agent::AgentOptions agent_options = setup_.agent;
  agent_options.checkpoint_interval = options_.checkpoint_interval;
  agent_options.skips_max = options_.skips_max;
  agent_options.qk_clip_threshold = options_.qk_clip_tau;
  agent_options.total_steps = total_steps();
  agent_options.allow_attention_change |= options_.allow_attention_change;
  agent::ModelInfo info = Model::info(options_.model);
  info.attention_schedule = options_.attention;
  info.expert_ranks = experts_->balanced() ? options_.ep_size : 0;
  MUSTER_ASSIGN_OR_RETURN(
      agent_, agent::Agent::join(std::move(agent_options), world_, *optimizer_, std::move(info)));
  return {};
}

Status Trainer::resume() {
  state_.values[kCursor] = "0";
  state_.values[kDataOrder] = data_order();
  state_.on_verdict = [this](const agent::Verdict& verdict, const agent::ReducedLanes& lanes) {
    if (!verdict.skip) {
      balance_experts(lanes);
    }
  };
  for (std::size_t layer = 0; layer < model_->moe_blocks().size(); ++layer) {
    state_.tensors.push_back(
        {layer_name(static_cast<std::int64_t>(layer), "moe.bias"),
         model_->moe_blocks()[layer].bias()});
  }
  MUSTER_RETURN_IF_ERROR(agent_->restore(state_));
  weights_->parameters_changed();
  if (state_.values[kDataOrder] != data_order()) {
    return failed_precondition(
        "the checkpoint was saved with ",
        state_.values[kDataOrder],
        ", this run has ",
        data_order(),
        ": start with the flags it was saved with, or with another run id");
  }
  const std::string& text = state_.values[kCursor];
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), cursor_);
  if (parsed.ec != std::errc{} || parsed.ptr != text.data() + text.size()) {
    return data_loss("the checkpoint's data cursor '", text, "' is not a number");
  }
  result_.first_step = agent_->step();
  if (result_.first_step >= total_steps()) {
    result_.ending = agent::Ending::kFinished;
  }
  return {};
}

// The schedule depends on the batch, which equals the step unless one is left out: a run that
// leaves out a batch must switch at the same batch as a run that skipped it.
void Trainer::set_attention(std::int64_t step) {
  const ModelShape& model = options_.model;
  std::vector<agent::AttentionMode> modes;
  for (AttentionBlock& block : model_->attention_blocks()) {
    const auto layer = static_cast<std::int64_t>(modes.size());
    modes.push_back(options_.attention.mode_at(
        {.layer = layer, .layers = model.layers, .step = step, .sequence = model.sequence}));
    block.set_mode(modes.back().moba);
  }
  agent_->set_attention_modes(modes);
  if (setup_.out == nullptr || world_.rank() != 0 || options_.attention.to_string() == "full") {
    return;
  }
  std::string shown = options_.attention.describe(model.layers, step, model.sequence);
  if (shown != attention_shown_) {
    *setup_.out << "attention from step " << std::to_string(agent_->step()) << ": " << shown
                << std::endl;  // NOLINT: someone is watching
    attention_shown_ = std::move(shown);
  }
}

Status Trainer::open_loss_log() {
  if (options_.log_loss.empty() || world_.rank() != 0) {
    return {};
  }
  // A resumed process appends to the file of the previous one.
  loss_log_.open(options_.log_loss, result_.first_step == 0 ? std::ios::trunc : std::ios::app);
  if (!loss_log_) {
    return io_error("cannot write '" + options_.log_loss.string() + "'", errno);
  }
  return {};
}

Status Trainer::start() {
  if (options_.needle_pairs == 0 &&
      setup_.text->size() <= static_cast<std::size_t>(options_.model.sequence)) {
    return invalid_argument(
        "the text has ",
        setup_.text->size(),
        " bytes; --seq ",
        options_.model.sequence,
        " needs at least one more than that");
  }
  MUSTER_RETURN_IF_ERROR(create_optimizer());
  MUSTER_RETURN_IF_ERROR(join_agent());
  MUSTER_RETURN_IF_ERROR(resume());
  MUSTER_RETURN_IF_ERROR(open_loss_log());
  if (setup_.on_joined) {
    setup_.on_joined(*agent_);
  }
  return {};
}

bool Trainer::hits(const std::optional<FaultPoint>& fault) const {
  return fault && setup_.agent.identity.generation.value() <= 1 && fault->rank == world_.rank() &&
         fault->step == agent_->step();
}

void Trainer::inject_kill() const {
  if (hits(options_.inject_kill)) {
    std::raise(SIGKILL);
  }
}

// Backward adds to the gradient, and a NaN plus anything stays NaN.
void Trainer::inject_nan() {
  if (hits(options_.inject_nan)) {
    weights_->find("embedding")->gradient[0] = std::numeric_limits<float>::quiet_NaN();
  }
}

void Trainer::skip_left_out_batch() {
  if (options_.leave_out_batch && cursor_ == *options_.leave_out_batch) {
    ++cursor_;
  }
}

std::int64_t Trainer::tokens_per_rank() const {
  return options_.batch / world_.size() * tokens_with_loss(options_);
}

// Flags that give the cursor its meaning: with other values it would point at other text.
std::string Trainer::data_order() const {
  return "--seed " + std::to_string(options_.seed) + " --batch " + std::to_string(options_.batch) +
         " --seq " + std::to_string(options_.model.sequence) +
         (options_.needle_pairs == 0 ? std::string{}
                                     : " --needle " + std::to_string(options_.needle_pairs)) +
         (options_.loss_every == 1 ? std::string{}
                                   : " --loss-every " + std::to_string(options_.loss_every));
}

std::int64_t Trainer::total_steps() const {
  const bool leaves_one_out =
      options_.leave_out_batch && *options_.leave_out_batch < options_.steps;
  return options_.steps - (leaves_one_out ? 1 : 0);
}

Expected<double> Trainer::forward(const Batch& batch) {
  const auto timer = agent_->time(Phase::kForward);
  if (!hits(options_.inject_nan_forward)) {
    return model_->forward(batch, *agent_);
  }
  // Restores the parameter before anything but this forward pass reads it.
  const auto row = static_cast<std::size_t>(batch.tokens.front() * options_.model.d_model);
  const Weight* embedding = weights_->find("embedding");
  MUSTER_RETURN_IF_ERROR(weights_->await({embedding}));
  float& value = embedding->value[row];
  const float kept = std::exchange(value, std::numeric_limits<float>::quiet_NaN());
  auto loss = model_->forward(batch, *agent_);
  value = kept;
  return loss;
}

Batch Trainer::training_part(std::int64_t batch_index, std::int64_t pass) const {
  const std::int64_t per_rank = options_.batch / world_.size();
  const std::int64_t per_pass = per_rank / options_.micro_batches;
  const std::int64_t first = world_.rank() * per_rank + pass * per_pass;
  const std::int64_t length = options_.model.sequence;
  if (options_.needle_pairs > 0) {
    return NeedleSource{options_.seed, options_.batch, length, options_.needle_pairs}.sequences(
        batch_index, first, per_pass);
  }
  Batch batch = BatchSource{setup_.text, options_.seed, options_.batch, length}.sequences(
      batch_index, first, per_pass);
  keep_loss_of_every(options_.loss_every, length, batch);
  return batch;
}

Batch Trainer::evaluation_part() const {
  const std::int64_t count = options_.eval_sequences / world_.size();
  const std::int64_t first = world_.rank() * count;
  const std::int64_t length = options_.model.sequence;
  if (options_.needle_pairs > 0) {
    return NeedleSource{options_.seed, options_.batch, length, options_.needle_pairs}.held_out(
        first, count);
  }
  return BatchSource{setup_.text, options_.seed, options_.batch, length}.elsewhere(first, count);
}

// Evaluates before a step, with the parameters it begins with, and after the last one.
Status Trainer::evaluate_when_due() {
  if (options_.eval_every == 0 || (!done() && agent_->step() % options_.eval_every != 0)) {
    return {};
  }
  const auto timer = agent_->time(Phase::kOther);
  MUSTER_ASSIGN_OR_RETURN(
      Evaluation evaluation,
      evaluate(
          *model_,
          *agent_,
          world_,
          evaluation_part(),
          Deadline::after(setup_.agent.collective_timeout)));
  evaluation.step = agent_->step();
  if (setup_.out != nullptr && world_.rank() == 0) {
    *setup_.out << "evaluation at step " << std::to_string(evaluation.step) << ": "
                << to_string(evaluation) << std::endl;  // NOLINT: someone is watching
  }
  result_.evaluations.push_back(std::move(evaluation));
  return {};
}

Status Trainer::pass(std::int64_t batch_index, std::int64_t index, double& loss_sum) {
  Batch batch;
  {
    const auto timer = agent_->time(Phase::kData);
    batch = training_part(batch_index, index);
  }
  set_draws(batch_index, index);
  MUSTER_ASSIGN_OR_RETURN(const double loss, forward(batch));
  trace_plans();
  loss_sum += loss;
  const auto timer = agent_->time(Phase::kBackward);
  const bool last = index + 1 == options_.micro_batches;
  weights_->set_last_pass(last);
  if (last) {
    inject_nan();
  }
  return model_->backward(batch, *agent_);
}

// Drawn experts follow the data, so that a run that was rolled back draws the same ones again.
void Trainer::set_draws(std::int64_t batch_index, std::int64_t pass) {
  const std::int64_t index = batch_index * options_.micro_batches + pass;
  for (MoeBlock& block : model_->moe_blocks()) {
    block.set_draw(static_cast<std::uint64_t>(world_.rank()), static_cast<std::uint64_t>(index));
  }
}

// A trace that cannot be written ends without stopping training.
void Trainer::trace_plans() {
  for (MoeBlock& block : model_->moe_blocks()) {
    const Status traced = block.trace(agent_->step());
    if (!traced.ok() && setup_.out != nullptr) {
      *setup_.out << "rank " << std::to_string(world_.rank())
                  << " stops --ep-trace: " << traced.to_string()
                  << std::endl;  // NOLINT: someone is watching
    }
  }
}

Expected<double> Trainer::forward_backward(std::int64_t batch_index) {
  double loss_sum = 0;
  for (std::int64_t index = 0; index < options_.micro_batches; ++index) {
    MUSTER_RETURN_IF_ERROR(pass(batch_index, index, loss_sum));
  }
  return loss_sum;
}

void Trainer::balance_experts(const agent::ReducedLanes& lanes) {
  const auto& counts = lanes.expert_counts;
  for (std::size_t layer = 0; layer < counts.size(); ++layer) {
    model_->moe_blocks()[layer].balance(counts[layer], options_.bias_rate);
  }
}

Expected<agent::Verdict> Trainer::step() {
  const std::int64_t index = agent_->step();
  agent_->begin_step();
  skip_left_out_batch();
  set_attention(cursor_);
  MUSTER_RETURN_IF_ERROR(evaluate_when_due());
  MUSTER_ASSIGN_OR_RETURN(const double loss_sum, forward_backward(cursor_));
  inject_kill();
  ++cursor_;
  state_.values[kCursor] = std::to_string(cursor_);
  MUSTER_ASSIGN_OR_RETURN(
      agent::Verdict verdict, agent_->end_step(loss_sum, tokens_per_rank(), state_));
  weights_->parameters_changed();
  result_.ending = verdict.ending;
  report(verdict, index);
  if (done()) {
    MUSTER_RETURN_IF_ERROR(evaluate_when_due());
  }
  return verdict;
}

void Trainer::report(const agent::Verdict& verdict, std::int64_t step) {
  result_.losses.push_back(verdict.loss);
  result_.skipped.push_back(verdict.skip);
  if (world_.rank() != 0) {
    return;
  }
  if (loss_log_.is_open()) {
    loss_log_ << concat(step, ',', general(verdict.loss, 17))
              << std::endl;  // NOLINT: a killed run keeps its lines
  }
  const bool due = options_.print_every > 0 && step % options_.print_every == 0;
  if (setup_.out != nullptr &&
      (due || verdict.skip || verdict.ending != agent::Ending::kContinue)) {
    *setup_.out << "step " << std::to_string(step) << " loss " << fixed(verdict.loss, 4)
                << " grad_norm " << fixed(verdict.gradient_norm, 4);
    *setup_.out << reach_text(agent_->lanes());
    if (!verdict.reason.empty()) {
      *setup_.out << " (" << verdict.reason << ")";
    }
    *setup_.out << std::endl;  // NOLINT: someone is watching
  }
}

Expected<TrainResult> Trainer::finish() {
  if (result_.ending == agent::Ending::kAbort) {
    return aborted("ranks of several generations met: another launch of this run has taken over");
  }
  MUSTER_RETURN_IF_ERROR(agent_->finish());
  MUSTER_RETURN_IF_ERROR(weights_->await_all());
  if (!options_.dump_params.empty() && result_.ending != agent::Ending::kPreempted) {
    MUSTER_RETURN_IF_ERROR(dump_parameters(options_.dump_params, world_.rank(), *optimizer_));
  }
  return std::move(result_);
}

}  // namespace

Expected<std::unique_ptr<TrainingLoop>> TrainingLoop::start(
    comm::Communicator& world, TrainSetup setup) {
  auto trainer = std::make_unique<Trainer>(world, std::move(setup));
  MUSTER_RETURN_IF_ERROR(trainer->start());
  return Expected<std::unique_ptr<TrainingLoop>>{std::move(trainer)};
}

Expected<TrainResult> run_to_end(TrainingLoop& loop) {
  while (!loop.done()) {
    MUSTER_RETURN_IF_ERROR(loop.step().status());
  }
  return loop.finish();
}

Expected<TrainResult> train(comm::Communicator& world, TrainSetup setup) {
  MUSTER_ASSIGN_OR_RETURN(const auto loop, TrainingLoop::start(world, std::move(setup)));
  return run_to_end(*loop);
}

}  // namespace muster::moe_lm

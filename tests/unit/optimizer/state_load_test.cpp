// SPDX-License-Identifier: Apache-2.0
// Conversions on load, and what is refused before anything is touched.
#include "optimizer/src/routing/routing.h"
#include "tests/unit/optimizer/state_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <locale>

namespace muster::optimizer {
namespace {

using ::testing::HasSubstr;

// One rank, two steps.
void fill(StateStore& store, const OptimizerOptions& options) {
  run_ranks(1, [&](comm::Communicator& world) {
    const auto optimizer = make_optimizer(large_model(), options, world, &world);
    set_initial_values(*optimizer);
    for (int step = 0; step < 2; ++step) {
      add_slice_gradients(*optimizer, step, 0);
      finish_step(*optimizer, decide(1.0, 0.01));
    }
    store.save(*optimizer);
  });
}

void with_loaded(
    StateStore& store,
    const OptimizerOptions& options,
    const std::function<void(Optimizer&)>& check) {
  run_ranks(1, [&](comm::Communicator& world) {
    const auto optimizer = make_optimizer(large_model(), options, world, &world);
    const Status loaded = optimizer->load_state(store);
    ASSERT_TRUE(loaded.ok()) << loaded.to_string();
    check(*optimizer);
  });
}

StateStore::Entry saved_again(Optimizer& optimizer, const std::string& name) {
  StateStore store;
  store.save(optimizer);
  return store.entries().at(name);
}

TEST(StateLoad, ConvertsMomentumBetweenItsForms) {
  OptimizerOptions heavy = large_options(Layout::kWholeMatrices, StateType::kFloat32);
  OptimizerOptions ema = heavy;
  ema.muon.momentum_form = MomentumForm::kEma;
  StateStore store;
  fill(store, heavy);
  const auto before = store.floats("muon_momentum/w");
  with_loaded(store, ema, [&](Optimizer& optimizer) {
    StateStore converted;
    converted.save(optimizer);
    const auto after = converted.floats("muon_momentum/w");
    ASSERT_EQ(after.size(), before.size());
    for (std::size_t i = 0; i < after.size(); ++i) {
      EXPECT_EQ(after[i], static_cast<float>(static_cast<double>(before[i]) * (1 - 0.95)));
    }
    EXPECT_EQ(converted.values().at("optimizer.momentum_form"), "ema");
    // Other rules have one form only.
    EXPECT_EQ(converted.floats("momentum/scale"), store.floats("momentum/scale"));
  });
}

TEST(StateLoad, ConvertedMomentumGivesTheSameNextUpdate) {
  OptimizerOptions heavy = large_options(Layout::kWholeMatrices, StateType::kFloat32);
  OptimizerOptions ema = heavy;
  ema.muon.momentum_form = MomentumForm::kEma;
  StateStore store;
  fill(store, heavy);
  std::vector<std::vector<float>> ends;
  for (const OptimizerOptions& options : {heavy, ema}) {
    with_loaded(store, options, [&](Optimizer& optimizer) {
      add_slice_gradients(optimizer, 7, 0);
      finish_step(optimizer, decide(1.0, 0.01));
      const auto value = optimizer.find("w")->value;
      ends.emplace_back(value.begin(), value.end());
    });
  }
  for (std::size_t i = 0; i < ends[0].size(); ++i) {
    // The direction differs by rounding only; Newton-Schulz amplifies it by at most some hundred.
    EXPECT_NEAR(ends[0][i], ends[1][i], 1e-5);
  }
}

TEST(StateLoad, ScalesOnlyTheMaximaOfEightBitMomentum) {
  OptimizerOptions heavy = large_options(Layout::kWholeMatrices, StateType::kInt8Block);
  OptimizerOptions ema = heavy;
  ema.muon.momentum_form = MomentumForm::kEma;
  StateStore store;
  fill(store, heavy);
  with_loaded(store, ema, [&](Optimizer& optimizer) {
    EXPECT_EQ(
        saved_again(optimizer, "muon_momentum/w").bytes,
        store.entries().at("muon_momentum/w").bytes);
    EXPECT_NE(
        saved_again(optimizer, "muon_momentum.absmax/w").bytes,
        store.entries().at("muon_momentum.absmax/w").bytes);
  });
}

TEST(StateLoad, RoundsFullStatesToWhatTheRouteAsksFor) {
  StateStore full;
  fill(full, large_options(Layout::kWholeMatrices, StateType::kFloat32));
  const auto m = full.floats("adamw_m/embedding");
  with_loaded(
      full, large_options(Layout::kWholeMatrices, StateType::kBFloat16), [&](Optimizer& optimizer) {
        std::vector<std::uint16_t> nearest(m.size());
        kernels::narrow(DType::kBFloat16, m, nearest);
        const auto entry = saved_again(optimizer, "adamw_m/embedding");
        EXPECT_EQ(std::memcmp(entry.bytes.data(), nearest.data(), entry.bytes.size()), 0);
      });
  with_loaded(
      full,
      large_options(Layout::kWholeMatrices, StateType::kInt8Block),
      [&](Optimizer& optimizer) {
        std::vector<std::uint8_t> codes(m.size());
        std::vector<float> absmax((m.size() + 255) / 256);
        kernels::quantise(true, m, codes, absmax);
        const auto entry = saved_again(optimizer, "adamw_m/embedding");
        EXPECT_EQ(std::memcmp(entry.bytes.data(), codes.data(), codes.size()), 0);
        const auto maxima = saved_again(optimizer, "adamw_m.absmax/embedding");
        EXPECT_EQ(std::memcmp(maxima.bytes.data(), absmax.data(), maxima.bytes.size()), 0);
      });
}

// Shards of fp32 states may be cut within the blocks of what was saved.
TEST(StateLoad, WidensCompressedStatesWhereverTheyAreCut) {
  for (const StateType state : {StateType::kBFloat16, StateType::kInt8Block}) {
    StateStore small;
    fill(small, large_options(Layout::kWholeMatrices, state));
    OptimizerOptions options = large_options(Layout::kFlatOwner, StateType::kFloat32);
    options.cut_granularity = 1;
    StateStore again;
    run_ranks(7, [&](comm::Communicator& world) {
      const auto optimizer = make_optimizer(large_model(), options, world, &world);
      const Status loaded = optimizer->load_state(small);
      ASSERT_TRUE(loaded.ok()) << loaded.to_string();
      again.save(*optimizer);
    });
    again.expect_complete();
    // Widening is exact, so narrowing again must give what was saved.
    for (const char* name : {"adamw_v/embedding", "muon_momentum/stack", "adamw_m/experts.bias"}) {
      const auto wide = again.floats(name);
      const StateStore::Entry& entry = small.entries().at(name);
      if (state == StateType::kBFloat16) {
        std::vector<std::uint16_t> bits(wide.size());
        kernels::narrow(DType::kBFloat16, wide, bits);
        EXPECT_EQ(std::memcmp(entry.bytes.data(), bits.data(), entry.bytes.size()), 0) << name;
        continue;
      }
      const bool is_signed = std::string{name}.find("_v/") == std::string::npos;
      const std::string slash = name;
      const auto maxima = small.floats(
          slash.substr(0, slash.find('/')) + ".absmax" + slash.substr(slash.find('/')));
      const std::size_t units = slash == "muon_momentum/stack"    ? 3
                                : slash == "adamw_m/experts.bias" ? 2
                                                                  : 1;
      const std::size_t unit = wide.size() / units;
      const std::size_t blocks = (unit + 255) / 256;
      for (std::size_t i = 0; i < wide.size(); ++i) {
        const float scale = maxima[i / unit * blocks + i % unit / 256];
        const auto code = static_cast<std::size_t>(entry.bytes[i]);
        EXPECT_EQ(wide[i], scale == 0 ? 0 : kernels::quant_map(is_signed)[code] * scale) << name;
      }
    }
  }
}

TEST(StateLoad, ReadsACheckpointWithoutValuesAsHeavyBall) {
  OptimizerOptions options = large_options(Layout::kWholeMatrices, StateType::kFloat32);
  StateStore store;
  fill(store, options);
  store.values().clear();
  with_loaded(store, options, [&](Optimizer& optimizer) {
    EXPECT_EQ(optimizer.applied_steps(), 0);
    EXPECT_EQ(
        saved_again(optimizer, "muon_momentum/w").bytes,
        store.entries().at("muon_momentum/w").bytes);
  });
}

struct Spoiled {
  const char* what;
  std::function<void(StateStore&)> spoil;
  std::vector<const char*> says;
};

class StateRefusal : public ::testing::TestWithParam<Spoiled> {};

TEST_P(StateRefusal, NamesTheTroubleAndTouchesNothing) {
  const OptimizerOptions options = large_options(Layout::kFlatOwner, StateType::kInt8Block);
  StateStore store;
  fill(store, options);
  GetParam().spoil(store);
  run_ranks(1, [&](comm::Communicator& world) {
    const auto optimizer = make_optimizer(large_model(), options, world, &world);
    set_initial_values(*optimizer);
    add_slice_gradients(*optimizer, 5, 0);
    finish_step(*optimizer, decide(1.0, 0.01));
    const std::string before = everything(*optimizer);
    const Status refused = optimizer->load_state(store);
    EXPECT_FALSE(refused.ok());
    for (const char* part : GetParam().says) {
      EXPECT_THAT(refused.message(), HasSubstr(part));
    }
    EXPECT_EQ(everything(*optimizer), before);
  });
}

struct Comma : std::numpunct<char> {
  char do_decimal_point() const override { return ','; }

  char do_thousands_sep() const override { return '.'; }

  std::string do_grouping() const override { return "\3"; }
};

// The hash of large_model() under `options`.
std::uint64_t hash_of(const OptimizerOptions& options) {
  return plan_hash(route(large_model(), options.routes).value(), options);
}

TEST(StateLoad, WritesAndHashesTheSameTextUnderALocaleWithDecimalComma) {
  const OptimizerOptions options = large_options(Layout::kWholeMatrices, StateType::kFloat32);
  StateStore plain;
  fill(plain, options);
  const std::uint64_t hash = hash_of(options);
  const std::locale before = std::locale::global(std::locale(std::locale(), new Comma));
  StateStore german;
  fill(german, options);
  EXPECT_EQ(hash_of(options), hash);
  std::locale::global(before);
  EXPECT_EQ(german.values(), plain.values());
  EXPECT_EQ(german.values().at("optimizer.muon_momentum"), "0.94999999999999996");
}

TEST(StateLoad, ReadsAMomentumThatWasWrittenWithADecimalComma) {
  const OptimizerOptions options = large_options(Layout::kWholeMatrices, StateType::kFloat32);
  StateStore store;
  fill(store, options);
  store.values()["optimizer.muon_momentum"] = "0,94999999999999996";
  with_loaded(store, options, [](Optimizer& optimizer) {
    StateStore again;
    again.save(optimizer);
    EXPECT_EQ(again.values().at("optimizer.muon_momentum"), "0.94999999999999996");
  });
}

INSTANTIATE_TEST_SUITE_P(
    State,
    StateRefusal,
    ::testing::Values(
        Spoiled{
            "missing",
            [](StateStore& s) { s.entries().erase("adamw_v/norm"); },
            {"'adamw_v/norm'", "'norm' of shape [13]", "routes that saved it"}},
        Spoiled{
            "missing_absmax",
            [](StateStore& s) { s.entries().erase("adamw_v.absmax/embedding"); },
            {"'adamw_v.absmax/embedding'", "'embedding' of shape [131, 67]"}},
        Spoiled{
            "left_over",
            [](StateStore& s) { s.entries()["muon_momentum/ghost"] = s.entries()["param/w"]; },
            {"'muon_momentum/ghost'", "has no place"}},
        Spoiled{
            "shape",
            [](StateStore& s) {
              s.entries()["param/w"].tensor.global_shape = {64, 96};
            },
            {"'param/w'", "[64, 96]", "[96, 64]"}},
        Spoiled{
            "dtype",
            [](StateStore& s) { s.entries()["muon_momentum/w"].tensor.dtype = "F8_E4M3"; },
            {"'muon_momentum/w'", "F8_E4M3", "F32, BF16 or U8"}},
        Spoiled{
            "values_dtype",
            [](StateStore& s) { s.entries()["param/w"].tensor.dtype = "BF16"; },
            {"'param/w'", "BF16"}},
        Spoiled{
            "momentum_form",
            [](StateStore& s) { s.values()["optimizer.momentum_form"] = "lookahead"; },
            {"lookahead"}},
        Spoiled{
            "momentum",
            [](StateStore& s) { s.values()["optimizer.muon_momentum"] = "1.5"; },
            {"1.5", "momentum in [0, 1)"}},
        Spoiled{
            "steps",
            [](StateStore& s) { s.values()["optimizer.applied_steps"] = "-3"; },
            {"-3", "count of steps"}},
        Spoiled{
            "map",
            [](StateStore& s) { s.values()["optimizer.quant_map"] = "0123456789abcdef"; },
            {"0123456789abcdef", "8-bit map"}},
        Spoiled{
            "rule",
            [](StateStore& s) { s.values()["optimizer.rule/scale"] = "adamw"; },
            {"'scale' of shape [4100]", "adamw", "momentum"}},
        Spoiled{
            "lost_parameter",
            [](StateStore& s) {
              const float bad = std::nanf("");
              std::memcpy(s.entries()["param/w"].bytes.data() + 40, &bad, sizeof bad);
            },
            {"'param/w' of group", "holds NaN or infinity", "go back to an older checkpoint"}},
        Spoiled{
            "lost_scale",
            [](StateStore& s) {
              const float bad = HUGE_VALF;
              std::memcpy(s.entries()["adamw_v.absmax/embedding"].bytes.data(), &bad, sizeof bad);
            },
            {"'adamw_v.absmax/embedding' of group", "holds NaN or infinity"}},
        Spoiled{
            "damage",
            [](StateStore& s) { s.damage("adamw_m/experts.bias"); },
            {"'adamw_m/experts.bias' is damaged"}}),
    [](const auto& one) { return std::string{one.param.what}; });

}  // namespace
}  // namespace muster::optimizer

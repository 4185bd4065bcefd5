// SPDX-License-Identifier: Apache-2.0
#include <muster/common/text.h>
#include <muster/optimizer/newton_schulz_sets.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <initializer_list>
#include <optional>

namespace muster::optimizer {
namespace {

using kernels::NewtonSchulzStep;

constexpr NewtonSchulzStep kKeller{3.4445, -4.7750, 2.0315};
constexpr NewtonSchulzStep kClassicCubic{1.5, -0.5, 0.0};
constexpr std::array<NewtonSchulzStep, 5> kYou{
    {{4.0848, -6.8946, 2.9270},
     {3.9505, -6.3029, 2.6377},
     {3.7418, -5.5913, 2.3037},
     {2.8769, -3.1427, 1.2046},
     {2.8366, -3.0525, 1.2012}}};
// arXiv 2505.16932, lower bound 1e-3, before the safety factor. The last one is the limit and
// repeats.
constexpr std::array<NewtonSchulzStep, 8> kPolarExpress{
    {{8.28721201814563, -23.595886519098837, 17.300387312530933},
     {4.107059111542203, -2.9478499167379106, 0.5448431082926601},
     {3.9486908534822946, -2.908902115952949, 0.5518191394370137},
     {3.3184196573706015, -2.488488024314874, 0.51004894012372},
     {2.300652019954817, -1.6689039845747493, 0.4188073119525673},
     {1.891301407787398, -1.2679958271945868, 0.37680408948524835},
     {1.8750014808534479, -1.2500016453999487, 0.3750001645474248},
     {1.875, -1.25, 0.375}}};
// DeepSeek-V4: Keller's triple reaches the neighbourhood of 1, then this one converges to it.
constexpr std::size_t kDeepSeekKellerSteps = 8;
constexpr NewtonSchulzStep kDeepSeekLimit{2.0, -1.5, 0.5};

// A singular value above 1 by as much as a Frobenius norm rounded down to bf16 allows.
constexpr double kSigmaMax = 1.0 + 1.0 / 256;
constexpr double kOutMax = 1.5;

NewtonSchulzStep damped(const NewtonSchulzStep& raw, double safety) {
  const double cube = safety * safety * safety;
  return {raw[0] / safety, raw[1] / cube, raw[2] / (cube * safety * safety)};
}

NewtonSchulzStep coefficients_of(const MuonOptions& options, std::size_t step) {
  switch (options.newton_schulz_set) {
    case NewtonSchulzSet::kKeller:
      return kKeller;
    case NewtonSchulzSet::kYou:
      return kYou[step % kYou.size()];
    case NewtonSchulzSet::kPolarExpress:
      return step + 1 < kPolarExpress.size()
                 ? damped(kPolarExpress[step], options.polar_express_safety)
                 : kPolarExpress.back();
    case NewtonSchulzSet::kClassicCubic:
      return kClassicCubic;
    case NewtonSchulzSet::kDeepSeekV4:
      return step < kDeepSeekKellerSteps ? kKeller : kDeepSeekLimit;
    case NewtonSchulzSet::kCustom:
      break;
  }
  return options.custom_coefficients.at(step);
}

double map_once(const NewtonSchulzStep& step, double sigma) {
  const double square = sigma * sigma;
  return sigma * (step[0] + square * (step[1] + square * step[2]));
}

struct Interval {
  double low{0};
  double high{0};
};

// The exact image: the ends and the extrema in between, where a + 3b s^2 + 5c s^4 = 0.
Interval image(const NewtonSchulzStep& step, const Interval& from) {
  Interval to{1e300, -1e300};
  const auto include = [&](double sigma) {
    if (sigma >= from.low && sigma <= from.high) {
      const double out = map_once(step, sigma);
      to.low = std::min(to.low, out);
      to.high = std::max(to.high, out);
    }
  };
  const auto include_square = [&](double square) {
    if (square > 0) {
      include(std::sqrt(square));
      include(-std::sqrt(square));
    }
  };
  include(from.low);
  include(from.high);
  const double a = 5 * step[2];
  const double b = 3 * step[1];
  const double c = step[0];
  if (a == 0) {
    include_square(b == 0 ? 0 : -c / b);
    return to;
  }
  const double discriminant = b * b - 4 * a * c;
  if (discriminant >= 0) {
    include_square((-b + std::sqrt(discriminant)) / (2 * a));
    include_square((-b - std::sqrt(discriminant)) / (2 * a));
  }
  return to;
}

bool allowed(double out) {
  return out >= 0 && out <= kOutMax;  // false for NaN
}

// The first singular value of a dense scan that comes out wrong: evenly over the whole range, finer
// around 1, and by powers of ten towards 0, where every schedule is steepest.
std::optional<double> offender(std::span<const NewtonSchulzStep> coefficients) {
  constexpr int kPoints = 100000;
  const auto scan = [&](double low, double high) -> std::optional<double> {
    for (int i = 1; i <= kPoints; ++i) {
      const double sigma = low + (high - low) * i / kPoints;
      if (!allowed(map_singular_value(coefficients, sigma))) {
        return sigma;
      }
    }
    return std::nullopt;
  };
  // 1 itself first: what a rank-1 direction has.
  for (const auto& [low, high] : std::initializer_list<std::pair<double, double>>{
           {1.0 - 1e-9, 1.0},
           {0.0, 1.0},
           {1.0, kSigmaMax},
           {0.0, 1e-2},
           {0.0, 1e-4},
           {0.0, 1e-6}}) {
    if (const auto found = scan(low, high)) {
      return found;
    }
  }
  return std::nullopt;
}

std::string number(double value) {
  return general(value, 6);
}

// Why a published set that needs another normalisation is not on offer; null for other names.
const char* refusal(const std::string& name) {
  if (name == "aol") {
    return "it is meant for almost-orthogonal preconditioning; after Frobenius normalisation it "
           "negates singular values above 0.8837, so a dominant direction would be stepped along "
           "backwards";
  }
  if (name == "cans") {
    return "it ends exactly at 1: a singular value of 1.00001, which a rounded norm can produce, "
           "grows without bound";
  }
  if (name == "cubic5") {
    return "its sign flips at 1.0035, which a norm rounded down in bf16 can produce, so a rank-1 "
           "direction could be stepped along backwards";
  }
  return nullptr;
}

}  // namespace

std::vector<NewtonSchulzStep> newton_schulz_coefficients(const MuonOptions& options) {
  std::vector<NewtonSchulzStep> table(
      static_cast<std::size_t>(std::max(options.newton_schulz_steps, 0)));
  for (std::size_t step = 0; step < table.size(); ++step) {
    table[step] = coefficients_of(options, step);
  }
  return table;
}

double map_singular_value(std::span<const NewtonSchulzStep> coefficients, double sigma) {
  for (const NewtonSchulzStep& step : coefficients) {
    sigma = map_once(step, sigma);
  }
  return sigma;
}

Status check_coefficients(std::span<const NewtonSchulzStep> coefficients) {
  // The image of an interval under a continuous map is an interval, so following its ends judges
  // every singular value; the scan only finds one to name.
  Interval range{0, kSigmaMax};
  for (const NewtonSchulzStep& step : coefficients) {
    range = image(step, range);
  }
  if (allowed(range.low) && allowed(range.high)) {
    return {};
  }
  const std::optional<double> sigma = offender(coefficients);
  const double out = sigma ? map_singular_value(coefficients, *sigma)
                           : (allowed(range.low) ? range.high : range.low);
  return invalid_argument(
      "the Newton-Schulz coefficients turn " +
      (sigma ? "a singular value of " + number(*sigma) : std::string{"some singular value"}) +
      " into " + number(out) + "; after Frobenius normalisation every value up to " +
      number(kSigmaMax) + " must come out in [0, " + number(kOutMax) +
      "]: use keller, you, polar_express, deepseek_v4 or classic_cubic");
}

const char* to_string(NewtonSchulzSet set) {
  switch (set) {
    case NewtonSchulzSet::kKeller:
      return "keller";
    case NewtonSchulzSet::kYou:
      return "you";
    case NewtonSchulzSet::kPolarExpress:
      return "polar_express";
    case NewtonSchulzSet::kClassicCubic:
      return "classic_cubic";
    case NewtonSchulzSet::kDeepSeekV4:
      return "deepseek_v4";
    case NewtonSchulzSet::kCustom:
      return "custom";
  }
  return "unknown";
}

Expected<NewtonSchulzSet> parse_newton_schulz_set(const std::string& name) {
  for (const NewtonSchulzSet set :
       {NewtonSchulzSet::kKeller,
        NewtonSchulzSet::kYou,
        NewtonSchulzSet::kPolarExpress,
        NewtonSchulzSet::kClassicCubic,
        NewtonSchulzSet::kDeepSeekV4,
        NewtonSchulzSet::kCustom}) {
    if (name == to_string(set)) {
      return set;
    }
  }
  if (const char* reason = refusal(name); reason != nullptr) {
    return invalid_argument("Newton-Schulz set '" + name + "' is refused: " + reason);
  }
  return invalid_argument(
      "unknown Newton-Schulz set '" + name +
      "'; use keller, you, polar_express, deepseek_v4, classic_cubic or custom");
}

}  // namespace muster::optimizer

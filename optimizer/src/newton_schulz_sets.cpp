#include <muster/optimizer/newton_schulz_sets.h>

#include <algorithm>
#include <cstddef>

namespace muster::optimizer {
namespace {

using Triple = std::array<double, 3>;

constexpr Triple kKeller{3.4445, -4.7750, 2.0315};
constexpr Triple kClassicCubic{1.5, -0.5, 0.0};
constexpr std::array<Triple, 5> kYou{
    {{4.0848, -6.8946, 2.9270},
     {3.9505, -6.3029, 2.6377},
     {3.7418, -5.5913, 2.3037},
     {2.8769, -3.1427, 1.2046},
     {2.8366, -3.0525, 1.2012}}};
// arXiv 2505.16932, lower bound 1e-3, before the safety factor. The last one is the limit and
// repeats.
constexpr std::array<Triple, 8> kPolarExpress{
    {{8.28721201814563, -23.595886519098837, 17.300387312530933},
     {4.107059111542203, -2.9478499167379106, 0.5448431082926601},
     {3.9486908534822946, -2.908902115952949, 0.5518191394370137},
     {3.3184196573706015, -2.488488024314874, 0.51004894012372},
     {2.300652019954817, -1.6689039845747493, 0.4188073119525673},
     {1.891301407787398, -1.2679958271945868, 0.37680408948524835},
     {1.8750014808534479, -1.2500016453999487, 0.3750001645474248},
     {1.875, -1.25, 0.375}}};
constexpr double kPolarExpressSafety = 1.01;

Triple damped(const Triple& raw) {
  const double s = kPolarExpressSafety;
  return {raw[0] / s, raw[1] / (s * s * s), raw[2] / (s * s * s * s * s)};
}

Triple coefficients_of(NewtonSchulzSet set, std::size_t step) {
  switch (set) {
    case NewtonSchulzSet::kKeller:
      return kKeller;
    case NewtonSchulzSet::kYou:
      return kYou[step % kYou.size()];
    case NewtonSchulzSet::kPolarExpress:
      return step + 1 < kPolarExpress.size() ? damped(kPolarExpress[step]) : kPolarExpress.back();
    case NewtonSchulzSet::kClassicCubic:
      return kClassicCubic;
  }
  return kKeller;
}

}  // namespace

std::vector<std::array<double, 3>> newton_schulz_coefficients(NewtonSchulzSet set, int steps) {
  std::vector<Triple> table(static_cast<std::size_t>(std::max(steps, 1)));
  for (std::size_t step = 0; step < table.size(); ++step) {
    table[step] = coefficients_of(set, step);
  }
  return table;
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
  }
  return "unknown";
}

Expected<NewtonSchulzSet> parse_newton_schulz_set(const std::string& name) {
  for (const NewtonSchulzSet set :
       {NewtonSchulzSet::kKeller,
        NewtonSchulzSet::kYou,
        NewtonSchulzSet::kPolarExpress,
        NewtonSchulzSet::kClassicCubic}) {
    if (name == to_string(set)) {
      return set;
    }
  }
  return invalid_argument(
      "unknown Newton-Schulz set '" + name + "'; use keller, you, polar_express or classic_cubic");
}

}  // namespace muster::optimizer

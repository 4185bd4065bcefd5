// SPDX-License-Identifier: Apache-2.0
// Names of the forms and their operation counts.
#include <muster/kernels/newton_schulz.h>

#include <algorithm>

namespace muster::kernels {

const char* to_string(NewtonSchulzForm form) {
  switch (form) {
    case NewtonSchulzForm::kStandard:
      return "standard";
    case NewtonSchulzForm::kSymmetric:
      return "symmetric";
    case NewtonSchulzForm::kGram:
      return "gram";
    case NewtonSchulzForm::kAuto:
      break;
  }
  return "auto";
}

double newton_schulz_flops(
    NewtonSchulzForm form, std::int64_t rows, std::int64_t cols, int steps, int restarts) {
  const auto m = static_cast<double>(std::min(rows, cols));
  const auto n = static_cast<double>(std::max(rows, cols));
  switch (form) {
    case NewtonSchulzForm::kStandard:
      return steps * (4 * m * m * n + 2 * m * m * m);
    case NewtonSchulzForm::kGram: {
      // Per stretch between restarts of L steps: XX^T and QX; L times Z, L - 1 times Q and twice R.
      const double stretches = restarts + 1;
      return stretches * 3 * m * m * n + (4 * steps - 3 * stretches) * m * m * m;
    }
    case NewtonSchulzForm::kSymmetric:
    case NewtonSchulzForm::kAuto:
      break;
  }
  return steps * (3 * m * m * n + m * m * m);
}

}  // namespace muster::kernels

// SPDX-License-Identifier: Apache-2.0
// A direct step is a stretch of one: R = XX^T, Q = aI + bR + cR^2, X <- QX.
//
// Factors are kept as M + sI with trace(M) = 0, and only M is an operand: the terms with s are
// added in fp32 from matrices that no product has rounded. In bf16 this keeps rounding noise out of
// the directions where X is 0; it enters in second order only (docs/concepts/kernels.md).
#include "kernels/newton_schulz/cpu/engine.h"

#include <muster/common/random.h>
#include <muster/kernels/statistics.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace muster::kernels {

namespace {

// Factor by which rounding may carry a correct matrix beyond the range of the exact polynomial.
constexpr double kRangeSlack = 1.1;

std::int64_t stride_of(std::int64_t cols) {
  constexpr std::int64_t kLine = 16;  // floats of a cache line
  constexpr std::int64_t kSmall = 128;
  const std::int64_t rounded = (cols + kLine - 1) / kLine * kLine;
  return cols < kSmall ? rounded : rounded + kLine;
}

}  // namespace

// Settings that all products of a run share.
struct NewtonSchulzEngine::Factors {
  DType wide;   // operands of the products with X
  DType small;  // and of those between matrices of the short side
  bool half;    // symmetric results by their lower triangles
  ThreadTeam& team;
};

namespace {

// to = a * b for symmetric [m, m] that commute.
Product square_product(const WorkMatrix& a, const WorkMatrix& b, const WorkMatrix& to) {
  Product product;
  product.m = product.n = product.k = a.rows;
  product.a = {a.data, a.stride, true};  // symmetric: read in the direction that is cheap to pack
  product.b = {b.data, b.stride, false};
  product.c = to.data;
  product.stride = to.stride;
  return product;
}

ProductAddend times(double factor, const WorkMatrix& matrix) {
  return {matrix.data, matrix.stride, static_cast<float>(factor)};
}

// Moves the mean of the diagonal into the shift.
void centre(ShiftedMatrix& matrix) {
  const WorkMatrix& rest = matrix.rest;
  double trace = 0;
  for (std::int64_t i = 0; i < rest.rows; ++i) {
    trace += static_cast<double>(rest.row(i)[i]);
  }
  const double mean = trace / static_cast<double>(rest.rows);
  for (std::int64_t i = 0; i < rest.rows; ++i) {
    rest.row(i)[i] = static_cast<float>(static_cast<double>(rest.row(i)[i]) - mean);
  }
  matrix.shift += mean;
}

}  // namespace

void NewtonSchulzEngine::load(
    std::span<const float> x, std::int64_t rows, std::int64_t cols, double factor) {
  const bool tall = rows > cols;
  const std::int64_t m = std::min(rows, cols);
  const std::int64_t n = std::max(rows, cols);
  const std::int64_t wide = m * stride_of(n);
  const std::int64_t square = m * stride_of(m);
  float* memory = memory_.reserve(2 * wide + 4 * square);
  x_ = {memory, m, n, stride_of(n)};
  next_ = {memory + wide, m, n, stride_of(n)};
  memory += 2 * wide;
  for (ShiftedMatrix* matrix : {&r_, &z_, &q_, &spare_}) {
    *matrix = {{memory, m, m, stride_of(m)}, 0};
    memory += square;
  }
  const GemmTable& table = products_.table();
  if (tall) {
    table.transpose(x.data(), cols, rows, cols, x_.data, x_.stride);
  }
  for (std::int64_t i = 0; i < m; ++i) {
    table.scale(tall ? x_.row(i) : x.data() + i * n, n, factor, x_.row(i));
  }
}

void NewtonSchulzEngine::store(std::span<float> x, std::int64_t rows, std::int64_t cols) const {
  if (rows > cols) {
    products_.table().transpose(x_.data, x_.stride, cols, rows, x.data(), cols);
    return;
  }
  for (std::int64_t i = 0; i < rows; ++i) {
    std::copy_n(x_.row(i), cols, x.data() + i * cols);
  }
}

// r = x x^T, and the effective rank from the first one.
void NewtonSchulzEngine::gram(const Factors& factors) {
  const WorkMatrix& rest = r_.rest;
  Product product;
  product.m = product.n = x_.rows;
  product.k = x_.cols;
  product.a = {x_.data, x_.stride, false};
  product.b = {x_.data, x_.stride, true};
  product.type = factors.wide;
  product.symmetric = factors.half;
  product.c = rest.data;
  product.stride = rest.stride;
  products_.multiply(product, factors.team);
  r_.shift = 0;
  if (effective_rank_ == 0) {
    double squares = 0;
    for (std::int64_t i = 0; i < rest.rows; ++i) {
      squares += norm_and_nonfinite({rest.row(i), static_cast<std::size_t>(rest.cols)}).squared_sum;
    }
    // |X|_F is 1.
    effective_rank_ =
        squares > 0 ? std::clamp(1 / squares, 1.0, static_cast<double>(x_.rows)) : 1.0;
  }
  centre(r_);
}

// to = bR + cR^2
void NewtonSchulzEngine::square_polynomial(
    const Factors& factors, const NewtonSchulzStep& step, ShiftedMatrix& to) {
  const WorkMatrix& r = r_.rest;
  const double shift = r_.shift;
  const double linear = step[1] + 2 * step[2] * shift;
  if (step[2] == 0) {
    for (std::int64_t i = 0; i < r.rows; ++i) {
      products_.table().scale(r.row(i), r.cols, linear, to.rest.row(i));
    }
  } else {
    Product product = square_product(r, r, to.rest);
    product.type = factors.small;
    product.symmetric = factors.half;
    product.alpha = static_cast<float>(step[2]);
    product.first = times(linear, r);
    products_.multiply(product, factors.team);
  }
  to.shift = shift * (step[1] + shift * step[2]);
  centre(to);
}

// to = a (b + more * I)
void NewtonSchulzEngine::multiply(
    const Factors& factors,
    const ShiftedMatrix& a,
    const ShiftedMatrix& b,
    double more,
    ShiftedMatrix& to) {
  const double shift = b.shift + more;
  Product product = square_product(a.rest, b.rest, to.rest);
  product.type = factors.small;
  product.symmetric = factors.half;
  product.first = times(shift, a.rest);
  product.second = times(a.shift, b.rest);
  products_.multiply(product, factors.team);
  to.shift = a.shift * shift;
  centre(to);
}

// x = polynomial x
void NewtonSchulzEngine::apply(const Factors& factors, const ShiftedMatrix& polynomial) {
  Product product;
  product.m = product.k = x_.rows;
  product.n = x_.cols;
  product.a = {polynomial.rest.data, polynomial.rest.stride, true};
  product.b = {x_.data, x_.stride, false};
  product.type = factors.wide;
  product.first = times(polynomial.shift, x_);
  product.c = next_.data;
  product.stride = next_.stride;
  products_.multiply(product, factors.team);
  std::swap(x_, next_);
}

// R is a Gram matrix: no element of its diagonal is negative, none above the largest sigma^2.
bool NewtonSchulzEngine::diagonal_in_range(double largest) const {
  constexpr double kBelowZero = 0.05;
  const double above = kRangeSlack * kRangeSlack * largest * largest;
  for (std::int64_t i = 0; i < r_.rest.rows; ++i) {
    const double value = static_cast<double>(r_.rest.row(i)[i]) + r_.shift;
    if (!(value >= -kBelowZero && value <= above)) {  // NaN too
      return false;
    }
  }
  return true;
}

double NewtonSchulzEngine::squared_norm() const {
  double sum = 0;
  for (std::int64_t i = 0; i < x_.rows; ++i) {
    const NormAndNonfinite row = norm_and_nonfinite({x_.row(i), static_cast<std::size_t>(x_.cols)});
    // NOLINTNEXTLINE(bugprone-narrowing-conversions): both are doubles
    sum += row.nonfinite_count > 0 ? std::numeric_limits<double>::infinity() : row.squared_sum;
  }
  return sum;
}

bool NewtonSchulzEngine::stretch(
    const NewtonSchulzPlan& plan, std::size_t begin, std::size_t end, ThreadTeam& team) {
  const auto type = [](bool rounds) { return rounds ? DType::kBFloat16 : DType::kFloat32; };
  const bool half = plan.form != NewtonSchulzForm::kStandard;
  const DType wide = type(rounds_wide(plan, begin));
  gram({wide, wide, half, team});
  for (std::size_t step = begin; step < end; ++step) {
    if (!diagonal_in_range(plan.envelope[step])) {
      return false;
    }
    const Factors factors{wide, type(rounds_small(plan, begin, step, end)), half, team};
    const double a = plan.coefficients[step][0];
    square_polynomial(factors, plan.coefficients[step], z_);
    if (step + 1 < end) {  // R <- (Z + a I) R (Z + a I)
      multiply(factors, r_, z_, a, spare_);
      multiply(factors, spare_, z_, a, r_);
    }
    if (step == begin) {
      std::swap(q_, z_);
      q_.shift += a;
    } else {
      multiply(factors, q_, z_, a, spare_);
      std::swap(q_, spare_);
    }
  }
  apply({wide, wide, half, team}, q_);
  return true;
}

bool NewtonSchulzEngine::iterate(const NewtonSchulzPlan& plan, ThreadTeam& team) {
  effective_rank_ = 0;
  for (const auto& [begin, end] : stretches_of(plan)) {
    if (!stretch(plan, begin, end, team)) {
      return false;
    }
  }
  const double largest = kRangeSlack * plan.envelope.back();
  return squared_norm() <= largest * largest * static_cast<double>(x_.rows);
}

Probes NewtonSchulzEngine::probe() {
  constexpr std::uint64_t kSeed = 0x6f7274686f;
  constexpr auto kCount = static_cast<std::size_t>(kProbes);
  const GemmTable& table = products_.table();
  float* y = probes_.reserve(kProbes * x_.cols);
  std::fill_n(y, kProbes * x_.cols, 0.0F);
  const auto signs_of = [](std::int64_t row) {
    const auto block = philox(kSeed, 0, static_cast<std::uint64_t>(row));
    std::array<float, kCount> signs{};
    std::transform(block.begin(), block.end(), signs.begin(), [](std::uint32_t bits) {
      return (bits & 1U) != 0 ? 1.0F : -1.0F;
    });
    return signs;
  };
  for (std::int64_t i = 0; i < x_.rows; ++i) {
    table.probe_add(x_.row(i), x_.cols, signs_of(i).data(), y);
  }
  double error = 0;
  std::array<double, kCount> squares{};
  for (std::int64_t i = 0; i < x_.rows; ++i) {
    const auto signs = signs_of(i);
    std::array<float, kCount> dots{};
    table.probe_dot(x_.row(i), x_.cols, y, dots.data());
    for (std::size_t p = 0; p < kCount; ++p) {
      const auto dot = static_cast<double>(dots[p]);
      const double difference = dot - static_cast<double>(signs[p]);
      error += difference * difference;
      squares[p] += dot * dot;
    }
  }
  Probes probes;
  probes.orthogonality_error = std::sqrt(error / static_cast<double>(kProbes * x_.rows));
  for (std::size_t p = 0; p < kCount; ++p) {
    const float* first = y + static_cast<std::int64_t>(p) * x_.cols;
    const double below = norm_and_nonfinite({first, static_cast<std::size_t>(x_.cols)}).squared_sum;
    const double ratio = below > 0 ? std::sqrt(squares[p] / below) : 0.0;
    probes.largest = ratio <= probes.largest ? probes.largest : ratio;  // NaN is kept
  }
  return probes;
}

NewtonSchulzReport NewtonSchulzEngine::run(
    std::span<float> x,
    std::int64_t rows,
    std::int64_t cols,
    const NewtonSchulzPlan& plan,
    ThreadTeam& team) {
  NewtonSchulzReport report;
  const NormAndNonfinite norm = norm_and_nonfinite(x);
  report.input_norm = std::sqrt(norm.squared_sum);
  if (norm.nonfinite_count > 0) {
    report.nonfinite = true;
    std::fill(x.begin(), x.end(), std::numeric_limits<float>::quiet_NaN());
    return report;
  }
  if (norm.squared_sum == 0) {
    return report;
  }
  load(x, rows, cols, 1 / report.input_norm);
  bool sane = iterate(plan, team);
  const bool risky = plan.precision == DType::kBFloat16 || plan.form == NewtonSchulzForm::kGram;
  Probes probes;
  if (sane && (risky || plan.diagnostics)) {
    probes = probe();
  }
  if (risky && !(sane && probes.largest <= kRangeSlack * plan.envelope.back())) {
    NewtonSchulzPlan safe = plan;
    safe.precision = DType::kFloat32;
    safe.form = NewtonSchulzForm::kSymmetric;
    safe.restarts.clear();
    load(x, rows, cols, 1 / report.input_norm);
    sane = iterate(safe, team);
    report.recomputed = true;
    if (plan.diagnostics) {
      probes = probe();
    }
  }
  if (plan.diagnostics) {
    if (plan.coefficients.empty()) {
      gram({DType::kFloat32, DType::kFloat32, true, team});
    }
    report.effective_rank = effective_rank_;
    report.orthogonality_error = probes.orthogonality_error;
  }
  report.nonfinite = !sane;
  if (sane) {
    store(x, rows, cols);
  } else {  // x_ is half done, finite or not
    std::fill(x.begin(), x.end(), std::numeric_limits<float>::quiet_NaN());
  }
  return report;
}

}  // namespace muster::kernels

// Every linear term is added in fp32 from a factor that no product has rounded: X <- aX + ZX and
// not (aI + Z)X. In bf16 this keeps rounding noise out of the directions where X is 0; it enters in
// second order only (docs/kernels.md).
#include "cpu/newton_schulz_engine.h"

#include <muster/common/random.h>
#include <muster/kernels/optimizer_kernels.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace muster::kernels {

namespace {

// How far beyond the exact polynomial's range rounding may carry a matrix that is still right.
constexpr double kRangeSlack = 1.1;

std::int64_t stride_of(std::int64_t cols) {
  constexpr std::int64_t kLine = 16;  // floats of a cache line
  constexpr std::int64_t kSmall = 128;
  const std::int64_t rounded = (cols + kLine - 1) / kLine * kLine;
  return cols < kSmall ? rounded : rounded + kLine;
}

}  // namespace

// What all products of a run share.
struct NewtonSchulzEngine::Factors {
  PanelType type;
  bool half;  // symmetric results by their lower triangles
  ThreadTeam& team;
};

namespace {

PanelType panel_type(MatrixPrecision precision) {
  return precision == MatrixPrecision::kBFloat16 ? PanelType::kBFloat16 : PanelType::kFloat32;
}

// to = a * b + first + second for symmetric [m, m] that commute.
Product square_product(
    const WorkMatrix& like, const float* a, const float* b, float* to, PanelType type, bool half) {
  Product product;
  product.m = product.n = product.k = like.rows;
  product.a = {a, like.stride, true};  // symmetric: read in the direction that is cheap to pack
  product.b = {b, like.stride, false};
  product.type = type;
  product.symmetric = half;
  product.c = to;
  product.stride = like.stride;
  return product;
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
  for (WorkMatrix* matrix : {&r_, &z_, &q_, &spare_}) {
    *matrix = {memory, m, m, stride_of(m)};
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
  Product product;
  product.m = product.n = x_.rows;
  product.k = x_.cols;
  product.a = {x_.data, x_.stride, false};
  product.b = {x_.data, x_.stride, true};
  product.type = factors.type;
  product.symmetric = factors.half;
  product.c = r_.data;
  product.stride = r_.stride;
  products_.multiply(product, factors.team);
  if (effective_rank_ == 0) {
    double squares = 0;
    for (std::int64_t i = 0; i < r_.rows; ++i) {
      squares += norm_and_nonfinite({r_.row(i), static_cast<std::size_t>(r_.cols)}).squared_sum;
    }
    // |X|_F is 1.
    effective_rank_ =
        squares > 0 ? std::clamp(1 / squares, 1.0, static_cast<double>(x_.rows)) : 1.0;
  }
}

// to = bR + cR^2
void NewtonSchulzEngine::square_polynomial(
    const Factors& factors, const NewtonSchulzStep& step, float* to) {
  if (step[2] == 0) {
    for (std::int64_t i = 0; i < r_.rows; ++i) {
      products_.table().scale(r_.row(i), r_.cols, step[1], to + i * r_.stride);
    }
    return;
  }
  Product product = square_product(r_, r_.data, r_.data, to, factors.type, factors.half);
  product.alpha = static_cast<float>(step[2]);
  product.first = {r_.data, r_.stride, static_cast<float>(step[1])};
  products_.multiply(product, factors.team);
}

// x = identity * x + polynomial * x
void NewtonSchulzEngine::apply(const Factors& factors, const float* polynomial, double identity) {
  Product product;
  product.m = product.k = x_.rows;
  product.n = x_.cols;
  product.a = {polynomial, r_.stride, true};
  product.b = {x_.data, x_.stride, false};
  product.type = factors.type;
  product.first = {x_.data, x_.stride, static_cast<float>(identity)};
  product.c = next_.data;
  product.stride = next_.stride;
  products_.multiply(product, factors.team);
  std::swap(x_, next_);
}

// R is a Gram matrix: no element of its diagonal is negative, none above the largest sigma^2.
bool NewtonSchulzEngine::diagonal_in_range(double largest) const {
  constexpr double kBelowZero = 0.05;
  const double above = kRangeSlack * kRangeSlack * largest * largest;
  for (std::int64_t i = 0; i < r_.rows; ++i) {
    const auto value = static_cast<double>(r_.row(i)[i]);
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
    sum += row.nonfinite_count > 0 ? std::numeric_limits<double>::infinity() : row.squared_sum;
  }
  return sum;
}

bool NewtonSchulzEngine::step_direct(
    const NewtonSchulzPlan& plan, std::size_t step, ThreadTeam& team) {
  const Factors factors{panel_type(plan.precision), plan.form != NewtonSchulzForm::kStandard, team};
  gram(factors);
  if (!diagonal_in_range(plan.envelope[step])) {
    return false;
  }
  square_polynomial(factors, plan.coefficients[step], z_.data);
  apply(factors, z_.data, plan.coefficients[step][0]);
  return true;
}

// Steps begin + 1 ... end on the small side. Q is kept as q + alpha I.
bool NewtonSchulzEngine::stretch(
    const NewtonSchulzPlan& plan, std::size_t begin, std::size_t end, ThreadTeam& team) {
  const Factors factors{panel_type(plan.precision), true, team};
  gram(factors);
  double alpha = 1;
  for (std::size_t step = begin; step < end; ++step) {
    if (!diagonal_in_range(plan.envelope[step])) {
      return false;
    }
    const double a = plan.coefficients[step][0];
    square_polynomial(factors, plan.coefficients[step], z_.data);
    const float* z = z_.data;
    if (step == begin) {
      std::swap(q_, z_);  // q is z, which lies in q_ now
      z = q_.data;
    } else {
      // (q + alpha I)(z + a I) = q z + a q + alpha z + alpha a I
      Product product = square_product(r_, q_.data, z, spare_.data, factors.type, true);
      product.first = {q_.data, q_.stride, static_cast<float>(a)};
      product.second = {z, z_.stride, static_cast<float>(alpha)};
      products_.multiply(product, team);
      std::swap(q_, spare_);
    }
    alpha *= a;
    if (step + 1 < end) {
      // R <- (z + a I) R (z + a I)
      Product product = square_product(r_, r_.data, z, spare_.data, factors.type, true);
      product.first = {r_.data, r_.stride, static_cast<float>(a)};
      products_.multiply(product, team);
      product = square_product(r_, z, spare_.data, r_.data, factors.type, true);
      product.first = {spare_.data, spare_.stride, static_cast<float>(a)};
      products_.multiply(product, team);
    }
  }
  apply(factors, q_.data, alpha);
  return true;
}

bool NewtonSchulzEngine::iterate(const NewtonSchulzPlan& plan, ThreadTeam& team) {
  const std::size_t steps = plan.coefficients.size();
  effective_rank_ = 0;
  if (plan.form != NewtonSchulzForm::kGram) {
    for (std::size_t step = 0; step < steps; ++step) {
      if (!step_direct(plan, step, team)) {
        return false;
      }
    }
  } else {
    std::size_t begin = 0;
    for (std::size_t i = 0; begin < steps; ++i) {
      const std::size_t end =
          i < plan.restarts.size() ? static_cast<std::size_t>(plan.restarts[i]) : steps;
      if (!stretch(plan, begin, end, team)) {
        return false;
      }
      begin = end;
    }
  }
  const double largest = kRangeSlack * plan.envelope[steps];
  return squared_norm() <= largest * largest * static_cast<double>(x_.rows);
}

// E |(XX^T - I) z|^2 = |XX^T - I|_F^2 for random signs z.
double NewtonSchulzEngine::orthogonality_error() {
  constexpr std::uint64_t kSeed = 0x6f7274686f;
  const GemmTable& table = products_.table();
  const auto probes = static_cast<std::size_t>(kProbes);
  float* y = probes_.reserve(kProbes * x_.cols);
  std::fill_n(y, kProbes * x_.cols, 0.0F);
  const auto signs_of = [](std::int64_t row, float* signs) {
    const auto block = philox(kSeed, 0, static_cast<std::uint64_t>(row));
    for (std::size_t p = 0; p < static_cast<std::size_t>(kProbes); ++p) {
      signs[p] = (block[p] & 1U) != 0 ? 1.0F : -1.0F;
    }
  };
  std::array<float, kProbes> signs{};
  std::array<float, kProbes> dots{};
  for (std::int64_t i = 0; i < x_.rows; ++i) {
    signs_of(i, signs.data());
    table.probe_add(x_.row(i), x_.cols, signs.data(), y);
  }
  double sum = 0;
  for (std::int64_t i = 0; i < x_.rows; ++i) {
    signs_of(i, signs.data());
    table.probe_dot(x_.row(i), x_.cols, y, dots.data());
    for (std::size_t p = 0; p < probes; ++p) {
      const double difference = static_cast<double>(dots[p]) - static_cast<double>(signs[p]);
      sum += difference * difference;
    }
  }
  return std::sqrt(sum / static_cast<double>(kProbes * x_.rows));
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
  if (!sane &&
      (plan.precision == MatrixPrecision::kBFloat16 || plan.form == NewtonSchulzForm::kGram)) {
    NewtonSchulzPlan safe = plan;
    safe.precision = MatrixPrecision::kFloat32;
    safe.form = NewtonSchulzForm::kSymmetric;
    safe.restarts.clear();
    load(x, rows, cols, 1 / report.input_norm);
    sane = iterate(safe, team);
    report.recomputed = true;
  }
  report.nonfinite = !sane && !std::isfinite(squared_norm());
  if (plan.diagnostics) {
    if (plan.coefficients.empty()) {
      gram({PanelType::kFloat32, true, team});
    }
    report.effective_rank = effective_rank_;
    report.orthogonality_error = orthogonality_error();
  }
  store(x, rows, cols);
  return report;
}

}  // namespace muster::kernels

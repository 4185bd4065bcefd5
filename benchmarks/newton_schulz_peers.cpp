// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/newton_schulz_peers.h"

#include "kernels/gemm/cpu/packed.h"

#include <muster/common/check.h>

#include <cblas.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <utility>
#include <vector>

#if defined(MUSTER_BENCH_ONEDNN)
#include <dnnl.hpp>
extern "C" {
[[gnu::weak]] void omp_set_num_threads(int threads);
}
#endif

namespace muster::bench {

namespace {

constexpr auto kA = static_cast<float>(kKellerStep[0]);
constexpr auto kB = static_cast<float>(kKellerStep[1]);
constexpr auto kC = static_cast<float>(kKellerStep[2]);

double inverse_norm(std::span<const float> x) {
  double sum = 0;
  for (const float value : x) {
    sum += static_cast<double>(value) * static_cast<double>(value);
  }
  return 1 / std::sqrt(sum);
}

float scaled(float value, double factor) {
  return static_cast<float>(static_cast<double>(value) * factor);
}

void openblas_product(const PlainProduct& p) {
  cblas_sgemm(
      CblasRowMajor,
      CblasNoTrans,
      p.is_b_transposed ? CblasTrans : CblasNoTrans,
      p.m,
      p.n,
      p.k,
      p.alpha,
      p.a,
      p.k,
      p.b,
      p.is_b_transposed ? p.k : p.n,
      p.beta,
      p.c,
      p.n);
}

#if defined(MUSTER_BENCH_ONEDNN)
void onednn_product(const PlainProduct& p) {
  const dnnl::status status = dnnl::sgemm(
      'N',
      p.is_b_transposed ? 'T' : 'N',
      p.m,
      p.n,
      p.k,
      p.alpha,
      p.a,
      p.k,
      p.b,
      p.is_b_transposed ? p.k : p.n,
      p.beta,
      p.c,
      p.n);
  MUSTER_CHECK(status == dnnl::status::success, "oneDNN refused a product");
}
#endif

class Float32 : public StandardQuintic {
 public:
  Float32(const Float32Library& library, std::int64_t rows, std::int64_t cols)
      : library_(library),
        m_(static_cast<int>(rows)),
        n_(static_cast<int>(cols)),
        x_(static_cast<std::size_t>(rows * cols)),
        next_(x_.size()),
        gram_(static_cast<std::size_t>(rows * rows)),
        polynomial_(gram_.size()) {}

  void run(std::span<float> x) override {
    const double factor = inverse_norm(x);
    std::transform(x.begin(), x.end(), x_.begin(), [=](float v) { return scaled(v, factor); });
    for (int step = 0; step < kSteps; ++step) {
      library_.multiply({m_, m_, n_, 1, x_.data(), x_.data(), true, 0, gram_.data()});
      polynomial_ = gram_;
      library_.multiply(
          {m_, m_, m_, kC, gram_.data(), gram_.data(), false, kB, polynomial_.data()});
      next_ = x_;
      library_.multiply({m_, n_, m_, 1, polynomial_.data(), x_.data(), false, kA, next_.data()});
      std::swap(x_, next_);
    }
    std::copy(x_.begin(), x_.end(), x.begin());
  }

  [[nodiscard]] std::string products() const override { return library_.name; }

 private:
  Float32Library library_;
  int m_;
  int n_;
  std::vector<float> x_;
  std::vector<float> next_;
  std::vector<float> gram_;
  std::vector<float> polynomial_;
};

#if defined(MUSTER_BENCH_ONEDNN)

std::uint16_t to_bfloat16(float value) {
  std::uint32_t bits = 0;
  std::memcpy(&bits, &value, sizeof(bits));
  return static_cast<std::uint16_t>((bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16);
}

float to_float(std::uint16_t value) {
  const std::uint32_t bits = static_cast<std::uint32_t>(value) << 16;
  float result = 0;
  std::memcpy(&result, &bits, sizeof(result));
  return result;
}

class BFloat16 : public StandardQuintic {
 public:
  using Memory = dnnl::memory;

  BFloat16(std::int64_t rows, std::int64_t cols)
      : engine_(dnnl::engine::kind::cpu, 0),
        stream_(engine_),
        x_(matrix(rows, cols)),
        next_(matrix(rows, cols)),
        gram_(matrix(rows, rows)),
        polynomial_(matrix(rows, rows)),
        transposed_({cols, rows}, Memory::data_type::bf16, Memory::dims{1, cols}),
        form_gram_(product(x_.get_desc(), transposed_, gram_.get_desc(), 1, 0)),
        form_polynomial_(
            product(gram_.get_desc(), gram_.get_desc(), polynomial_.get_desc(), kC, kB)),
        apply_(product(polynomial_.get_desc(), x_.get_desc(), next_.get_desc(), 1, kA)) {
    if (omp_set_num_threads != nullptr) {
      omp_set_num_threads(1);
    }
  }

  void run(std::span<float> x) override {
    const double factor = inverse_norm(x);
    std::transform(
        x.begin(), x.end(), bits(x_), [=](float v) { return to_bfloat16(scaled(v, factor)); });
    for (int step = 0; step < kSteps; ++step) {
      const Memory right(transposed_, engine_, x_.get_data_handle());
      execute(form_gram_, x_, right, gram_);
      copy(gram_, polynomial_);
      execute(form_polynomial_, gram_, gram_, polynomial_);
      copy(x_, next_);
      execute(apply_, polynomial_, x_, next_);
      std::swap(x_, next_);
    }
    stream_.wait();
    std::transform(bits(x_), bits(x_) + x.size(), x.begin(), to_float);
  }

  [[nodiscard]] std::string products() const override { return "oneDNN bf16 matmul"; }

 private:
  static std::uint16_t* bits(const Memory& memory) {
    return static_cast<std::uint16_t*>(memory.get_data_handle());
  }

  [[nodiscard]] Memory matrix(std::int64_t rows, std::int64_t cols) const {
    return Memory({{rows, cols}, Memory::data_type::bf16, Memory::format_tag::ab}, engine_);
  }

  // to = scale * left * right + keep * to
  [[nodiscard]] dnnl::matmul product(
      const Memory::desc& left,
      const Memory::desc& right,
      const Memory::desc& to,
      float scale,
      float keep) const {
    dnnl::primitive_attr attributes;
    if (scale != 1) {
      attributes.set_output_scales(0, {scale});
    }
    if (keep != 0) {
      dnnl::post_ops after;
      after.append_sum(keep);
      attributes.set_post_ops(after);
    }
    return dnnl::matmul({{left, right, to}, attributes, engine_});
  }

  void execute(
      const dnnl::matmul& product, const Memory& left, const Memory& right, const Memory& to) {
    product.execute(stream_, {{DNNL_ARG_SRC, left}, {DNNL_ARG_WEIGHTS, right}, {DNNL_ARG_DST, to}});
  }

  static void copy(const Memory& from, const Memory& to) {
    std::memcpy(to.get_data_handle(), from.get_data_handle(), from.get_desc().get_size());
  }

  dnnl::engine engine_;
  dnnl::stream stream_;
  Memory x_;
  Memory next_;
  Memory gram_;
  Memory polynomial_;
  Memory::desc transposed_;  // x as its transpose
  dnnl::matmul form_gram_;
  dnnl::matmul form_polynomial_;
  dnnl::matmul apply_;
};

#else

class BFloat16 : public StandardQuintic {
 public:
  BFloat16(std::int64_t rows, std::int64_t cols)
      : m_(rows),
        n_(cols),
        x_(static_cast<std::size_t>(rows * cols)),
        next_(x_.size()),
        gram_(static_cast<std::size_t>(rows * rows)),
        polynomial_(gram_.size()) {}

  void run(std::span<float> x) override {
    const double factor = inverse_norm(x);
    std::transform(x.begin(), x.end(), x_.begin(), [=](float v) { return scaled(v, factor); });
    for (int step = 0; step < kSteps; ++step) {
      multiply(m_, n_, {x_.data(), n_, false}, {x_.data(), n_, true}, gram_, 1, gram_, 0);
      multiply(
          m_, m_, {gram_.data(), m_, false}, {gram_.data(), m_, false}, polynomial_, kC, gram_, kB);
      multiply(n_, m_, {polynomial_.data(), m_, false}, {x_.data(), n_, false}, next_, 1, x_, kA);
      std::swap(x_, next_);
    }
    std::copy(x_.begin(), x_.end(), x.begin());
  }

  [[nodiscard]] std::string products() const override { return "muster's plain bf16 products"; }

 private:
  // to[m, n] = alpha * a[m, k] * b[k, n] + factor * addend; the gram matrix has m columns.
  void multiply(
      std::int64_t n,
      std::int64_t k,
      const kernels::Operand& a,
      const kernels::Operand& b,
      std::vector<float>& to,
      float alpha,
      const std::vector<float>& addend,
      float factor) {
    kernels::Product product;
    product.m = m_;
    product.n = n;
    product.k = k;
    product.a = a;
    product.b = b;
    product.type = DType::kBFloat16;
    product.alpha = alpha;
    if (factor != 0) {
      product.first = {addend.data(), n, factor};
    }
    product.c = to.data();
    product.stride = n;
    scratch_.multiply(product, alone_);
  }

  std::int64_t m_;
  std::int64_t n_;
  std::vector<float> x_;
  std::vector<float> next_;
  std::vector<float> gram_;
  std::vector<float> polynomial_;
  kernels::ProductScratch scratch_;
  kernels::ThreadTeam alone_{1};
};

#endif

}  // namespace

std::vector<Float32Library> float32_libraries() {
  std::vector<Float32Library> libraries{{"OpenBLAS sgemm", openblas_product}};
#if defined(MUSTER_BENCH_ONEDNN)
  if (omp_set_num_threads != nullptr) {
    omp_set_num_threads(1);
  }
  libraries.push_back({"oneDNN sgemm", onednn_product});
#endif
  return libraries;
}

std::unique_ptr<StandardQuintic> standard_float32(
    const Float32Library& library, std::int64_t rows, std::int64_t cols) {
  return std::make_unique<Float32>(library, rows, cols);
}

std::unique_ptr<StandardQuintic> standard_bfloat16(std::int64_t rows, std::int64_t cols) {
  return std::make_unique<BFloat16>(rows, cols);
}

}  // namespace muster::bench

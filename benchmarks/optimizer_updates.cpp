// SPDX-License-Identifier: Apache-2.0
// Claims: the update rules run at the speed of memory, and their statistics cost next to nothing.
//   claim adamw_bandwidth_fraction      bare streaming loop / AdamW, fp32 states
//   claim adam8bit_bandwidth_fraction   bare streaming loop / AdamW, 8-bit states, stochastic codes
//   claim adam8bit_nearest_bandwidth_fraction   the same, nearest codes
//   claim stats_overhead_percent        AdamW, fp32 states, with statistics over without, minus 1
// Method: one thread, 50 M elements, time of the thread's own processor. The bare loop loads and
// stores the same arrays in the same order with one addition (of zero) per store: memcpy or triad
// would be the wrong bound, an update in place is twice as fast as either. Variants take turns
// (harness.h). The fractions are of the update alone; those with statistics are printed above them.
// An argument sets the number of elements: 8192 shows the arithmetic without the memory.
#include "benchmarks/harness.h"

#include <muster/kernels/update_kernels.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <span>
#include <vector>

namespace {

using muster::bench::Series;
using muster::kernels::CodeRounding;
using muster::kernels::StateType;
using muster::kernels::UpdateStep;
using muster::kernels::UpdateTensors;

using Seconds = std::span<const double>;

constexpr std::int64_t kDefaultCount = 50 << 20;

// 64 bytes: one, two or four registers, as the kernels use.
typedef float Floats __attribute__((vector_size(64)));        // NOLINT(modernize-use-using)
typedef std::uint8_t Codes __attribute__((vector_size(16)));  // NOLINT(modernize-use-using)

template <typename V, typename T>
V load(const T* p) {
  V value;
  std::memcpy(&value, p, sizeof(value));
  return value;
}

#if defined(__x86_64__)
#define BENCH_CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define BENCH_CLONES
#endif

struct Arrays {
  explicit Arrays(std::int64_t n)
      : count(n),
        parameter(static_cast<std::size_t>(n), 0.5F),
        gradient(static_cast<std::size_t>(n)),
        first(static_cast<std::size_t>(n), 0),
        second(static_cast<std::size_t>(n), 0),
        direction(static_cast<std::size_t>(n), 0),
        first_codes(static_cast<std::size_t>(n), 127),
        second_codes(static_cast<std::size_t>(n), 0),
        first_absmax(static_cast<std::size_t>(n / 256), 0),
        second_absmax(static_cast<std::size_t>(n / 256), 0) {
    std::uint32_t state = 1;
    for (float& g : gradient) {  // four decades of size
      state = state * 1664525U + 1013904223U;
      const float unit = static_cast<float>(state >> 8U) / 16777216.0F - 0.5F;
      g = unit * unit * unit * 1e-2F;
    }
  }

  std::int64_t count;
  std::vector<float> parameter;
  std::vector<float> gradient;
  std::vector<float> first;
  std::vector<float> second;
  std::vector<float> direction;
  std::vector<std::uint8_t> first_codes;
  std::vector<std::uint8_t> second_codes;
  std::vector<float> first_absmax;
  std::vector<float> second_absmax;
};

// Added by the bare loops, so that the values stay those of an optimizer. The compiler must not
// know.
volatile float g_nothing = 0;  // NOLINT(cppcoreguidelines-avoid-non-const-global-variables)

// 4 loads and 3 stores.
BENCH_CLONES void stream_fp32(float* p, const float* g, float* m, float* v, std::int64_t count) {
  const Floats zero = Floats{} + g_nothing;
  for (std::int64_t i = 0; i + 16 <= count; i += 16) {
    Floats gradient;
    Floats a;
    Floats b;
    Floats c;
    std::memcpy(&gradient, g + i, sizeof(gradient));
    std::memcpy(&a, p + i, sizeof(a));
    std::memcpy(&b, m + i, sizeof(b));
    std::memcpy(&c, v + i, sizeof(c));
    a += gradient * zero;
    b += zero;
    c += zero;
    std::memcpy(p + i, &a, sizeof(a));
    std::memcpy(m + i, &b, sizeof(b));
    std::memcpy(v + i, &c, sizeof(c));
  }
}

// Streams one-byte states in the same way.
BENCH_CLONES void stream_int8(
    float* p, const float* g, std::uint8_t* m, std::uint8_t* v, std::int64_t count) {
  const Floats zero = Floats{} + g_nothing;
  const Codes zero_code = Codes{} + static_cast<std::uint8_t>(g_nothing);
  for (std::int64_t i = 0; i + 16 <= count; i += 16) {
    Floats gradient;
    Floats a;
    Codes b;
    Codes c;
    std::memcpy(&gradient, g + i, sizeof(gradient));
    std::memcpy(&a, p + i, sizeof(a));
    std::memcpy(&b, m + i, sizeof(b));
    std::memcpy(&c, v + i, sizeof(c));
    a += gradient * zero;
    b += zero_code;
    c += zero_code;
    std::memcpy(p + i, &a, sizeof(a));
    std::memcpy(m + i, &b, sizeof(b));
    std::memcpy(v + i, &c, sizeof(c));
  }
}

// 2 loads and 2 stores: momentum and direction of Muon.
BENCH_CLONES void stream_momentum(const float* g, float* m, float* u, std::int64_t count) {
  const Floats zero = Floats{} + g_nothing;
  for (std::int64_t i = 0; i + 16 <= count; i += 16) {
    Floats gradient;
    Floats a;
    std::memcpy(&gradient, g + i, sizeof(gradient));
    std::memcpy(&a, m + i, sizeof(a));
    gradient = gradient * zero + a;
    a += zero;
    std::memcpy(m + i, &a, sizeof(a));
    std::memcpy(u + i, &gradient, sizeof(gradient));
  }
}

UpdateTensors tensors_of(Arrays& arrays, StateType type) {
  UpdateTensors t;
  t.parameter = arrays.parameter.data();
  t.gradient = arrays.gradient.data();
  t.count = arrays.count;
  t.first.type = t.second.type = type;
  t.second.is_signed = false;
  if (type == StateType::kInt8Block) {
    t.first.data = arrays.first_codes.data();
    t.second.data = arrays.second_codes.data();
    t.first.absmax = arrays.first_absmax.data();
    t.second.absmax = arrays.second_absmax.data();
  } else {
    t.first.data = arrays.first.data();
    t.second.data = arrays.second.data();
  }
  return t;
}

// One thread's claims; 8-bit states and Muon's momentum run beside fp32 AdamW.
class Claims {
 public:
  explicit Claims(std::int64_t count) : arrays_(count) {}

  void run() {
    Arrays& a = arrays_;
    float* p = a.parameter.data();
    const float* g = a.gradient.data();
    const auto bare = series_.add("bare loop, fp32", [&a, p, g] {
      stream_fp32(p, g, a.first.data(), a.second.data(), a.count);
    });
    const auto with = add_adamw("AdamW fp32", StateType::kFloat32, true);
    const auto without = add_adamw("AdamW fp32, no statistics", StateType::kFloat32, false);
    const auto bare8 = series_.add("bare loop, int8", [&a, p, g] {
      stream_int8(p, g, a.first_codes.data(), a.second_codes.data(), a.count);
    });
    const auto with8 = add_adamw("AdamW int8", StateType::kInt8Block, true);
    const auto without8 = add_adamw("AdamW int8, no statistics", StateType::kInt8Block, false);
    const auto nearest8 = add_adamw(
        "AdamW int8, nearest codes, no statistics",
        StateType::kInt8Block,
        false,
        CodeRounding::kNearest);
    const auto bare_momentum = series_.add("bare loop, momentum", [&a, g] {
      stream_momentum(g, a.first.data(), a.direction.data(), a.count);
    });
    const auto momentum = add_muon("Muon momentum", true);
    const auto plain_momentum = add_muon("Muon momentum, no statistics", false);
    add_fraction("fraction with statistics, fp32", bare, with, false);
    add_fraction("fraction with statistics, int8", bare8, with8, false);
    add_fraction("fraction of Muon momentum", bare_momentum, momentum, false);
    add_overhead("statistics of Muon momentum, %", momentum, plain_momentum, false);
    add_fraction("adamw_bandwidth_fraction", bare, without, true);
    add_fraction("adam8bit_bandwidth_fraction", bare8, without8, true);
    add_fraction("adam8bit_nearest_bandwidth_fraction", bare8, nearest8, true);
    add_overhead("stats_overhead_percent", with, without, true);
    series_.run();
    std::printf(
        "%lld elements, checksum %g\n%s",
        static_cast<long long>(a.count),
        sink_,
        series_.report().c_str());
  }

 private:
  std::size_t add_adamw(
      const char* name,
      StateType type,
      bool statistics,
      CodeRounding rounding = CodeRounding::kStochastic) {
    return series_.add(name, [this, type, statistics, rounding] {
      const UpdateStep s{
          .learning_rate = 1e-4,
          .weight_decay = 0.1,
          .step = ++step_,
          .statistics = statistics,
          .code_rounding = rounding};
      sink_ += muster::kernels::adamw_update(tensors_of(arrays_, type), s, {}).update_squared_sum;
    });
  }

  std::size_t add_muon(const char* name, bool statistics) {
    return series_.add(name, [this, statistics] {
      const UpdateStep s{.step = ++step_, .statistics = statistics};
      const UpdateTensors t = tensors_of(arrays_, StateType::kFloat32);
      float* direction = arrays_.direction.data();
      sink_ += muster::kernels::muon_momentum_update(t, s, {}, direction).momentum_sum;
    });
  }

  void add_fraction(const char* name, std::size_t above, std::size_t below, bool is_claim) {
    series_.add_figure({.name = name, .tolerance = 0.03, .is_claim = is_claim}, [=](Seconds s) {
      return s[above] / s[below];
    });
  }

  void add_overhead(const char* name, std::size_t with, std::size_t without, bool is_claim) {
    series_.add_figure(
        {.name = name, .tolerance = 2, .is_relative = false, .is_claim = is_claim, .digits = 2},
        [=](Seconds s) { return 100 * (s[with] / s[without] - 1); });
  }

  Arrays arrays_;
  Series series_{"update rules", {.budget_s = 30}, Series::Time::kThread};
  std::int64_t step_{0};
  double sink_{0};
};

}  // namespace

int main(int argc, char** argv) {
  const std::int64_t count = argc > 1 ? std::atoll(argv[1]) / 256 * 256 : kDefaultCount;
  Claims(count).run();
  return 0;
}

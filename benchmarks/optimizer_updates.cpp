// SPDX-License-Identifier: Apache-2.0
// Claims: the update rules run at the speed of memory, and their statistics cost next to nothing.
//   claim adamw_bandwidth_fraction      bare streaming loop / AdamW, fp32 states
//   claim adam8bit_bandwidth_fraction   bare streaming loop / AdamW, 8-bit states
//   claim stats_overhead_percent        AdamW, fp32 states, with statistics over without, minus 1
// Method: one thread, 50 M elements, time of the thread's own processor. The bare loop loads and
// stores the same arrays in the same order with one addition (of zero) per store: memcpy or triad
// would be the wrong bound, an update in place is twice as fast as either. Each round runs every
// variant once, so that all see the same machine; the claims are medians of the ratios within a
// round. The fractions are of the update alone; those with statistics are printed above them.
// An argument sets the number of elements: 8192 shows the arithmetic without the memory.
#include <muster/kernels/update_kernels.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace {

using muster::kernels::StateType;
using muster::kernels::UpdateStep;
using muster::kernels::UpdateTensors;

constexpr std::int64_t kDefaultCount = 50 << 20;
constexpr int kRounds = 11;

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

struct Variant {
  const char* name;
  double bytes;  // per element
  std::function<void()> run;
  std::vector<double> seconds{};
};

// Processor time of this thread: other work on the machine takes bandwidth, but not the clock.
double thread_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

double seconds_of(const std::function<void()>& work) {
  const double begin = thread_seconds();
  work();
  return thread_seconds() - begin;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// Median over rounds of time(a) / time(b).
double ratio(const Variant& a, const Variant& b) {
  std::vector<double> ratios;
  for (std::size_t i = 0; i < a.seconds.size(); ++i) {
    ratios.push_back(a.seconds[i] / b.seconds[i]);
  }
  return median(ratios);
}

void report(std::span<const Variant> variants, std::int64_t count, double sink) {
  std::printf(
      "%lld elements, %d rounds, checksum %g\n", static_cast<long long>(count), kRounds, sink);
  for (const Variant& variant : variants) {
    const double seconds = median(variant.seconds);
    std::printf(
        "%-30s %7.2f ms  %5.1f GB/s  %.3f ns per element, best %.3f\n",
        variant.name,
        seconds * 1e3,
        variant.bytes * static_cast<double>(count) / seconds / 1e9,
        seconds / static_cast<double>(count) * 1e9,
        *std::min_element(variant.seconds.begin(), variant.seconds.end()) /
            static_cast<double>(count) * 1e9);
  }
  std::printf(
      "fractions with statistics: fp32 %.3f, int8 %.3f\n",
      ratio(variants[0], variants[1]),
      ratio(variants[3], variants[4]));
  std::printf(
      "Muon momentum: fraction %.3f, statistics %+.1f %%\n",
      ratio(variants[6], variants[7]),
      100 * (ratio(variants[7], variants[8]) - 1));
  std::printf("claim adamw_bandwidth_fraction %.3f\n", ratio(variants[0], variants[2]));
  std::printf("claim adam8bit_bandwidth_fraction %.3f\n", ratio(variants[3], variants[5]));
  std::printf("claim stats_overhead_percent %.2f\n", 100 * (ratio(variants[1], variants[2]) - 1));
}

}  // namespace

int main(int argc, char** argv) {
  const std::int64_t count = argc > 1 ? std::atoll(argv[1]) / 256 * 256 : kDefaultCount;
  Arrays arrays(count);
  std::int64_t step = 0;
  double sink = 0;
  const auto adamw = [&](StateType type, bool statistics) {
    const UpdateStep s{
        .learning_rate = 1e-4, .weight_decay = 0.1, .step = ++step, .statistics = statistics};
    sink += muster::kernels::adamw_update(tensors_of(arrays, type), s, {}).update_squared_sum;
  };
  const auto muon = [&](bool statistics) {
    const UpdateStep s{.step = ++step, .statistics = statistics};
    const UpdateTensors t = tensors_of(arrays, StateType::kFloat32);
    sink += muster::kernels::muon_momentum_update(t, s, {}, arrays.direction.data()).momentum_sum;
  };
  Variant variants[] = {
      {"bare loop, fp32",
       28,
       [&] {
         stream_fp32(
             arrays.parameter.data(),
             arrays.gradient.data(),
             arrays.first.data(),
             arrays.second.data(),
             count);
       }},
      {"AdamW fp32", 28, [&] { adamw(StateType::kFloat32, true); }},
      {"AdamW fp32, no statistics", 28, [&] { adamw(StateType::kFloat32, false); }},
      {"bare loop, int8",
       16,
       [&] {
         stream_int8(
             arrays.parameter.data(),
             arrays.gradient.data(),
             arrays.first_codes.data(),
             arrays.second_codes.data(),
             count);
       }},
      {"AdamW int8", 16, [&] { adamw(StateType::kInt8Block, true); }},
      {"AdamW int8, no statistics", 16, [&] { adamw(StateType::kInt8Block, false); }},
      {"bare loop, momentum",
       16,
       [&] {
         stream_momentum(
             arrays.gradient.data(), arrays.first.data(), arrays.direction.data(), count);
       }},
      {"Muon momentum", 16, [&] { muon(true); }},
      {"Muon momentum, no statistics", 16, [&] { muon(false); }}};
  for (int round = 0; round <= kRounds; ++round) {
    for (Variant& variant : variants) {
      const double seconds = seconds_of(variant.run);
      if (round > 0) {  // the first touches fresh memory
        variant.seconds.push_back(seconds);
      }
    }
  }
  report(variants, count, sink);
  return 0;
}

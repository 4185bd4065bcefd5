// SPDX-License-Identifier: Apache-2.0
#include "comm/src/reduce.h"

#include <muster/common/check.h>
#include <muster/common/text.h>

#include <cstring>
#include <type_traits>

namespace muster::comm {

namespace {

struct Sum {
  template <typename T>
  static T apply(T a, T b) {
    if constexpr (std::is_integral_v<T>) {
      using U = std::make_unsigned_t<T>;  // Wraps around instead of being undefined.
      return static_cast<T>(static_cast<U>(static_cast<U>(a) + static_cast<U>(b)));
    } else {
      return a + b;
    }
  }
};

struct Max {
  template <typename T>
  static T apply(T a, T b) {
    if constexpr (std::is_floating_point_v<T>) {
      // maxNum: the other one when one is NaN. Two selects, each of which vectorises.
      const T larger = a < b ? b : a;
      return a != a ? b : larger;
    } else {
      return a < b ? b : a;
    }
  }
};

struct Job {
  const std::byte* const* sources;
  std::size_t source_count;
  std::byte* const* outputs;
  std::size_t output_count;
  std::size_t bytes;
};

// One piece of every source and output. It is small enough to stay in the first cache level however
// many sources there are, and nothing is written before all of it is read.
template <typename T, typename Op, std::size_t kCount>
[[gnu::always_inline]] inline void reduce_piece(const Job& job, std::size_t at) {
  T sum[kCount];
  std::memcpy(sum, job.sources[0] + at, sizeof sum);
  for (std::size_t s = 1; s < job.source_count; ++s) {
    T next[kCount];
    std::memcpy(next, job.sources[s] + at, sizeof next);
#pragma GCC unroll 1  // Unrolled by hand or early, the loop would no longer become vector code.
    for (std::size_t i = 0; i < kCount; ++i) {
      sum[i] = Op::apply(sum[i], next[i]);
    }
  }
  for (std::size_t o = 0; o < job.output_count; ++o) {
    std::memcpy(job.outputs[o] + at, sum, sizeof sum);
  }
}

template <typename T, typename Op>
[[gnu::always_inline]] inline void reduce_all(const Job& job) {
  constexpr std::size_t kPieceBytes = 256;
  std::size_t at = 0;
  for (; at + kPieceBytes <= job.bytes; at += kPieceBytes) {
    reduce_piece<T, Op, kPieceBytes / sizeof(T)>(job, at);
  }
  for (; at + sizeof(T) <= job.bytes; at += sizeof(T)) {
    reduce_piece<T, Op, 1>(job, at);
  }
}

template <typename T, typename Op>
void reduce_portable(const Job& job) {
  reduce_all<T, Op>(job);
}

#if defined(__x86_64__)

template <typename T, typename Op>
[[gnu::target("avx2")]] void reduce_avx2(const Job& job) {
  reduce_all<T, Op>(job);
}

template <typename T, typename Op>
[[gnu::target("avx512f,avx512bw,avx512dq,avx512vl,prefer-vector-width=512")]] void reduce_avx512(
    const Job& job) {
  reduce_all<T, Op>(job);
}

template <typename T, typename Op>
void reduce_best(const Job& job) {
  static const bool kHasAvx512 =
      __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512bw") != 0 &&
      __builtin_cpu_supports("avx512dq") != 0 && __builtin_cpu_supports("avx512vl") != 0;
  static const bool kHasAvx2 = __builtin_cpu_supports("avx2") != 0;
  if (kHasAvx512) {
    return reduce_avx512<T, Op>(job);
  }
  return kHasAvx2 ? reduce_avx2<T, Op>(job) : reduce_portable<T, Op>(job);
}

#else

template <typename T, typename Op>
void reduce_best(const Job& job) {
  reduce_portable<T, Op>(job);
}

#endif

template <typename Op>
void reduce_as(const Job& job, DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return reduce_best<float, Op>(job);
    case DType::kFloat64:
      return reduce_best<double, Op>(job);
    case DType::kInt32:
      return reduce_best<std::int32_t, Op>(job);
    case DType::kInt64:
      return reduce_best<std::int64_t, Op>(job);
    case DType::kUint8:
      return reduce_best<std::uint8_t, Op>(job);
    default:
      MUSTER_CHECK(false, concat("no reduction of ", dtype));
  }
}

}  // namespace

bool is_reducible(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
    case DType::kFloat64:
    case DType::kInt32:
    case DType::kInt64:
    case DType::kUint8:
      return true;
    default:
      return false;
  }
}

void reduce_in_order(
    std::span<const std::byte* const> sources,
    std::size_t bytes,
    DType dtype,
    ReduceOp op,
    std::span<std::byte* const> outputs) {
  const Job job{sources.data(), sources.size(), outputs.data(), outputs.size(), bytes};
  if (op == ReduceOp::kSum) {
    reduce_as<Sum>(job, dtype);
  } else {
    reduce_as<Max>(job, dtype);
  }
}

}  // namespace muster::comm

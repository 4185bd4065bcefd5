// SPDX-License-Identifier: Apache-2.0
#include <muster/kernels/backend.h>

#include <gtest/gtest.h>

namespace muster::kernels {
namespace {

TEST(Backend, SaysWhyCudaIsMissing) {
  EXPECT_EQ(cuda_is_available(), cuda_unavailable_reason().empty());
}

// A processor with AVX2 must not be taken for one of 2004: products would be many times slower.
TEST(Backend, BlasUsesTheInstructionsOfTheProcessor) {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2") == 0) {
    GTEST_SKIP() << "no AVX2 here";
  }
#endif
  EXPECT_EQ(cpu_description().find("Prescott"), std::string::npos) << cpu_description();
}

}  // namespace
}  // namespace muster::kernels

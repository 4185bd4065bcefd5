// SPDX-License-Identifier: Apache-2.0
// Grouped products keep their memory: after the first call of a size this binary, which counts its
// allocations, makes none.
#include "tests/support/allocation_count.h"
#include "tests/unit/kernels/grouped_gemm/case.h"

#include <gtest/gtest.h>

#include <malloc.h>

namespace muster::kernels {
namespace {

using test::Layout;
using test::Tensor;
using test::uniform_values;

TEST(GroupedProductAllocation, OnlyTheFirstCallOfASizeAllocates) {
  const Layout layout({70, 0, 1, 9}, 4, 0);
  for (const DType type : {DType::kFloat32, DType::kBFloat16}) {
    for (const int threads : {1, 3}) {
      const GroupedProblem problem{layout.groups(), 40, 60, type, threads};
      const Tensor x(type, uniform_values(1, layout.total * 40));
      const Tensor dy(type, uniform_values(2, layout.total * 60));
      const Tensor weights(type, uniform_values(3, 4 * 40 * 60));
      Tensor y(type, uniform_values(4, layout.total * 60));
      Tensor dx(type, uniform_values(5, layout.total * 40));
      std::vector<float> gradients(4 * 40 * 60);
      const auto all = [&] {
        grouped_forward(problem, x.data(), weights.data(), y.data());
        grouped_dgrad(problem, dy.data(), weights.data(), dx.data(), false);
        grouped_wgrad(problem, x.data(), dy.data(), gradients.data());
      };
      all();
      const long before = muster::test::allocations_of_all_threads();
      const std::size_t held = mallinfo2().uordblks;
      all();
      EXPECT_EQ(muster::test::allocations_of_all_threads(), before)
          << to_string(type) << ", " << threads << " threads";
      if (threads == 1) {
        EXPECT_EQ(mallinfo2().uordblks, held);
      }
    }
  }
}

}  // namespace
}  // namespace muster::kernels

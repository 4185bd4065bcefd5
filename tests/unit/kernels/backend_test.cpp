#include <muster/kernels/backend.h>

#include <gtest/gtest.h>

namespace muster::kernels {
namespace {

TEST(Backend, SaysWhyCudaIsMissing) {
  EXPECT_EQ(cuda_is_available(), cuda_unavailable_reason().empty());
}

}  // namespace
}  // namespace muster::kernels

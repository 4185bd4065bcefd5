// SPDX-License-Identifier: Apache-2.0
// Counts calls of operator new, which allocation_count.cpp replaces in the program it is linked
// into.
#pragma once

namespace muster::test {

// Number of allocations of the calling thread so far.
[[nodiscard]] long allocations_of_this_thread();

// Number of allocations of all threads so far.
[[nodiscard]] long allocations_of_all_threads();

}  // namespace muster::test

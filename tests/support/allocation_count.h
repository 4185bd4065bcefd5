// Counts what operator new is asked for: link allocation_count.cpp into a binary to replace it.
#pragma once

namespace muster::test {

// By the calling thread so far.
[[nodiscard]] long allocations_of_this_thread();

// By all threads so far.
[[nodiscard]] long allocations_of_all_threads();

}  // namespace muster::test

// SPDX-License-Identifier: Apache-2.0
// Makes OpenBLAS use the kernels that are fastest on this processor.
#pragma once

namespace muster::bench {

// Restarts the program with the OPENBLAS_CORETYPE, or none, under which a product took the least
// time, whatever the variable says, and with one BLAS thread. Returns in the restarted program and
// prints the kernels in use. Call it first in main().
void use_fastest_openblas(int argc, char** argv);

}  // namespace muster::bench

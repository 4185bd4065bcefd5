// SPDX-License-Identifier: Apache-2.0
// The Writer behind checkpoint.h, with disk and clock handed in.
#pragma once

#include "checkpoint/src/disk.h"

#include <muster/checkpoint/checkpoint.h>
#include <muster/common/clock.h>

#include <memory>

namespace muster::checkpoint {

// `disk` and `clock` must outlive the writer.
[[nodiscard]] Expected<std::unique_ptr<Writer>> create_writer(
    WriterOptions options, Disk& disk, const Clock& clock);

}  // namespace muster::checkpoint

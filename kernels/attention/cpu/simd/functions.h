// SPDX-License-Identifier: Apache-2.0
// Declares what the flash_*.cpp files define for the instruction set they are compiled for.
#pragma once

#include "kernels/attention/cpu/simd/tiles.h"

namespace muster::kernels::MUSTER_SIMD_ISA {

template <typename Math>
void flash_pack_lanes(const FlashRows& rows, typename Math::Scalar* to);
template <typename Math>
void flash_pack_keys(const FlashRows& rows, typename Math::Scalar* to);
template <typename Math>
bool flash_pack_across(const FlashRows& rows, bool finite_only, typename Math::Scalar* to);
template <typename Math>
bool flash_pack_along(const FlashRows& rows, std::int64_t padded_dim, typename Math::Scalar* to);

template <typename Math>
void flash_forward(const FlashForwardTile<typename Math::Scalar>& tile);
template <typename Math>
void flash_backward(const FlashBackwardTile<typename Math::Scalar>& tile);

template <typename T>
void flash_unpack_lanes(const T* from, const T* factors, const FlashTarget& to, T* finite);
template <typename T>
void flash_unpack_rows(const T* from, std::int64_t padded_dim, T factor, const FlashTarget& to);
template <typename T>
void flash_dots(const FlashRows& a, const FlashRows& b, T* to);
template <typename T>
void flash_add(const T* from, std::int64_t count, T* to);
template <typename T>
void flash_exponentials(T* x, std::int64_t count);

}  // namespace muster::kernels::MUSTER_SIMD_ISA

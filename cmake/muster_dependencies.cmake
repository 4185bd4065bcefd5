# SPDX-License-Identifier: Apache-2.0
# Every library from outside, found once. All come from distribution packages.
find_package(Threads REQUIRED)
find_package(Boost 1.81 REQUIRED CONFIG)  # Headers only.
find_package(Protobuf REQUIRED)
find_package(spdlog REQUIRED)
find_package(SQLite3 REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(CLI11 REQUIRED)
find_package(yaml-cpp REQUIRED)
find_package(GTest REQUIRED)
find_package(PkgConfig REQUIRED)
pkg_check_modules(xxhash REQUIRED IMPORTED_TARGET libxxhash)
pkg_check_modules(zstd REQUIRED IMPORTED_TARGET libzstd)

# BLAS behind one name, so that kernels/ alone knows which library it is.
add_library(muster_blas INTERFACE)
add_library(muster::blas ALIAS muster_blas)
find_library(MUSTER_OPENBLAS_LIBRARY openblas PATH_SUFFIXES openblas-pthread REQUIRED)
find_path(MUSTER_CBLAS_INCLUDE cblas.h PATH_SUFFIXES openblas-pthread openblas REQUIRED)
target_link_libraries(muster_blas INTERFACE "${MUSTER_OPENBLAS_LIBRARY}")
target_include_directories(muster_blas SYSTEM INTERFACE "${MUSTER_CBLAS_INCLUDE}")

# Optional parts are twin files, chosen here and asked for with is_available().
find_package(Gloo CONFIG QUIET)
find_package(CUDAToolkit QUIET)
find_library(MUSTER_NCCL_LIBRARY nccl PATHS "${CUDAToolkit_LIBRARY_DIR}")
# The CUDA and NCCL twins are not written yet: the seam builds its no_cuda / no_nccl side.
set(MUSTER_WITH_CUDA OFF)
set(MUSTER_WITH_NCCL OFF)

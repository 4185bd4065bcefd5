# SPDX-License-Identifier: Apache-2.0
# Language, warnings and sanitizers of every target of this build.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_VERIFY_INTERFACE_HEADER_SETS ON)  # target all_verify_interface_header_sets
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/bin")
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()

find_program(MUSTER_CCACHE ccache)
if(MUSTER_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER "${MUSTER_CCACHE}")
endif()

add_library(muster_settings INTERFACE)
# Private headers are included by their path from the root.
target_include_directories(muster_settings INTERFACE "${PROJECT_SOURCE_DIR}")
target_compile_options(muster_settings INTERFACE
  -Wall -Wextra -Wpedantic -Wconversion -Wsign-conversion -Wshadow -Wold-style-cast
  -Wnon-virtual-dtor -Woverloaded-virtual -Wcast-align -Wdouble-promotion -Wformat=2
  -Wimplicit-fallthrough -Wundef -Wvla -fno-math-errno -fstack-protector-strong)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  target_compile_options(muster_settings INTERFACE
    -Wduplicated-cond -Wduplicated-branches -Wlogical-op -Wsuggest-override -Wextra-semi)
endif()
if(MUSTER_WERROR)
  target_compile_options(muster_settings INTERFACE -Werror)
endif()
target_compile_definitions(muster_settings INTERFACE _GLIBCXX_ASSERTIONS)

if(MUSTER_SANITIZE)
  target_compile_options(muster_settings INTERFACE
    -fsanitize=${MUSTER_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer
    $<$<CXX_COMPILER_ID:GNU>:-Wno-tsan>)
  target_link_options(muster_settings INTERFACE -fsanitize=${MUSTER_SANITIZE})
endif()
# For tests and vector loops: without the checks of each pointer before its use, which are a third to
# a half of what instrumented code costs to compile. A wrong access is the address sanitizer's to
# find, and vector loads are unaligned ones.
set(muster_fewer_checks)
if(MUSTER_SANITIZE MATCHES "undefined")
  set(muster_fewer_checks
    -fno-sanitize=null,alignment,object-size,vptr,nonnull-attribute,returns-nonnull-attribute)
endif()

# The best instruction set of kernels/ that this machine runs. Tests are repeated on lesser ones
# only, and sanitizers instrument this one.
set(MUSTER_HOST_ISA baseline)
if(NOT CMAKE_CROSSCOMPILING AND EXISTS /proc/cpuinfo)
  file(STRINGS /proc/cpuinfo muster_cpu_flags LIMIT_COUNT 1 REGEX "^flags")
  if(muster_cpu_flags MATCHES " avx2 " AND muster_cpu_flags MATCHES " fma ")
    set(MUSTER_HOST_ISA avx2)
    if(muster_cpu_flags MATCHES " avx512f " AND muster_cpu_flags MATCHES " avx512bw " AND
       muster_cpu_flags MATCHES " avx512dq " AND muster_cpu_flags MATCHES " avx512vl ")
      set(MUSTER_HOST_ISA avx512)
      if(muster_cpu_flags MATCHES " avx512_bf16 ")
        set(MUSTER_HOST_ISA avx512bf16)
      endif()
    endif()
  endif()
endif()
set(MUSTER_LESSER_ISAS baseline avx2 avx512 avx512bf16)
list(FIND MUSTER_LESSER_ISAS ${MUSTER_HOST_ISA} muster_isa_rank)
list(SUBLIST MUSTER_LESSER_ISAS 0 ${muster_isa_rank} MUSTER_LESSER_ISAS)

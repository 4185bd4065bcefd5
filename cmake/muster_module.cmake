# SPDX-License-Identifier: Apache-2.0
# Parsing the standard library is half of the time to compile a typical source. One header of it,
# parsed once for all modules of a build with MUSTER_PRECOMPILE (the presets); sources name what they
# use all the same, since a user's build has no such header.
set(muster_precompile_options)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # GCC (12 and 14 tried) forgets that a precompiled standard library is a system header, and warns
  # falsely about copies of short strings in it (its bugs 105329 and 105651). Kernels are compiled
  # without that header and keep these warnings.
  set(muster_precompile_options
    -Wno-array-bounds -Wno-restrict -Wno-stringop-overflow -Wno-stringop-overread)
endif()
if(MUSTER_PRECOMPILE)
  add_library(muster_headers OBJECT "${PROJECT_SOURCE_DIR}/cmake/headers.cpp")
  target_link_libraries(muster_headers PRIVATE muster_settings)
  target_precompile_headers(muster_headers PRIVATE
    <algorithm> <array> <atomic> <chrono> <cmath> <cstdint> <cstring> <filesystem> <functional>
    <limits> <map> <memory> <mutex> <numeric> <optional> <set> <span> <string> <string_view>
    <thread> <unordered_map> <utility> <variant> <vector>)
endif()
function(muster_precompile target)
  if(MUSTER_PRECOMPILE)
    target_precompile_headers(${target} REUSE_FROM muster_headers)
    target_compile_options(${target} PRIVATE ${muster_precompile_options})
  endif()
  muster_unite(${target})
endfunction()

# With MUSTER_UNITY (the presets) sources of a target are compiled eight at a time, so that a header
# is parsed, and a template of it compiled, once for all of them. Names in anonymous namespaces must
# therefore differ within a target. Kernels are left out: they are one source per hot loop.
function(muster_unite target)
  set_target_properties(${target} PROPERTIES
    UNITY_BUILD ${MUSTER_UNITY} UNITY_BUILD_BATCH_SIZE 8)
  if(MUSTER_UNITY AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # Warns about anonymous namespaces in included files, as all sources are then.
    target_compile_options(${target} PRIVATE -Wno-subobject-linkage)
  endif()
  # What replaces operator new must not see its other users, which GCC then warns about.
  get_target_property(sources ${target} SOURCES)
  list(FILTER sources INCLUDE REGEX "allocation_count|largest_allocation|publish_cost_test")
  set_source_files_properties(${sources} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
endfunction()

# muster_add_module(<name> SOURCES ... HEADERS ... [PUBLIC targets...] [PRIVATE targets...])
#   Static library muster_<name>, alias muster::<name>. Headers lie under include/ and are verified
#   to compile alone; everything else is private.
function(muster_add_module name)
  cmake_parse_arguments(ARG "" "" "SOURCES;HEADERS;PUBLIC;PRIVATE" ${ARGN})
  add_library(muster_${name} STATIC ${ARG_SOURCES})
  add_library(muster::${name} ALIAS muster_${name})
  target_sources(muster_${name} PUBLIC FILE_SET HEADERS BASE_DIRS include FILES ${ARG_HEADERS})
  target_compile_features(muster_${name} PUBLIC cxx_std_20)  # for users of the installed package
  target_link_libraries(muster_${name} PUBLIC ${ARG_PUBLIC}
    PRIVATE $<BUILD_INTERFACE:muster_settings> ${ARG_PRIVATE})
  set_target_properties(muster_${name} PROPERTIES EXPORT_NAME ${name})
  muster_precompile(muster_${name})
endfunction()

# muster_install_module(<name>...): headers and library of what a training job links.
function(muster_install_modules)
  foreach(name IN LISTS ARGN)
    install(TARGETS muster_${name} EXPORT muster ARCHIVE FILE_SET HEADERS)
  endforeach()
endfunction()

# muster_add_test(<name> SOURCES ... LIBS ... [LABELS ...] [TIMEOUT s] [PROCESSORS n]
#     [ISAS ...])
#   One GoogleTest binary, one ctest entry: the binary prints its own cases. ISAS adds an
#   entry for each of these instruction sets that is less than this machine's best.
function(muster_add_test name)
  cmake_parse_arguments(ARG "" "TIMEOUT;PROCESSORS" "SOURCES;LIBS;LABELS;ISAS" ${ARGN})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 300)
  endif()
  if(MUSTER_SANITIZE)
    math(EXPR ARG_TIMEOUT "4 * ${ARG_TIMEOUT}")
  endif()
  if(NOT ARG_PROCESSORS)
    set(ARG_PROCESSORS 1)
  endif()
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE muster_test_settings ${ARG_LIBS} GTest::gtest_main
    GTest::gmock)
  if(MUSTER_PRECOMPILE)
    target_precompile_headers(${name} REUSE_FROM muster_test_headers)
    target_compile_options(${name} PRIVATE ${muster_precompile_options})
  endif()
  muster_unite(${name})
  add_test(NAME ${name} COMMAND ${name})
  set_tests_properties(${name} PROPERTIES TIMEOUT ${ARG_TIMEOUT} PROCESSORS ${ARG_PROCESSORS}
    LABELS "${ARG_LABELS}" ENVIRONMENT "OPENBLAS_NUM_THREADS=1")
  foreach(isa IN LISTS ARG_ISAS)
    # A sanitizer build has one copy of the loops.
    if(MUSTER_SANITIZE OR NOT isa IN_LIST MUSTER_LESSER_ISAS)
      continue()
    endif()
    add_test(NAME ${name}_${isa} COMMAND ${name})
    set_tests_properties(${name}_${isa} PROPERTIES TIMEOUT ${ARG_TIMEOUT} LABELS "${ARG_LABELS}"
      ENVIRONMENT "OPENBLAS_NUM_THREADS=1;MUSTER_KERNELS_ISA=${isa}")
  endforeach()
endfunction()

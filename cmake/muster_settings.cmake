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
    -fsanitize=${MUSTER_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer -Wno-tsan)
  target_link_options(muster_settings INTERFACE -fsanitize=${MUSTER_SANITIZE})
endif()

# SPDX-License-Identifier: Apache-2.0
# `cmake --install build/release --prefix P`, then find_package(muster) and link muster::agent.
include(CMakePackageConfigHelpers)
muster_install_modules(common wire comm kernels parallel optimizer checkpoint agent)
install(TARGETS muster_blas EXPORT muster)
install(TARGETS muster_wire_proto EXPORT muster ARCHIVE)
install(EXPORT muster NAMESPACE muster:: DESTINATION lib/cmake/muster)
configure_package_config_file("${CMAKE_CURRENT_LIST_DIR}/muster-config.cmake.in"
  "${PROJECT_BINARY_DIR}/muster-config.cmake" INSTALL_DESTINATION lib/cmake/muster)
write_basic_package_version_file("${PROJECT_BINARY_DIR}/muster-config-version.cmake"
  COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/muster-config.cmake"
  "${PROJECT_BINARY_DIR}/muster-config-version.cmake" DESTINATION lib/cmake/muster)

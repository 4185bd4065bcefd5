# SPDX-License-Identifier: Apache-2.0
# Builds web/ with Vite and turns the result into one C++ file: ${MUSTER_EMBEDDED_PAGES}.
#
# Where npm or web/node_modules is missing, the embedded page says how to get them; the build goes
# on, because everything but the page works without.
find_program(MUSTER_NPM npm)
set(MUSTER_EMBEDDED_PAGES "${CMAKE_CURRENT_BINARY_DIR}/embedded_pages.cpp")
set(web_source "${CMAKE_CURRENT_SOURCE_DIR}/web")
set(web_stamp "${CMAKE_CURRENT_BINARY_DIR}/web_toolchain.txt")

# Written only when it changes, so that `npm ci` after a first build leads to a new page.
add_custom_target(muster_web_toolchain
  COMMAND "${CMAKE_COMMAND}" -DNPM=${MUSTER_NPM} -DSOURCE=${web_source} -DSTAMP=${web_stamp}
          -P "${CMAKE_CURRENT_LIST_DIR}/web_toolchain.cmake"
  BYPRODUCTS "${web_stamp}" VERBATIM)

file(GLOB_RECURSE web_files CONFIGURE_DEPENDS
  "${web_source}/src/*.ts" "${web_source}/src/*.css" "${web_source}/public/*")
add_custom_command(OUTPUT "${MUSTER_EMBEDDED_PAGES}"
  COMMAND "${CMAKE_COMMAND}" -DNPM=${MUSTER_NPM} -DSOURCE=${web_source} -DSTAMP=${web_stamp}
          -DDIST=${CMAKE_CURRENT_BINARY_DIR}/web_dist -DOUTPUT=${MUSTER_EMBEDDED_PAGES}
          -P "${CMAKE_CURRENT_LIST_DIR}/build_web.cmake"
  DEPENDS "${web_stamp}" muster_web_toolchain ${web_files}
          "${web_source}/index.html" "${web_source}/package.json"
          "${web_source}/tsconfig.json" "${web_source}/vite.config.js"
          "${CMAKE_CURRENT_LIST_DIR}/build_web.cmake"
  COMMENT "Building the dashboard's page" VERBATIM)

# SPDX-License-Identifier: Apache-2.0
# Builds SOURCE into DIST and writes OUTPUT, the C++ file that holds every file of DIST.
file(READ "${STAMP}" state)
file(REMOVE_RECURSE "${DIST}")
if(state STREQUAL "missing")
  message(WARNING "The dashboard's page is not built: npm or dashboard/web/node_modules is missing. "
                  "Run scripts/setup.sh and build again.")
  file(WRITE "${DIST}/index.html"
    "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>muster</title>"
    "<h1>This muster was built without its page</h1>"
    "<p>npm or dashboard/web/node_modules was missing. Run <code>scripts/setup.sh</code> and build "
    "again. The data is at <a href=\"/api/runs\">/api/runs</a>.</p></html>\n")
else()
  execute_process(COMMAND "${NPM}" run --silent build -- --outDir "${DIST}" --emptyOutDir
    WORKING_DIRECTORY "${SOURCE}" RESULT_VARIABLE code OUTPUT_VARIABLE text ERROR_VARIABLE text)
  if(NOT code EQUAL 0)
    message(FATAL_ERROR "npm run build failed in dashboard/web:\n${text}")
  endif()
endif()

file(GLOB_RECURSE files RELATIVE "${DIST}" "${DIST}/*")
set(arrays "")
set(entries "")
set(number 0)
foreach(file IN LISTS files)
  file(READ "${DIST}/${file}" hex HEX)
  file(SIZE "${DIST}/${file}" size)
  string(REGEX REPLACE "([0-9a-f][0-9a-f])" "'\\\\x\\1'," bytes "${hex}")
  string(APPEND arrays "constexpr char kFile${number}[] = {${bytes}'\\0'};\n")
  string(APPEND entries "    EmbeddedFile{\"${file}\", {kFile${number}, ${size}}},\n")
  math(EXPR number "${number} + 1")
endforeach()
file(WRITE "${OUTPUT}"
  "#include \"dashboard/server/static_pages.h\"\n\n#include <array>\n\nnamespace muster::dashboard {\n\n"
  "namespace {\n\n${arrays}\nconstexpr std::array kFiles{\n${entries}};\n\n}  // namespace\n\n"
  "std::span<const EmbeddedFile> embedded_files() { return kFiles; }\n\n}  // namespace muster::dashboard\n")

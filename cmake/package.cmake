# Licences of the installation, and Debian packages of it: libdartlm0.1, libdartlm-dev and dartlm. The commands are in README.md, Building and
# installing.
set(DARTLM_PACKAGER "" CACHE STRING "NAME <ADDRESS> of who makes the packages")
mark_as_advanced(DARTLM_PACKAGER)
set(package_library lib${PROJECT_NAME}${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})
set(package_development lib${PROJECT_NAME}-dev)
set(package_program ${PROJECT_NAME})
set(package_release 1)

# gzip -n: without a time, so that the same text makes the same bytes.
find_program(DARTLM_GZIP gzip)
mark_as_advanced(DARTLM_GZIP)
set(changes)
if(DARTLM_GZIP AND DARTLM_PACKAGER)
  file(TIMESTAMP CHANGELOG.md package_date "%a, %d %b %Y %H:%M:%S +0000" UTC)
  file(WRITE ${CMAKE_CURRENT_BINARY_DIR}/changelog.Debian
    "${PROJECT_NAME} (${PROJECT_VERSION}-${package_release}) unstable; urgency=medium\n\n  * What has changed is in changelog.gz.\n\n"
    " -- ${DARTLM_PACKAGER}  ${package_date}\n")
  set(changes ${CMAKE_CURRENT_BINARY_DIR}/changelog.gz ${CMAKE_CURRENT_BINARY_DIR}/changelog.Debian.gz)
  add_custom_command(OUTPUT ${changes}
    COMMAND ${DARTLM_GZIP} -9nc ${CMAKE_CURRENT_SOURCE_DIR}/CHANGELOG.md > changelog.gz
    COMMAND ${DARTLM_GZIP} -9nc changelog.Debian > changelog.Debian.gz
    WORKING_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR} DEPENDS CHANGELOG.md ${CMAKE_CURRENT_BINARY_DIR}/changelog.Debian VERBATIM)
  add_custom_target(dartlm_changes ALL DEPENDS ${changes})
endif()
foreach(component library development program)
  set(documents ${CMAKE_INSTALL_DATADIR}/doc/${package_${component}})
  install(FILES LICENSE DESTINATION ${documents} RENAME copyright COMPONENT ${component})
  install(FILES ${changes} DESTINATION ${documents} COMPONENT ${component})
endforeach()

# The dynamic loader's cache, as Debian's libraries have it renewed, and what packages that link the library depend on. CPack's own list of
# libraries comes with one that asks for this very version.
file(WRITE ${CMAKE_CURRENT_BINARY_DIR}/triggers "activate-noawait ldconfig\n")
file(WRITE ${CMAKE_CURRENT_BINARY_DIR}/shlibs
  "lib${PROJECT_NAME} ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR} ${package_library} (>= ${PROJECT_VERSION})\n")

set(CPACK_PACKAGE_NAME ${PROJECT_NAME})
set(CPACK_PACKAGE_VERSION ${PROJECT_VERSION})
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "DART sequence model on Vulkan, CUDA and CPU")
set(CPACK_COMPONENTS_ALL library development program)
set(CPACK_COMPONENTS_GROUPING ONE_PER_GROUP)
set(CPACK_STRIP_FILES ON)
set(CPACK_GENERATOR TGZ)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_POST_BUILD_SCRIPTS ${CMAKE_CURRENT_SOURCE_DIR}/cmake/package_scripts.cmake)
set(CPACK_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_MAINTAINER "${DARTLM_PACKAGER}")
set(CPACK_DEBIAN_PACKAGE_RELEASE ${package_release})
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
string(CONCAT about "dartlm runs and trains models of the DART kind and of Mamba-2\non any GPU with Vulkan, "
  "through CUDA, and on processors without a GPU.\n\nThis package has ")
set(CPACK_COMPONENT_LIBRARY_DESCRIPTION "${about}the shared library.")
set(CPACK_COMPONENT_DEVELOPMENT_DESCRIPTION "${about}headers, the static library,\nand what CMake and pkg-config read.")
set(CPACK_COMPONENT_PROGRAM_DESCRIPTION "${about}the program dartlm,\nits manual and completions.")
set(CPACK_DEBIAN_LIBRARY_PACKAGE_NAME ${package_library})
set(CPACK_DEBIAN_LIBRARY_PACKAGE_SECTION libs)
set(CPACK_DEBIAN_LIBRARY_PACKAGE_CONTROL_EXTRA ${CMAKE_CURRENT_BINARY_DIR}/triggers ${CMAKE_CURRENT_BINARY_DIR}/shlibs)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_NAME ${package_development})
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_DEPENDS "${package_library} (= ${PROJECT_VERSION}-${package_release}), libjansson-dev")
set(CPACK_DEBIAN_PROGRAM_PACKAGE_NAME ${package_program})
set(CPACK_DEBIAN_PROGRAM_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PROGRAM_PACKAGE_RECOMMENDS libvulkan1)
include(CPack)

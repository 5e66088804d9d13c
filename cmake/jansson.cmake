# jansson out of its sources in ${DARTLM_DEPS}/jansson (tools/setup.sh --test), where the system that is built for has no package of it: as
# objects that become part of the library. Sets JANSSON_BUNDLED and JANSSON_OBJECTS, and defines PkgConfig::JANSSON as the headers alone.
set(jansson ${DARTLM_DEPS}/jansson/src)
set(JANSSON_BUNDLED ON)
set(json_inline inline)
set(json_have_long_long 1)
set(json_have_localeconv 1)
set(json_have_atomic_builtins 1)
set(json_have_sync_builtins 1)
set(jansson_include ${CMAKE_CURRENT_BINARY_DIR}/jansson)
configure_file(${jansson}/jansson_config.h.in ${jansson_include}/jansson_config.h @ONLY)
configure_file(${jansson}/jansson.h ${jansson_include}/jansson.h COPYONLY)
# What its own configuration writes here are the definitions below.
file(GENERATE OUTPUT ${jansson_include}/private/jansson_private_config.h CONTENT "")

file(GLOB jansson_sources ${jansson}/*.c)
add_library(dartlm_jansson OBJECT ${jansson_sources})
target_include_directories(dartlm_jansson PRIVATE ${jansson_include} ${jansson_include}/private ${jansson})
target_compile_definitions(dartlm_jansson PRIVATE HAVE_STDINT_H HAVE_FCNTL_H HAVE_SYS_STAT_H HAVE_SYS_TYPES_H HAVE_ATOMIC_BUILTINS
  INITIAL_HASHTABLE_ORDER=3)
if(WIN32)
  target_compile_definitions(dartlm_jansson PRIVATE USE_WINDOWS_CRYPTOAPI)
else()
  target_compile_definitions(dartlm_jansson PRIVATE HAVE_UNISTD_H HAVE_SCHED_H HAVE_SYS_TIME_H HAVE_GETTIMEOFDAY HAVE_GETPID HAVE_OPEN
    HAVE_CLOSE HAVE_READ HAVE_SCHED_YIELD USE_URANDOM _DEFAULT_SOURCE)
endif()
set_target_properties(dartlm_jansson PROPERTIES C_VISIBILITY_PRESET hidden)
set(JANSSON_OBJECTS $<TARGET_OBJECTS:dartlm_jansson>)

add_library(PkgConfig::JANSSON INTERFACE IMPORTED)
target_include_directories(PkgConfig::JANSSON INTERFACE ${jansson_include})

# Writes COMMIT_HEADER with the commit of SOURCE, marked where files of it have changed; without one where SOURCE is no repository of its own.
# Touches the file only when it changes.
set(commit "")
find_program(GIT git)
if(GIT)
  execute_process(COMMAND ${GIT} -C ${SOURCE} rev-parse --show-prefix OUTPUT_VARIABLE prefix OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET
    RESULT_VARIABLE failed)
  if(NOT failed AND prefix STREQUAL "")
    execute_process(COMMAND ${GIT} -C ${SOURCE} describe --always --dirty --abbrev=12 --exclude=* OUTPUT_VARIABLE commit
      OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  endif()
endif()
if(NOT GIVEN STREQUAL "")
  set(commit ${GIVEN})
endif()
file(CONFIGURE OUTPUT ${COMMIT_HEADER} CONTENT "#define DARTLM_COMMIT \"${commit}\"\n")

# Compiles the kernels of cuda/ into objects (fatbinaries) and each of those into a C source, where nvcc is found.
# Takes `tables`, and `embed_options` for what embeds the objects.
# Sets DARTLM_CUDA_FOUND, DARTLM_CUDA_GENERATED (sources to add) and DARTLM_CUDA_INCLUDE (headers made from the table `tables`).
# No CUDA language, no CUDA library is used.
set(DARTLM_CUDA_FOUND FALSE)
set(DARTLM_CUDA_GENERATED)

find_program(DARTLM_NVCC nvcc
  HINTS $ENV{CUDA_HOME}/bin $ENV{CUDA_PATH}/bin
  PATHS /usr/local/cuda/bin /opt/cuda/bin)
mark_as_advanced(DARTLM_NVCC)
find_package(Python3 QUIET COMPONENTS Interpreter)

# sm_90a is what every device of compute capability 9.0 runs, with the warpgroup instructions; others take sm_80 or its PTX.
set(DARTLM_CUDA_TARGETS -gencode=arch=compute_80,code=[sm_80,compute_80] -gencode=arch=compute_90a,code=sm_90a
  CACHE STRING "What nvcc compiles for")
mark_as_advanced(DARTLM_CUDA_TARGETS)
# For machines that run none of the kernels: a quarter of the compiler's time, and kernels that are not optimised. With one target half of that.
set(DARTLM_CUDA_QUICK OFF CACHE STRING
  "Compile the CUDA kernels quickly instead of well, where nvcc can (CUDA 13): ON, or sm_80 or sm_90a, for that target alone")
set_property(CACHE DARTLM_CUDA_QUICK PROPERTY STRINGS OFF ON sm_80 sm_90a)
set(cuda_flags -O3)
set(cuda_targets ${DARTLM_CUDA_TARGETS})
if(DARTLM_CUDA_QUICK MATCHES "^sm_([0-9]+a?)$")
  set(cuda_targets -gencode=arch=compute_${CMAKE_MATCH_1},code=${DARTLM_CUDA_QUICK})
endif()
if(DARTLM_NVCC AND DARTLM_CUDA_QUICK)
  execute_process(COMMAND ${DARTLM_NVCC} --help OUTPUT_VARIABLE cuda_help ERROR_QUIET)
  if(cuda_help MATCHES "--Ofast-compile")
    list(APPEND cuda_flags --Ofast-compile max)
  endif()
endif()

if(DARTLM_NVCC AND Python3_Interpreter_FOUND)
  set(cuda_source ${CMAKE_CURRENT_SOURCE_DIR}/cuda)
  set(cuda_dir ${CMAKE_CURRENT_BINARY_DIR}/cuda)
  # An object a folder, but for files that take long: each is an object of its own. An object costs 1.5 s of processor time
  # before its first kernel, so that one a file would make the whole build a third longer.
  set(cuda_alone attention/attention_tensor.cu attention/backward_tensor.cu dense/linear_backward_tensor.cu dense/linear_short.cu dense/norm_rows.cu
    loss/head_tensor.cu mixer/layers.cu mixer/output.cu mixer/step.cu mixer/step_project.cu mixer/windows.cu sma/backward_rows.cu
    sma/backward_token_side_ahead.cu sma/backward_tokens_tensor.cu sma/query.cu sma/sma_sm90.cu sma/sma_tensor.cu ssd/backward_walk.cu
    ssd/output_simt.cu ssd/output_tensor_warp.cu ssd/piece_walk.cu)
  file(GLOB cuda_files CONFIGURE_DEPENDS RELATIVE ${cuda_source} ${cuda_source}/*/*.cu)
  set(cuda_names)
  foreach(file IN LISTS cuda_files)
    get_filename_component(name ${file} DIRECTORY)
    if(file IN_LIST cuda_alone)
      string(REGEX REPLACE "/|\\.cu$" "_" name ${file})
      string(REGEX REPLACE "_$" "" name ${name})
    endif()
    list(APPEND cuda_names ${name})
    list(APPEND cuda_files_${name} ${file})
  endforeach()
  list(REMOVE_DUPLICATES cuda_names)

  set(cuda_objects)
  set(cuda_made ${cuda_dir}/cuda_bindings.h ${cuda_dir}/cu_images.c)
  foreach(name IN LISTS cuda_names)
    list(JOIN cuda_files_${name} "," files)
    list(APPEND cuda_objects ${name}=${files})
    list(APPEND cuda_made ${cuda_dir}/${name}/rows.def ${cuda_dir}/${name}/object.cu)
  endforeach()
  # It replaces only files that change: an edit of a row of another backend ends here.
  add_custom_command(OUTPUT ${cuda_made}
    COMMAND ${Python3_EXECUTABLE} ${CMAKE_CURRENT_SOURCE_DIR}/tools/build/cuda_objects.py
      --table ${CMAKE_CURRENT_SOURCE_DIR}/src/kernels.def --cuda ${cuda_source} --out ${cuda_dir} ${cuda_objects}
    DEPENDS ${tables} src/kernels.def tools/build/cuda_objects.py
    COMMENT "Listing CUDA kernels" VERBATIM)
  set(DARTLM_CUDA_GENERATED ${cuda_dir}/cu_images.c)
  foreach(name IN LISTS cuda_names)
    set(files ${cuda_files_${name}})
    list(TRANSFORM files PREPEND ${cuda_source}/)
    add_custom_command(OUTPUT ${cuda_dir}/${name}.fatbin
      COMMAND ${DARTLM_NVCC} --fatbin -std=c++17 ${cuda_flags} --threads 2 ${cuda_targets}
        -MMD -MF ${cuda_dir}/${name}.d -MT ${cuda_dir}/${name}.fatbin
        -I${CMAKE_CURRENT_SOURCE_DIR} -I${cuda_source} -I${cuda_dir} -I${cuda_dir}/${name}
        -o ${cuda_dir}/${name}.fatbin ${cuda_dir}/${name}/object.cu
      DEPENDS ${files} ${cuda_dir}/${name}/rows.def ${cuda_dir}/${name}/object.cu ${cuda_dir}/cuda_bindings.h
      DEPFILE ${cuda_dir}/${name}.d
      COMMENT "Compiling CUDA kernels: ${name}" VERBATIM)
    add_custom_command(OUTPUT ${cuda_dir}/cu_image_${name}.c
      COMMAND ${Python3_EXECUTABLE} ${CMAKE_CURRENT_SOURCE_DIR}/tools/build/embed_binary.py ${embed_options}
        ${cuda_dir}/${name}.fatbin ${cuda_dir}/cu_image_${name}.c cu_image_${name}
      DEPENDS ${cuda_dir}/${name}.fatbin tools/build/embed_binary.py
      COMMENT "Embedding CUDA kernels: ${name}" VERBATIM)
    list(APPEND DARTLM_CUDA_GENERATED ${cuda_dir}/cu_image_${name}.c)
  endforeach()
  set(DARTLM_CUDA_INCLUDE ${cuda_dir})
  set(DARTLM_CUDA_FOUND TRUE)
endif()

# Compiles the kernels of cuda/ into one fatbinary and that into a C source, where nvcc is found.
# Sets DARTLM_CUDA_FOUND and DARTLM_CUDA_GENERATED (sources to add). No CUDA language, no CUDA library is used.
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

if(DARTLM_NVCC AND Python3_Interpreter_FOUND)
  set(cuda_dir ${CMAKE_CURRENT_BINARY_DIR}/cuda)
  file(MAKE_DIRECTORY ${cuda_dir})
  file(GLOB cuda_files CONFIGURE_DEPENDS
    ${CMAKE_CURRENT_SOURCE_DIR}/cuda/*.cu ${CMAKE_CURRENT_SOURCE_DIR}/cuda/*/*.cu ${CMAKE_CURRENT_SOURCE_DIR}/cuda/*/*.cuh
    ${CMAKE_CURRENT_SOURCE_DIR}/cuda/*/*.h ${CMAKE_CURRENT_SOURCE_DIR}/shaders/args.h ${CMAKE_CURRENT_SOURCE_DIR}/shaders/*/args.h
    ${CMAKE_CURRENT_SOURCE_DIR}/src/kernels.def ${CMAKE_CURRENT_SOURCE_DIR}/src/*/*.def ${CMAKE_CURRENT_SOURCE_DIR}/src/*/*/*.def)
  add_custom_command(OUTPUT ${cuda_dir}/kernels.fatbin
    COMMAND ${DARTLM_NVCC} --fatbin -std=c++17 -O3 --threads 2
      ${DARTLM_CUDA_TARGETS}
      -I${CMAKE_CURRENT_SOURCE_DIR} -I${CMAKE_CURRENT_SOURCE_DIR}/src -I${CMAKE_CURRENT_SOURCE_DIR}/cuda
      -o ${cuda_dir}/kernels.fatbin ${CMAKE_CURRENT_SOURCE_DIR}/cuda/kernels.cu
    DEPENDS ${cuda_files}
    COMMENT "Compiling CUDA kernels" VERBATIM)
  add_custom_command(OUTPUT ${cuda_dir}/cu_fatbinary.c
    COMMAND ${Python3_EXECUTABLE} ${CMAKE_CURRENT_SOURCE_DIR}/tools/build/embed_binary.py
      ${cuda_dir}/kernels.fatbin ${cuda_dir}/cu_fatbinary.c cu_fatbinary
    DEPENDS ${cuda_dir}/kernels.fatbin ${CMAKE_CURRENT_SOURCE_DIR}/tools/build/embed_binary.py
    COMMENT "Embedding CUDA kernels" VERBATIM)
  set(DARTLM_CUDA_GENERATED ${cuda_dir}/cu_fatbinary.c)
  set(DARTLM_CUDA_FOUND TRUE)
endif()

# The CUDA backend. It builds without a toolkit; only the fatbinary of the kernels (cmake/cuda.cmake) needs one.
set(CUDA_SOURCES
    src/cuda/cu_backend.c
    src/cuda/cu_blas.c
    src/cuda/cu_device.c
    src/cuda/cu_driver.c
    src/cuda/cu_group.c
    src/cuda/cu_instance.c
    src/cuda/cu_semaphore.c
    src/cuda/cu_set.c
    src/cuda/cu_stream.c
    src/cuda/cu_transfer.c)

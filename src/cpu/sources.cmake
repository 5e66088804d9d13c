# Sources of the CPU backend, relative to the root of the project. CPU_AVX2_SOURCES need AVX2, FMA and F16C switched on
# and DARTLM_AVX2 defined for all. cpu_blas.c is empty unless DARTLM_BLAS is defined.
set(CPU_SOURCES
  src/cpu/cpu_attention.c
  src/cpu/cpu_blas.c
  src/cpu/cpu_choice.c
  src/cpu/cpu_conv.c
  src/cpu/cpu_dense.c
  src/cpu/cpu_dense_backward.c
  src/cpu/cpu_detect.c
  src/cpu/cpu_device.c
  src/cpu/cpu_memory.c
  src/cpu/cpu_mlp.c
  src/cpu/cpu_quantised.c
  src/cpu/cpu_plain.c
  src/cpu/cpu_pool.c
  src/cpu/cpu_probe.c
  src/cpu/cpu_sma.c
  src/cpu/cpu_ssd.c
  src/cpu/cpu_sma_backward.c src/cpu/cpu_ssd_backward.c
  src/cpu/cpu_train.c
  src/cpu/cpu_window.c)
set(CPU_AVX2_SOURCES src/cpu/cpu_avx2.c)

/* What the files of the GPU that is not there share (node.c). The structs of requests are those of the kernel's interface (drm.h, i915_drm.h,
 * msm_drm.h, nouveau_drm.h, panthor_drm.h), which most systems have no headers of; members nobody reads are padding. A request that is not known
 * fails with EINVAL, as an older kernel's would. */
#ifndef DARTLM_FAKE_GPU_H
#define DARTLM_FAKE_GPU_H

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define GIB (UINT64_C(1) << 30)
#define PAGE UINT64_C(65536)
#define PANTHOR_REGISTERS (UINT64_C(1) << 56) /* where a program maps them */

/* Of DART_FAKE_GPU; chips.txt says what a, b and c count. */
extern struct fake_chip {
    uint32_t id, a, b, c;
    uint64_t memory; /* bytes of its own */
} fake_chip;

/* Ends the program. */
void fake_stop(const char *why);
/* A handle. Handle 0 and offset 0 mean none. */
uint32_t fake_buffer(uint64_t bytes);
uint64_t fake_offset(uint32_t handle);
uint64_t fake_bytes(uint32_t handle);

/* The requests of a module: 0, or what errno becomes. */
typedef int fake_answer(unsigned request, void *argument);
fake_answer fake_i915, fake_msm, fake_nouveau, fake_panthor;

#endif

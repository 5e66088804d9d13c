/* Adreno: the kernel's msm. */
#include "fake_gpu.h"

/* The number by which chips up to the 7xx's first were called, e.g. 650; 0 for those that have an id only. */
static uint32_t adreno_number(void)
{
    if (fake_chip.id >> 24 >= 0x40) return 0;
    return (fake_chip.id >> 24) * 100 + (fake_chip.id >> 16 & 0xff) * 10 + (fake_chip.id >> 8 & 0xff);
}

static int msm_parameter(uint32_t which, uint64_t *value)
{
    enum {
        GPU_ID = 1,
        GMEM_BYTES,
        CHIP_ID,
        MAX_FREQUENCY,
        TIMESTAMP,
        GMEM_BASE,
        PRIORITIES,
        FAULTS = 9,
        SUSPENDS,
        VA_START = 14,
        VA_BYTES,
        HIGHEST_BANK_BIT,
        RAYTRACING,
        UBWC_SWIZZLE,
        MACROTILE_MODE
    };
    switch (which) {
    case GPU_ID: *value = adreno_number(); return 0;
    case GMEM_BYTES: *value = fake_chip.a * UINT64_C(1024); return 0;
    case CHIP_ID: *value = fake_chip.id; return 0;
    case MAX_FREQUENCY: *value = 500000000; return 0;
    case GMEM_BASE: *value = 0x100000; return 0;
    case PRIORITIES: *value = 3; return 0;
    case TIMESTAMP: case FAULTS: case SUSPENDS: case RAYTRACING: *value = 0; return 0;
    case VA_START: *value = UINT64_C(1) << 32; return 0;
    case VA_BYTES: *value = UINT64_C(1) << 36; return 0;
    case HIGHEST_BANK_BIT: *value = 15; return 0;
    case UBWC_SWIZZLE: *value = 6; return 0;
    case MACROTILE_MODE: *value = 1; return 0;
    default: return EINVAL;
    }
}

int fake_msm(unsigned request, void *argument)
{
    enum { GET_PARAM = 0, GEM_NEW = 2, GEM_INFO, CPU_PREPARE, CPU_FINISH, SUBMIT, WAIT_FENCE, MADVISE, QUEUE_NEW = 10, QUEUE_CLOSE, QUEUE_QUERY };
    enum { INFO_OFFSET = 0, INFO_ADDRESS = 1, INFO_FLAGS = 5 };
    struct { uint32_t pipe, which; uint64_t value; } *parameter = argument;
    struct { uint64_t bytes; uint32_t flags, handle; } *gem = argument;
    struct { uint32_t handle, which; uint64_t value; } *info = argument;
    struct { uint32_t handle, advice, retained; } *advice = argument;
    struct { uint32_t flags, priority, id; } *queue = argument;
    switch (request) {
    case GET_PARAM: return msm_parameter(parameter->which, &parameter->value);
    case GEM_NEW: gem->handle = fake_buffer(gem->bytes); return 0;
    case GEM_INFO:
        if (info->which == INFO_OFFSET || info->which == INFO_ADDRESS) info->value = fake_offset(info->handle);
        if (info->which == INFO_FLAGS) info->value = 0x20000; /* write-combined */
        return 0;
    case MADVISE: advice->retained = 1; return 0;
    case QUEUE_NEW: queue->id = 1; return 0;
    case CPU_PREPARE: case CPU_FINISH: case SUBMIT: case WAIT_FENCE: case QUEUE_CLOSE: case QUEUE_QUERY: return 0;
    default: return EINVAL;
    }
}

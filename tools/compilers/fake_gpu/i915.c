/* Intel: the kernel's i915. */
#include "fake_gpu.h"

/* Copies a result of a query out if there is room; a length of 0 asks for the length. */
static int32_t give(void *to, int32_t room, const void *from, size_t bytes)
{
    if (room == 0) return (int32_t)bytes;
    if (room < (int32_t)bytes) return -EINVAL;
    memcpy(to, from, bytes);
    return (int32_t)bytes;
}

static int32_t give_topology(void *to, int32_t room)
{
    struct { uint16_t flags, slices, subslices, eus, subslice_at, subslice_stride, eu_at, eu_stride; uint8_t masks[512]; } topology = {0};
    topology.slices = (uint16_t)fake_chip.a;
    topology.subslices = (uint16_t)fake_chip.b;
    topology.eus = (uint16_t)fake_chip.c;
    topology.subslice_at = 1;
    topology.subslice_stride = (uint16_t)((fake_chip.b + 7) / 8);
    topology.eu_at = (uint16_t)(1 + fake_chip.a * topology.subslice_stride);
    topology.eu_stride = (uint16_t)((fake_chip.c + 7) / 8);
    const uint32_t eu_bytes = fake_chip.a * fake_chip.b * topology.eu_stride;
    if (fake_chip.a > 8 || topology.eu_at + eu_bytes > sizeof topology.masks) fake_stop("too many slices");
    topology.masks[0] = (uint8_t)((1u << fake_chip.a) - 1);
    for (uint32_t i = 0; i < fake_chip.a * fake_chip.b; i++)
        topology.masks[1 + i / fake_chip.b * topology.subslice_stride + i % fake_chip.b / 8] |= (uint8_t)(1u << i % fake_chip.b % 8);
    memset(topology.masks + topology.eu_at, 0xff, eu_bytes);
    return give(to, room, &topology, offsetof(__typeof__(topology), masks) + topology.eu_at + eu_bytes);
}

static int32_t give_engines(void *to, int32_t room)
{
    const struct { uint32_t count, pad[3]; struct { uint16_t class, instance; uint32_t pad[13]; } engines[2]; } list = {
        .count = 2, .engines = {{.class = 0 /* render */}, {.class = 1 /* copy */}}};
    return give(to, room, &list, sizeof list);
}

static int32_t give_regions(void *to, int32_t room)
{
    struct region { uint16_t class, instance; uint32_t pad; uint64_t bytes, free_bytes, visible, free_visible, more[6]; };
    struct { uint32_t count, pad[3]; struct region regions[2]; } list = {.count = fake_chip.memory != 0 ? 2 : 1};
    for (uint32_t i = 0; i < list.count; i++) {
        struct region *r = &list.regions[i];
        r->class = (uint16_t)i;
        r->bytes = r->free_bytes = r->visible = r->free_visible = i == 0 ? 16 * GIB : fake_chip.memory;
    }
    return give(to, room, &list, offsetof(__typeof__(list), regions) + list.count * sizeof(struct region));
}

struct i915_query { uint64_t what; int32_t length; uint32_t flags; void *data; };

static void answer_i915_query(struct i915_query *query)
{
    enum { TOPOLOGY = 1, ENGINES = 2, REGIONS = 4, GEOMETRY_TOPOLOGY = 6 };
    switch (query->what) {
    case TOPOLOGY: case GEOMETRY_TOPOLOGY: query->length = give_topology(query->data, query->length); break;
    case ENGINES: query->length = give_engines(query->data, query->length); break;
    case REGIONS: query->length = give_regions(query->data, query->length); break;
    default: query->length = -EINVAL;
    }
}

static int i915_parameter(int which, int *value)
{
    enum {
        CHIPSET_ID = 4,
        HAS_GEM,
        NUM_FENCES,
        HAS_EXEC2 = 9,
        HAS_BSD,
        HAS_BLT,
        HAS_RELAXED_FENCING,
        HAS_RELAXED_DELTA = 15,
        HAS_LLC = 17,
        ALIASING_PPGTT,
        HAS_WAIT_TIMEOUT,
        HAS_VEBOX = 22,
        HAS_EXEC_NO_RELOC = 25,
        CMD_PARSER = 28,
        MMAP_VERSION = 30,
        REVISION = 32,
        HAS_EXEC_SOFTPIN = 37,
        MMAP_GTT_VERSION = 40,
        HAS_EXEC_ASYNC = 43,
        HAS_EXEC_FENCE,
        HAS_EXEC_CAPTURE,
        HAS_EXEC_BATCH_FIRST = 48,
        HAS_FENCE_ARRAY,
        HAS_CONTEXT_ISOLATION,
        CS_TIMESTAMP_FREQUENCY,
        PERF_REVISION = 54,
        HAS_TIMELINE_FENCES,
        HAS_USERPTR_PROBE,
        OA_TIMESTAMP_FREQUENCY
    };
    switch (which) {
    case CHIPSET_ID: *value = (int)fake_chip.id; return 0;
    case CS_TIMESTAMP_FREQUENCY: case OA_TIMESTAMP_FREQUENCY: *value = 19200000; return 0;
    case MMAP_VERSION: case MMAP_GTT_VERSION: *value = 4; return 0;
    case ALIASING_PPGTT: *value = 3; return 0; /* 48 bits */
    case CMD_PARSER: *value = 10; return 0;
    case NUM_FENCES: *value = 32; return 0;
    case HAS_GEM:
    case HAS_EXEC2:
    case HAS_RELAXED_FENCING:
    case HAS_RELAXED_DELTA:
    case HAS_WAIT_TIMEOUT:
    case HAS_EXEC_NO_RELOC:
    case HAS_EXEC_SOFTPIN:
    case HAS_EXEC_ASYNC: case HAS_EXEC_FENCE: case HAS_EXEC_CAPTURE: case HAS_EXEC_BATCH_FIRST: case HAS_FENCE_ARRAY: case HAS_CONTEXT_ISOLATION:
    case HAS_TIMELINE_FENCES: *value = 1; return 0;
    case HAS_BSD: case HAS_BLT: case HAS_LLC: case HAS_VEBOX: case REVISION: case PERF_REVISION: case HAS_USERPTR_PROBE: *value = 0; return 0;
    default: return EINVAL;
    }
}

int fake_i915(unsigned request, void *argument)
{
    enum {
        GETPARAM = 0x06,
        BUSY = 0x17,
        CREATE = 0x1b,
        SET_DOMAIN = 0x1f,
        SET_TILING = 0x21,
        GET_TILING,
        GET_APERTURE,
        MMAP_OFFSET,
        MADVISE = 0x26,
        EXECBUFFER = 0x29,
        WAIT = 0x2c,
        CONTEXT_CREATE,
        CONTEXT_DESTROY,
        SET_CACHING,
        GET_CACHING,
        REG_READ,
        GET_RESET_STATS,
        USERPTR,
        CONTEXT_GETPARAM,
        CONTEXT_SETPARAM,
        QUERY = 0x39,
        VM_CREATE,
        VM_DESTROY,
        CREATE_EXT
    };
    enum { CONTEXT_GTT_SIZE = 3 };
    struct { int which; int *value; } *parameter = argument;
    struct { uint64_t bytes; uint32_t handle; } *create = argument;
    struct { uint64_t address, bytes; uint32_t flags, handle; } *userptr = argument;
    struct { uint32_t handle, pad; uint64_t offset; } *map = argument;
    struct { uint32_t handle, tiling, swizzle, physical; } *tiling = argument;
    struct { uint64_t bytes, free_bytes; } *aperture = argument;
    struct { uint32_t id; } *context = argument;
    struct { uint32_t id, size; uint64_t which, value; } *context_parameter = argument;
    struct { uint64_t extensions; uint32_t flags, id; } *vm = argument;
    struct { uint32_t handle, busy; } *busy = argument;
    struct { uint32_t count, flags; struct i915_query *list; } *queries = argument;
    switch (request) {
    case GETPARAM: return i915_parameter(parameter->which, parameter->value);
    case CREATE: case CREATE_EXT: create->handle = fake_buffer(create->bytes); return 0;
    case USERPTR: userptr->handle = fake_buffer(userptr->bytes); return 0;
    case MMAP_OFFSET: map->offset = fake_offset(map->handle); return 0;
    case GET_TILING: tiling->tiling = tiling->swizzle = tiling->physical = 0; return 0;
    case GET_APERTURE: aperture->bytes = aperture->free_bytes = UINT64_C(1) << 48; return 0;
    case CONTEXT_CREATE: context->id = 1; return 0;
    case CONTEXT_GETPARAM: context_parameter->value = context_parameter->which == CONTEXT_GTT_SIZE ? UINT64_C(1) << 48 : 0; return 0;
    case VM_CREATE: vm->id = 1; return 0;
    case BUSY: busy->busy = 0; return 0;
    case QUERY:
        for (uint32_t i = 0; i < queries->count; i++) answer_i915_query(&queries->list[i]);
        return 0;
    case SET_DOMAIN:
    case SET_TILING:
    case MADVISE:
    case EXECBUFFER:
    case WAIT:
    case CONTEXT_DESTROY:
    case SET_CACHING:
    case GET_CACHING:
    case REG_READ:
    case GET_RESET_STATS: case CONTEXT_SETPARAM: case VM_DESTROY: return 0;
    default: return EINVAL;
    }
}

/* A GPU that is not there, shown to Mesa's Vulkan drivers for Intel, Adreno, Mali and NVIDIA: preloaded into a program, it answers in
 * place of the Linux kernel, so that a driver opens a device and compiles for it. Nothing runs: work is accepted and forgotten.
 * tools/with-vulkan.sh fake:CHIP preloads it with DART_FAKE_GPU="MODULE ID A B C GIB" (chips.txt says what they mean), and so does
 * mali.sh for Mali.
 * DART_FAKE_GPU_TRACE, when set, makes it name requests that it refused.
 *
 * Drivers find devices through libdrm, whose functions for that are replaced. The device node is a memory file; buffers lie in it
 * one after another, so that mmap of the node works as it is. The structs of requests are those of the kernel's interface
 * (drm.h, i915_drm.h, msm_drm.h, nouveau_drm.h, panthor_drm.h), which most systems have no headers of; members nobody reads are padding. A
 * request that is not known fails with EINVAL, as an older kernel's would. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#define PUBLIC __attribute__((visibility("default")))
#define NODE "/dev/dri/renderD128"
#define NODE_NUMBER makedev(226, 128)
#define GIB (UINT64_C(1) << 30)
#define PAGE UINT64_C(65536)
#define PANTHOR_REGISTERS (UINT64_C(1) << 56) /* where a program maps them */
#define MOST_BUFFERS (1u << 20)
#define FIRST_REQUEST_OF_MODULE 0x40u
#define LAST_REQUEST_OF_MODULE 0x9fu

/* 0, or what errno becomes. */
typedef int request_answer(unsigned request, void *argument);
static request_answer answer_i915, answer_msm, answer_nouveau, answer_panthor;

static const struct module {
    const char *name;
    request_answer *answer;
    uint16_t pci_vendor; /* 0: not on a PCI bus */
    const char *compatible;
    int version[3]; /* of the kernel's driver */
} modules[] = {
    {"i915", answer_i915, 0x8086, "", {1, 6, 0}},
    {"msm", answer_msm, 0, "qcom,adreno", {1, 12, 0}},
    {"nouveau", answer_nouveau, 0x10de, "", {1, 4, 0}},
    {"panthor", answer_panthor, 0, "arm,mali-valhall-csf", {1, 3, 0}},
};

static const struct module *module; /* NULL: the library does nothing */
static uint32_t chip_id, count_a, count_b, count_c;
static uint64_t own_memory; /* bytes */
static int node = -1;
static ino_t node_inode;
static dev_t node_device;

/* Handle 0 and offset 0 mean none. */
static struct { uint64_t offset, bytes; } buffers[MOST_BUFFERS];
static uint32_t buffers_count = 1;
static uint64_t buffers_end = PAGE;

static void stop(const char *why)
{
    fprintf(stderr, "fake_gpu: %s\n", why);
    _exit(125);
}

__attribute__((constructor)) static void set_up(void)
{
    const char *text = getenv("DART_FAKE_GPU");
    char name[16];
    unsigned gib;
    if (text == NULL) return;
    if (sscanf(text, "%15s %x %u %u %u %u", name, &chip_id, &count_a, &count_b, &count_c, &gib) != 6) stop("DART_FAKE_GPU: six words expected");
    own_memory = gib * GIB;
    const struct module *found = NULL;
    for (size_t i = 0; i < sizeof modules / sizeof *modules; i++)
        if (strcmp(modules[i].name, name) == 0) found = &modules[i];
    if (found == NULL) stop("DART_FAKE_GPU: no such module");
    struct stat about;
    node = memfd_create("fake_gpu", MFD_CLOEXEC);
    if (node < 0 || ftruncate(node, (off_t)(PANTHOR_REGISTERS + PAGE)) != 0 || fstatat(node, "", &about, AT_EMPTY_PATH) != 0) stop("no memory file");
    node_inode = about.st_ino;
    node_device = about.st_dev;
    module = found;
}

static uint32_t new_buffer(uint64_t bytes)
{
    const uint32_t handle = __atomic_fetch_add(&buffers_count, 1, __ATOMIC_RELAXED);
    if (handle >= MOST_BUFFERS) stop("too many buffers");
    bytes = (bytes + PAGE - 1) / PAGE * PAGE;
    buffers[handle].bytes = bytes;
    buffers[handle].offset = __atomic_fetch_add(&buffers_end, bytes, __ATOMIC_RELAXED);
    return handle;
}

static uint64_t offset_of(uint32_t handle) { return handle < MOST_BUFFERS ? buffers[handle].offset : 0; }

/* ---- Requests that every module takes ---- */

struct version_text { size_t length; char *text; };

static void copy_text(struct version_text *to, const char *text)
{
    const size_t length = strlen(text);
    if (to->text != NULL) memcpy(to->text, text, to->length < length ? to->length : length);
    to->length = length;
}

static int answer_any(unsigned request, void *argument)
{
    enum { VERSION = 0x00, GEM_CLOSE = 0x09, GET_CAP = 0x0c, SET_CLIENT_CAP = 0x0d, SYNCOBJ_CREATE = 0xbf, SYNCOBJ_DESTROY, SYNCOBJ_WAIT = 0xc3,
           SYNCOBJ_RESET, SYNCOBJ_SIGNAL, SYNCOBJ_TIMELINE_WAIT = 0xca, SYNCOBJ_QUERY, SYNCOBJ_TRANSFER, SYNCOBJ_TIMELINE_SIGNAL };
    enum { CAP_PRIME = 0x05, CAP_SYNCOBJ = 0x13, CAP_SYNCOBJ_TIMELINE = 0x14 };
    struct { int numbers[3]; struct version_text name, date, about; } *version = argument;
    struct { uint64_t which, value; } *cap = argument;
    struct { uint32_t handle; } *syncobj = argument;
    switch (request) {
    case VERSION:
        memcpy(version->numbers, module->version, sizeof version->numbers);
        copy_text(&version->name, module->name);
        copy_text(&version->date, "20260101");
        copy_text(&version->about, "not there");
        return 0;
    case GET_CAP:
        cap->value = cap->which == CAP_PRIME ? 3 : cap->which == CAP_SYNCOBJ || cap->which == CAP_SYNCOBJ_TIMELINE;
        return 0;
    case SYNCOBJ_CREATE: syncobj->handle = new_buffer(PAGE); return 0;
    case GEM_CLOSE: case SET_CLIENT_CAP: case SYNCOBJ_DESTROY: case SYNCOBJ_WAIT: case SYNCOBJ_RESET: case SYNCOBJ_SIGNAL:
    case SYNCOBJ_TIMELINE_WAIT: case SYNCOBJ_QUERY: case SYNCOBJ_TRANSFER: case SYNCOBJ_TIMELINE_SIGNAL: return 0;
    default: return EINVAL;
    }
}

/* ---- i915 ---- */

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
    topology.slices = (uint16_t)count_a;
    topology.subslices = (uint16_t)count_b;
    topology.eus = (uint16_t)count_c;
    topology.subslice_at = 1;
    topology.subslice_stride = (uint16_t)((count_b + 7) / 8);
    topology.eu_at = (uint16_t)(1 + count_a * topology.subslice_stride);
    topology.eu_stride = (uint16_t)((count_c + 7) / 8);
    const uint32_t eu_bytes = count_a * count_b * topology.eu_stride;
    if (count_a > 8 || topology.eu_at + eu_bytes > sizeof topology.masks) stop("too many slices");
    topology.masks[0] = (uint8_t)((1u << count_a) - 1);
    for (uint32_t i = 0; i < count_a * count_b; i++)
        topology.masks[1 + i / count_b * topology.subslice_stride + i % count_b / 8] |= (uint8_t)(1u << i % count_b % 8);
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
    struct { uint32_t count, pad[3]; struct region regions[2]; } list = {.count = own_memory != 0 ? 2 : 1};
    for (uint32_t i = 0; i < list.count; i++) {
        struct region *r = &list.regions[i];
        r->class = (uint16_t)i;
        r->bytes = r->free_bytes = r->visible = r->free_visible = i == 0 ? 16 * GIB : own_memory;
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
    case CHIPSET_ID: *value = (int)chip_id; return 0;
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

static int answer_i915(unsigned request, void *argument)
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
    case CREATE: case CREATE_EXT: create->handle = new_buffer(create->bytes); return 0;
    case USERPTR: userptr->handle = new_buffer(userptr->bytes); return 0;
    case MMAP_OFFSET: map->offset = offset_of(map->handle); return 0;
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

/* ---- msm (Adreno) ---- */

/* The number by which chips up to the 7xx's first were called, e.g. 650; 0 for those that have an id only. */
static uint32_t adreno_number(void)
{
    if (chip_id >> 24 >= 0x40) return 0;
    return (chip_id >> 24) * 100 + (chip_id >> 16 & 0xff) * 10 + (chip_id >> 8 & 0xff);
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
    case GMEM_BYTES: *value = count_a * UINT64_C(1024); return 0;
    case CHIP_ID: *value = chip_id; return 0;
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

static int answer_msm(unsigned request, void *argument)
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
    case GEM_NEW: gem->handle = new_buffer(gem->bytes); return 0;
    case GEM_INFO:
        if (info->which == INFO_OFFSET || info->which == INFO_ADDRESS) info->value = offset_of(info->handle);
        if (info->which == INFO_FLAGS) info->value = 0x20000; /* write-combined */
        return 0;
    case MADVISE: advice->retained = 1; return 0;
    case QUEUE_NEW: queue->id = 1; return 0;
    case CPU_PREPARE: case CPU_FINISH: case SUBMIT: case WAIT_FENCE: case QUEUE_CLOSE: case QUEUE_QUERY: return 0;
    default: return EINVAL;
    }
}

/* ---- nouveau ---- */

/* Classes of the engines that a chip has: copy, 3D, compute, then 2D and memory to memory, which do not change. */
static void nouveau_classes(int32_t classes[5])
{
    static const struct { uint32_t first_chip; uint16_t copy, graphics, compute; } generations[] = {
        {0x120, 0xb0b5, 0xb197, 0xb1c0}, /* Maxwell */ {0x130, 0xc0b5, 0xc097, 0xc0c0}, {0x132, 0xc1b5, 0xc197, 0xc1c0}, /* Pascal */
        {0x140, 0xc3b5, 0xc397, 0xc3c0}, /* Volta */   {0x160, 0xc5b5, 0xc597, 0xc5c0}, /* Turing */
        {0x170, 0xc6b5, 0xc697, 0xc6c0}, {0x172, 0xc7b5, 0xc797, 0xc7c0}, /* Ampere */
        {0x190, 0xc7b5, 0xc997, 0xc9c0}, /* Ada */     {0x1b0, 0xcab5, 0xce97, 0xcec0} /* Blackwell */
    };
    size_t i = sizeof generations / sizeof *generations - 1;
    while (i > 0 && generations[i].first_chip > chip_id) i--;
    classes[0] = generations[i].copy;
    classes[1] = generations[i].graphics;
    classes[2] = generations[i].compute;
    classes[3] = 0x902d;
    classes[4] = 0xa140;
}

static int nouveau_parameter(uint64_t which, uint64_t *value)
{
    enum {
        PCI_VENDOR = 3,
        PCI_DEVICE,
        BUS_TYPE,
        FB_BYTES = 8,
        AGP_BYTES,
        CHIPSET = 11,
        GRAPH_UNITS = 13,
        PTIMER_TIME,
        HAS_BO_USAGE,
        EXEC_PUSH_MAX = 17,
        VRAM_BAR_BYTES,
        VRAM_USED,
        HAS_VMA_TILEMODE
    };
    switch (which) {
    case PCI_VENDOR: *value = module->pci_vendor; return 0;
    case PCI_DEVICE: *value = chip_id; return 0;
    case BUS_TYPE: *value = 2; return 0;
    case FB_BYTES: case VRAM_BAR_BYTES: *value = own_memory; return 0;
    case AGP_BYTES: *value = 1024 * GIB; return 0;
    case CHIPSET: *value = chip_id; return 0;
    case GRAPH_UNITS: *value = count_a | (uint64_t)count_b << 8; return 0;
    case PTIMER_TIME: case VRAM_USED: *value = 0; return 0;
    case HAS_BO_USAGE: case HAS_VMA_TILEMODE: *value = 1; return 0;
    case EXEC_PUSH_MAX: *value = 512; return 0;
    default: return EINVAL;
    }
}

/* A request inside a request: which engines there are, and what device. */
static void answer_nvif(void *argument)
{
    enum { CLASSES = 1, METHOD = 4, DEVICE_INFO = 0, PCIE = 3 };
    struct {
        uint8_t version, type, pad[22], version_inside, count_or_method, pad_inside[6];
        union {
            struct { int32_t class; int16_t least, most; } classes[5];
            struct { uint8_t version, platform; uint16_t chipset; uint8_t revision, family, pad[2]; uint64_t bytes, user_bytes; } device;
        };
    } *nvif = argument;
    if (nvif->type == CLASSES) {
        int32_t classes[5];
        nouveau_classes(classes);
        for (uint8_t i = 0; i < nvif->count_or_method && i < 5; i++) nvif->classes[i].class = classes[i];
        nvif->count_or_method = 5;
    } else if (nvif->type == METHOD && nvif->count_or_method == DEVICE_INFO) {
        nvif->device.platform = PCIE;
        nvif->device.chipset = (uint16_t)chip_id;
        nvif->device.bytes = nvif->device.user_bytes = own_memory;
    }
}

static int answer_nouveau(unsigned request, void *argument)
{
    enum {
        GETPARAM = 0x00,
        CHANNEL_ALLOC = 0x02,
        CHANNEL_FREE,
        NVIF = 0x07,
        VM_INIT = 0x10,
        VM_BIND,
        EXEC,
        GEM_NEW = 0x40,
        GEM_PUSHBUF,
        GEM_CPU_PREPARE,
        GEM_CPU_FINISH,
        GEM_INFO
    };
    struct { uint64_t which, value; } *parameter = argument;
    struct { uint32_t pad[2]; int32_t id; uint32_t domains, notifier; } *channel = argument;
    struct { uint32_t handle, domain; uint64_t bytes, address, map; } *gem = argument;
    switch (request) {
    case GETPARAM: return nouveau_parameter(parameter->which, &parameter->value);
    case CHANNEL_ALLOC:
        channel->id = 1;
        channel->domains = 6;
        channel->notifier = new_buffer(PAGE);
        return 0;
    case NVIF: answer_nvif(argument); return 0;
    case GEM_NEW:
        gem->handle = new_buffer(gem->bytes);
        gem->address = gem->map = offset_of(gem->handle);
        return 0;
    case GEM_INFO:
        gem->bytes = buffers[gem->handle % MOST_BUFFERS].bytes;
        gem->address = gem->map = offset_of(gem->handle);
        return 0;
    case CHANNEL_FREE: case VM_INIT: case VM_BIND: case EXEC: case GEM_PUSHBUF: case GEM_CPU_PREPARE: case GEM_CPU_FINISH: return 0;
    default: return EINVAL;
    }
}

/* ---- panthor (Mali from the G310 and G610 on) ---- */

struct panthor_query { uint32_t what, bytes; void *data; };

/* The registers of a G610, but for its id and the number of its cores. */
static int answer_panthor_query(struct panthor_query *query)
{
    enum { GPU = 0, CSIF, TIMESTAMP, PRIORITIES };
    const struct {
        uint32_t id, revision, csf, l2, tiler, memory, mmu, threads, most_threads, most_in_workgroup, most_at_barrier, coherency, textures[4],
            address_spaces, pad;
        uint64_t cores, l2s, tilers;
        uint32_t core, pad_after;
    } gpu = {.id = chip_id, .csf = 0x040a0412, .l2 = 0x07120306, .tiler = 0x809, .memory = 0x301, .mmu = 0x2830, .threads = 0x04010000,
             .most_threads = 2048, .most_in_workgroup = 1024, .most_at_barrier = 1024,
             .textures = {0xc1ffff9e, 0xffffffff, 0xffffffff, 0xffffffff}, .address_spaces = 0xff,
             .cores = (UINT64_C(1) << count_a) - 1, .l2s = 1, .tilers = 1, .core = count_b};
    const struct { uint32_t groups, queues, registers, scoreboards, reserved, pad; } csif = {8, 8, 96, 8, 4, 0};
    const struct { uint64_t frequency, now, offset; } timestamp = {19200000, 1, 0};
    const struct { uint8_t allowed, pad[7]; } priorities = {.allowed = 7};
    const struct { const void *data; size_t bytes; } answers[] = {
        [GPU] = {&gpu, sizeof gpu}, [CSIF] = {&csif, sizeof csif}, [TIMESTAMP] = {&timestamp, sizeof timestamp},
        [PRIORITIES] = {&priorities, sizeof priorities}};
    if (query->what >= sizeof answers / sizeof *answers) return EINVAL;
    const size_t bytes = answers[query->what].bytes;
    if (query->data == NULL) query->bytes = (uint32_t)bytes;
    else memcpy(query->data, answers[query->what].data, query->bytes < bytes ? query->bytes : bytes);
    return 0;
}

static int answer_panthor(unsigned request, void *argument)
{
    enum { QUERY = 0, VM_CREATE, VM_DESTROY, VM_BIND, VM_STATE, BUFFER_CREATE, BUFFER_MAP, GROUP_CREATE, GROUP_DESTROY, GROUP_SUBMIT, GROUP_STATE,
           HEAP_CREATE, HEAP_DESTROY };
    struct { uint32_t flags, id; uint64_t bytes; } *vm = argument;
    struct { uint32_t id, state; } *state = argument;
    struct { uint64_t bytes; uint32_t flags, vm, handle; } *buffer = argument;
    struct { uint32_t handle, pad; uint64_t offset; } *map = argument;
    struct { uint64_t queues[2]; uint8_t most[4]; uint32_t pad; uint64_t cores[3]; uint32_t vm, handle; } *group = argument;
    struct { uint32_t vm, chunks, chunk_bytes, most_chunks, in_flight, handle; uint64_t context, first; } *heap = argument;
    switch (request) {
    case QUERY: return answer_panthor_query(argument);
    case VM_CREATE: vm->id = 1; return 0;
    case VM_STATE: state->state = 0; return 0;
    case BUFFER_CREATE: buffer->handle = new_buffer(buffer->bytes); return 0;
    case BUFFER_MAP: map->offset = offset_of(map->handle); return 0;
    case GROUP_CREATE: group->handle = 1; return 0;
    case HEAP_CREATE:
        heap->handle = 1;
        heap->context = heap->first = PAGE;
        return 0;
    case VM_DESTROY: case VM_BIND: case GROUP_DESTROY: case GROUP_SUBMIT: case GROUP_STATE: case HEAP_DESTROY: return 0;
    default: return EINVAL;
    }
}

/* ---- Functions of libc ---- */

static bool is_node(int fd)
{
    struct stat about;
    return module != NULL && fstatat(fd, "", &about, AT_EMPTY_PATH) == 0 && about.st_ino == node_inode && about.st_dev == node_device;
}

PUBLIC int ioctl(int fd, unsigned long code, ...)
{
    va_list list;
    va_start(list, code);
    void *argument = va_arg(list, void *);
    va_end(list);
    const unsigned kind = code >> 8 & 0xff, request = code & 0xff;
    if (kind != 'd' || !is_node(fd)) return (int)syscall(SYS_ioctl, fd, code, argument);
    const bool own = request >= FIRST_REQUEST_OF_MODULE && request <= LAST_REQUEST_OF_MODULE;
    const int status = own ? module->answer(request - FIRST_REQUEST_OF_MODULE, argument) : answer_any(request, argument);
    if (status == 0) return 0;
    if (getenv("DART_FAKE_GPU_TRACE") != NULL)
        fprintf(stderr, "fake_gpu: refused %s 0x%02x of %u\n", own ? module->name : "drm", own ? request - FIRST_REQUEST_OF_MODULE : request,
                *(unsigned *)argument);
    errno = status;
    return -1;
}

static int open_path(const char *path, int flags, va_list list)
{
    const mode_t mode = (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(list, mode_t) : 0;
    if (module != NULL && strcmp(path, NODE) == 0) return fcntl(node, F_DUPFD_CLOEXEC, 3);
    return (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
}

#define OPEN(name, more) \
    PUBLIC int name(const char *path, int flags, ...) \
    { \
        va_list list; \
        va_start(list, flags); \
        const int fd = open_path(path, flags | (more), list); \
        va_end(list); \
        return fd; \
    }
OPEN(open, 0)
OPEN(open64, O_LARGEFILE)
OPEN(__open_2, 0) /* what a fortified program calls */
OPEN(__open64_2, O_LARGEFILE)

#define STAT(name, at) \
    PUBLIC int name(const char *restrict path, struct name *restrict about) \
    { \
        if (module == NULL || strcmp(path, NODE) != 0) return at(AT_FDCWD, path, about, 0); \
        *about = (struct name){.st_mode = S_IFCHR | 0666, .st_rdev = NODE_NUMBER}; \
        return 0; \
    }
STAT(stat, fstatat)
STAT(stat64, fstatat64)

/* ---- Functions of libdrm: one device, never freed ---- */

enum { DRM_NODE_RENDER = 2, DRM_BUS_PCI = 0, DRM_BUS_PLATFORM = 2 };
typedef struct drm_device { char **nodes; int nodes_there, bus; void *bus_info, *device_info; } drm_device;

static drm_device *the_device(void)
{
    static char render[] = NODE, none[sizeof render], *nodes[] = {none, none, render};
    static struct { uint16_t domain; uint8_t bus, device, function; } pci_place = {0, 0, 2, 0};
    static struct { uint16_t vendor, device, subvendor, subdevice; uint8_t revision; } pci;
    static char platform_place[512] = "/gpu", compatible[32], *compatibles[] = {compatible, NULL};
    static struct { char **compatible; } platform = {compatibles};
    static drm_device device = {.nodes = nodes, .nodes_there = 1 << DRM_NODE_RENDER};
    const bool on_pci = module->pci_vendor != 0;
    pci.vendor = module->pci_vendor;
    pci.device = (uint16_t)chip_id;
    snprintf(compatible, sizeof compatible, "%s", module->compatible);
    device.bus = on_pci ? DRM_BUS_PCI : DRM_BUS_PLATFORM;
    device.bus_info = on_pci ? (void *)&pci_place : platform_place;
    device.device_info = on_pci ? (void *)&pci : &platform;
    return &device;
}

PUBLIC int drmGetDevices2(uint32_t flags, drm_device **list, int room)
{
    (void)flags;
    if (module == NULL) return 0;
    if (list != NULL && room > 0) list[0] = the_device();
    return 1;
}

PUBLIC int drmGetDevices(drm_device **list, int room) { return drmGetDevices2(0, list, room); }

PUBLIC int drmGetDevice2(int fd, uint32_t flags, drm_device **device)
{
    (void)flags;
    if (!is_node(fd)) return -ENODEV;
    *device = the_device();
    return 0;
}

PUBLIC int drmGetDevice(int fd, drm_device **device) { return drmGetDevice2(fd, 0, device); }

PUBLIC int drmGetDeviceFromDevId(dev_t number, uint32_t flags, drm_device **device)
{
    (void)flags;
    if (module == NULL || number != NODE_NUMBER) return -ENODEV;
    *device = the_device();
    return 0;
}

PUBLIC void drmFreeDevice(drm_device **device) { *device = NULL; }

PUBLIC void drmFreeDevices(drm_device **list, int count)
{
    for (int i = 0; i < count; i++) list[i] = NULL;
}

/* A GPU that is not there, shown to Mesa's Vulkan drivers for Intel, Adreno, Mali and NVIDIA: preloaded into a program, it answers in
 * place of the Linux kernel, so that a driver opens a device and compiles for it. Nothing runs: work is accepted and forgotten.
 * tools/with-vulkan.sh fake:CHIP preloads it with DART_FAKE_GPU="MODULE ID A B C GIB" (chips.txt says what they mean), and so does
 * mali.sh for Mali.
 * DART_FAKE_GPU_TRACE, when set, makes it name requests that it refused.
 *
 * Drivers find devices through libdrm, whose functions for that are replaced. The device node is a memory file; buffers lie in it
 * one after another, so that mmap of the node works as it is. A file beside this one has the requests of each of the kernel's modules. */
#define _GNU_SOURCE
#include "fake_gpu.h"

#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#define PUBLIC __attribute__((visibility("default")))
#define NODE "/dev/dri/renderD128"
#define NODE_NUMBER makedev(226, 128)
#define MOST_BUFFERS (1u << 20)
#define FIRST_REQUEST_OF_MODULE 0x40u
#define LAST_REQUEST_OF_MODULE 0x9fu

static const struct module {
    const char *name;
    fake_answer *answer;
    uint16_t pci_vendor; /* 0: not on a PCI bus */
    const char *compatible;
    int version[3]; /* of the kernel's driver */
} modules[] = {
    {"i915", fake_i915, 0x8086, "", {1, 6, 0}},
    {"msm", fake_msm, 0, "qcom,adreno", {1, 12, 0}},
    {"nouveau", fake_nouveau, 0x10de, "", {1, 4, 0}},
    {"panthor", fake_panthor, 0, "arm,mali-valhall-csf", {1, 3, 0}},
};

static const struct module *module; /* NULL: the library does nothing */
struct fake_chip fake_chip;
static int node = -1;
static ino_t node_inode;
static dev_t node_device;

static struct { uint64_t offset, bytes; } buffers[MOST_BUFFERS];
static uint32_t buffers_count = 1;
static uint64_t buffers_end = PAGE;

void fake_stop(const char *why)
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
    if (sscanf(text, "%15s %x %u %u %u %u", name, &fake_chip.id, &fake_chip.a, &fake_chip.b, &fake_chip.c, &gib) != 6)
        fake_stop("DART_FAKE_GPU: six words expected");
    fake_chip.memory = gib * GIB;
    const struct module *found = NULL;
    for (size_t i = 0; i < sizeof modules / sizeof *modules; i++)
        if (strcmp(modules[i].name, name) == 0) found = &modules[i];
    if (found == NULL) fake_stop("DART_FAKE_GPU: no such module");
    struct stat about;
    node = memfd_create("fake_gpu", MFD_CLOEXEC);
    if (node < 0 || ftruncate(node, (off_t)(PANTHOR_REGISTERS + PAGE)) != 0 || fstatat(node, "", &about, AT_EMPTY_PATH) != 0)
        fake_stop("no memory file");
    node_inode = about.st_ino;
    node_device = about.st_dev;
    module = found;
}

uint32_t fake_buffer(uint64_t bytes)
{
    const uint32_t handle = __atomic_fetch_add(&buffers_count, 1, __ATOMIC_RELAXED);
    if (handle >= MOST_BUFFERS) fake_stop("too many buffers");
    bytes = (bytes + PAGE - 1) / PAGE * PAGE;
    buffers[handle].bytes = bytes;
    buffers[handle].offset = __atomic_fetch_add(&buffers_end, bytes, __ATOMIC_RELAXED);
    return handle;
}

uint64_t fake_bytes(uint32_t handle) { return buffers[handle % MOST_BUFFERS].bytes; }
uint64_t fake_offset(uint32_t handle) { return handle < MOST_BUFFERS ? buffers[handle].offset : 0; }

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
    case SYNCOBJ_CREATE: syncobj->handle = fake_buffer(PAGE); return 0;
    case GEM_CLOSE: case SET_CLIENT_CAP: case SYNCOBJ_DESTROY: case SYNCOBJ_WAIT: case SYNCOBJ_RESET: case SYNCOBJ_SIGNAL:
    case SYNCOBJ_TIMELINE_WAIT: case SYNCOBJ_QUERY: case SYNCOBJ_TRANSFER: case SYNCOBJ_TIMELINE_SIGNAL: return 0;
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
    pci.device = (uint16_t)fake_chip.id;
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

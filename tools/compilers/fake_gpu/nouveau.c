/* NVIDIA: the kernel's nouveau. */
#include "fake_gpu.h"

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
    while (i > 0 && generations[i].first_chip > fake_chip.id) i--;
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
    case PCI_VENDOR: *value = 0x10de; return 0;
    case PCI_DEVICE: *value = fake_chip.id; return 0;
    case BUS_TYPE: *value = 2; return 0;
    case FB_BYTES: case VRAM_BAR_BYTES: *value = fake_chip.memory; return 0;
    case AGP_BYTES: *value = 1024 * GIB; return 0;
    case CHIPSET: *value = fake_chip.id; return 0;
    case GRAPH_UNITS: *value = fake_chip.a | (uint64_t)fake_chip.b << 8; return 0;
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
        nvif->device.chipset = (uint16_t)fake_chip.id;
        nvif->device.bytes = nvif->device.user_bytes = fake_chip.memory;
    }
}

int fake_nouveau(unsigned request, void *argument)
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
        channel->notifier = fake_buffer(PAGE);
        return 0;
    case NVIF: answer_nvif(argument); return 0;
    case GEM_NEW:
        gem->handle = fake_buffer(gem->bytes);
        gem->address = gem->map = fake_offset(gem->handle);
        return 0;
    case GEM_INFO:
        gem->bytes = fake_bytes(gem->handle);
        gem->address = gem->map = fake_offset(gem->handle);
        return 0;
    case CHANNEL_FREE: case VM_INIT: case VM_BIND: case EXEC: case GEM_PUSHBUF: case GEM_CPU_PREPARE: case GEM_CPU_FINISH: return 0;
    default: return EINVAL;
    }
}

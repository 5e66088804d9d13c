/* Mali from the G310 and G610 on: the kernel's panthor. */
#include "fake_gpu.h"

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
    } gpu = {.id = fake_chip.id, .csf = 0x040a0412, .l2 = 0x07120306, .tiler = 0x809, .memory = 0x301, .mmu = 0x2830, .threads = 0x04010000,
             .most_threads = 2048, .most_in_workgroup = 1024, .most_at_barrier = 1024,
             .textures = {0xc1ffff9e, 0xffffffff, 0xffffffff, 0xffffffff}, .address_spaces = 0xff,
             .cores = (UINT64_C(1) << fake_chip.a) - 1, .l2s = 1, .tilers = 1, .core = fake_chip.b};
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

int fake_panthor(unsigned request, void *argument)
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
    case BUFFER_CREATE: buffer->handle = fake_buffer(buffer->bytes); return 0;
    case BUFFER_MAP: map->offset = fake_offset(map->handle); return 0;
    case GROUP_CREATE: group->handle = 1; return 0;
    case HEAP_CREATE:
        heap->handle = 1;
        heap->context = heap->first = PAGE;
        return 0;
    case VM_DESTROY: case VM_BIND: case GROUP_DESTROY: case GROUP_SUBMIT: case GROUP_STATE: case HEAP_DESTROY: return 0;
    default: return EINVAL;
    }
}

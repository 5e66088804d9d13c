/* Sets of launches that do not wait for one another: which of them are one launch (CUDA_MERGED), and which begin before the launch before them has
 * ended (CUDA_EARLY, CUDA_OVERLAP). */
#include "cu.h"

#include <string.h>

bool cu_launch_overlaps(const cu_stream *stream, uint32_t i)
{
    const cu_launch *at = &stream->launches[i];
    return i > 0 && at->barrier && at->kernel->overlaps == at[-1].id && (i == 1 || at[-1].barrier);
}

static const cu_merged *find_merged(const cu_device *device, const cu_launch *launches, uint32_t count)
{
    for (uint32_t m = 0; m < device->merged_count && count <= MERGED_MOST + 1; m++) {
        const cu_merged *merged = &device->merged[m];
        uint32_t i = 0;
        while (i + 1 < count && launches[i].kernel == merged->kernel) i++;
        if (i + 1 == count && launches[i].kernel == merged->last) return merged;
    }
    return NULL;
}

cu_set cu_set_at(const cu_device *device, const cu_stream *stream, uint32_t i)
{
    cu_set set = {.launches = &stream->launches[i], .count = i < stream->launches_count};
    if (set.count == 0) return set;
    while (i + set.count < stream->launches_count && !set.launches[set.count].barrier) set.count++;
    set.merged = find_merged(device, set.launches, set.count);
    set.alone = set.merged != NULL || (set.count == 1 && !set.launches->choice.found && !cu_launch_overlaps(stream, i));
    return set;
}

/* Whether `before` writes to what `at` reads before it waits (CUDA_EARLY). */
static bool writes_fetched(const cu_launch *before, const cu_launch *at)
{
    const kernel_info *writer = &kernel_table[before->id], *reader = &kernel_table[at->id];
    for (uint32_t r = 0; r < reader->bindings_count; r++) {
        const uint64_t from = at->bindings.address[r], end = from + at->bytes[r];
        if ((at->kernel->fetches >> r & 1) == 0 || from == 0) continue;
        for (uint32_t w = 0; w < writer->bindings_count; w++) {
            const uint64_t to = before->bindings.address[w];
            if ((writer->bindings[w].access & ACCESS_WRITE) != 0 && to != 0 && to < end && from < to + before->bytes[w]) return true;
        }
    }
    return false;
}

bool cu_set_begins_early(const cu_set *before, const cu_set *set)
{
    bool early = before->alone && set->alone;
    for (uint32_t i = 0; i < set->count && early; i++) {
        early = set->launches[i].kernel->early;
        for (uint32_t k = 0; k < before->count && early; k++) early = !writes_fetched(&before->launches[k], &set->launches[i]);
    }
    return early;
}

/* The larger bindings that the launches of a set fetch before they wait (CUDA_EARLY), for an earlier launch to prefetch into L2. Nothing where they
 * have more than MOST bytes together: that launch's own loads would queue up behind them. */
static void list_fetches(const cu_set *set, uint64_t address[MERGED_SOON], uint32_t bytes[MERGED_SOON])
{
    enum { LEAST = 1 << 13, MOST = 8 << 20 }; /* in bytes: of one, and of all */
    uint32_t count = 0;
    uint64_t all = 0;
    for (uint32_t i = 0; i < set->count; i++) {
        const cu_launch *launch = &set->launches[i];
        for (uint32_t k = 0; k < kernel_table[launch->id].bindings_count && count < MERGED_SOON; k++) {
            if ((launch->kernel->fetches >> k & 1) == 0 || launch->bindings.address[k] == 0 || launch->bytes[k] < LEAST) continue;
            all += launch->bytes[k];
            address[count] = launch->bindings.address[k];
            bytes[count++] = (uint32_t)(launch->bytes[k] / 16 * 16);
        }
    }
    if (all > MOST) memset(bytes, 0, MERGED_SOON * sizeof *bytes);
}

/* from NULL: room for what is not there. */
static void lay(uint8_t **at, const void *from, size_t bytes)
{
    if (from != NULL) memcpy(*at, from, bytes);
    *at += bytes;
}

/* The parameter is MergedParts of cuda/lib/dart.cuh. */
dart_status cu_set_launch(cu_device *device, const cu_set *set, const cu_set *soon, CUstream to, bool early)
{
    enum { PARTS = MERGED_MOST + 1 };
    _Alignas(8) uint8_t room[PARTS * (sizeof(cu_args) + sizeof(struct CudaBindings) + 8) + MERGED_SOON * 12 + 8] = {0};
    const cu_launch *parts[PARTS] = {NULL};
    uint64_t address[MERGED_SOON] = {0};
    uint32_t bytes[MERGED_SOON] = {0}, blocks = 0;
    const size_t first_args = kernel_table[set->merged->id].args_size, last_args = kernel_table[set->merged->last_id].args_size;
    uint8_t *at = room;
    for (uint32_t k = 0; k + 1 < set->count; k++) parts[k] = &set->launches[k];
    parts[MERGED_MOST] = &set->launches[set->count - 1];
    list_fetches(soon, address, bytes);
    for (uint32_t k = 0; k < PARTS; k++) lay(&at, parts[k] != NULL ? &parts[k]->args : NULL, k < MERGED_MOST ? first_args : last_args);
    at = room + base_round_up((uint64_t)(at - room), 8);
    for (uint32_t k = 0; k < PARTS; k++) lay(&at, parts[k] != NULL ? &parts[k]->bindings : NULL, sizeof(struct CudaBindings));
    lay(&at, address, sizeof address);
    lay(&at, bytes, sizeof bytes);
    for (uint32_t k = 0; k < PARTS; k++) lay(&at, parts[k] != NULL ? &parts[k]->dtypes : NULL, sizeof(uint32_t));
    for (uint32_t k = 0; k < PARTS; k++) {
        uint32_t grid = parts[k] != NULL ? parts[k]->grid : 0;
        if (k < MERGED_MOST && grid > set->merged->most) grid = set->merged->most;
        lay(&at, &grid, sizeof grid);
        blocks += grid;
    }
    void *parameters[] = {room};
    CUlaunchAttribute overlap = {.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION, .value.value = 1};
    const CUlaunchConfig config = {blocks, 1, 1, CUDA_BLOCK, 1, 1, set->merged->shared_bytes, to, &overlap, early};
    return CU(device, cuLaunchKernelEx, &config, set->merged->function, parameters, NULL);
}

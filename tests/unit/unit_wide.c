/* A kernel with more arguments than push constants hold and as many bindings as any kernel has: unit_wide [DEVICE_SPEC]. */
#include "rig.h"

#include "runtime/op.h"
#ifdef DARTLM_VULKAN
#include "vulkan/vk.h"
#endif

#include <stddef.h>

enum { COUNT = 300, INPUTS = 17, WORDS = 31, LAUNCHES = 400 };

static_assert(sizeof(struct bindings_of_wide_check) == KERNEL_MAX_BINDINGS && INPUTS + 1 == KERNEL_MAX_BINDINGS, "a kernel has more bindings");
static_assert(sizeof(struct WideCheckArgs) == KERNEL_MAX_ARGS && KERNEL_MAX_ARGS > PUSH_BYTES, "a kernel has longer arguments");

static uint32_t word(uint32_t launch, uint32_t w) { return (launch + 5 * w) % 16; }
static float element(uint32_t j, uint32_t i) { return (float)((i * 7 + j * 13) % 32); }

static float expected(uint32_t launch, uint32_t i)
{
    float sum = 0.5f;
    for (uint32_t w = 0; w < WORDS; w++) sum += w < INPUTS ? element(w, i) * (float)word(launch, w) : (float)word(launch, w);
    return sum;
}

/* One of many launches of one recording, each with arguments and a result of its own. */
static void launch(op_call *call, const op_operand inputs[INPUTS], const op_operand *y, uint32_t n)
{
    struct WideCheckArgs k = {.count = COUNT, .last = 0.5f};
    uint32_t *at = (uint32_t *)(void *)&k + offsetof(struct WideCheckArgs, a00_at) / sizeof(uint32_t), words[WORDS];
    op_binding bindings[INPUTS + 1];
    for (uint32_t w = 0; w < WORDS; w++) words[w] = word(n, w);
    memcpy((char *)&k + offsetof(struct WideCheckArgs, w00), words, sizeof words);
    op_kernel(call, KERNEL_wide_check, COUNT, FITS_PROBE_CHECK);
    for (uint32_t j = 0; j < INPUTS; j++) bindings[j] = (op_binding){.slot = j, .operand = &inputs[j], .at = &at[j]};
    bindings[INPUTS] = (op_binding){.slot = INPUTS, .operand = y, .at = &k.y_at};
    op_launch(call, &k, base_ceil_div(COUNT, call->T0), bindings, INPUTS + 1);
}

static void sums_everything(void **unused)
{
    (void)unused;
    rig r;
    rig_open(&r, rig_spec);
    if (r.info.max_bindings != 0 && r.info.max_bindings < KERNEL_MAX_BINDINGS + 1) {
        rig_close(&r);
        skip();
    }
    op_operand inputs[INPUTS];
    float host[INPUTS + COUNT];
    for (uint32_t j = 0; j < INPUTS; j++) {
        /* Inputs start at elements 1 to 17; what lies before them would show. */
        for (uint32_t i = 0; i < INPUTS + COUNT; i++) host[i] = i > j && i - j - 1 < COUNT ? element(j, i - j - 1) : 1e6f;
        inputs[j] = (op_operand){"input", rig_tensor(&r, DART_F32, INPUTS + COUNT, host), OP_F32, 1, COUNT};
        inputs[j].of.offset += j + 1;
    }
    op_operand y = {"y", rig_tensor(&r, DART_F32, (uint64_t)LAUNCHES * COUNT, NULL), OP_F32, 1, COUNT};
    const uint64_t first = y.of.offset;
    op_call call;
    rig_begin(&r);
    assert_int_equal(op_begin(&call, r.stream, "wide"), DART_OK);
    assert_true(op_check(&call, inputs, INPUTS));
    for (uint32_t n = 0; n < LAUNCHES; n++) {
        y.of.offset = first + (uint64_t)n * COUNT;
        launch(&call, inputs, &y, n);
    }
    MUST(&r, op_end(&call));
    y.of.offset = first;
    /* The second run must find the arguments where the first did. */
    for (int run = 0; run < 2; run++) {
        MUST(&r, dart_stream_submit(r.stream));
        MUST(&r, dart_stream_wait(r.stream, UINT64_MAX));
        float *got = rig_read(&y.of, (uint64_t)LAUNCHES * COUNT);
        for (uint32_t i = 0; i < LAUNCHES * COUNT; i++)
            if (!(got[i] >= expected(i / COUNT, i % COUNT) && got[i] <= expected(i / COUNT, i % COUNT)))
                fail_msg("run %d, launch %u, element %u: %g, expected %g", run, i / COUNT, i % COUNT, (double)got[i],
                         (double)expected(i / COUNT, i % COUNT));
        for (uint32_t i = 0; i < LAUNCHES * COUNT; i++) got[i] = -1;
        rig_write(&y.of, (uint64_t)LAUNCHES * COUNT, got);
        free(got);
    }
    rig_close(&r);
}

#ifdef DARTLM_VULKAN
static struct made {
    uint32_t pools, buffers;
    PFN_vkCreateDescriptorPool create_pool;
    PFN_vkCreateBuffer create_buffer;
} made;

static VKAPI_ATTR VkResult VKAPI_CALL count_pool(VkDevice device, const VkDescriptorPoolCreateInfo *info, const VkAllocationCallbacks *by,
                                                 VkDescriptorPool *pool)
{
    made.pools++;
    return made.create_pool(device, info, by, pool);
}
static VKAPI_ATTR VkResult VKAPI_CALL count_buffer(VkDevice device, const VkBufferCreateInfo *info, const VkAllocationCallbacks *by, VkBuffer *buffer)
{
    made.buffers++;
    return made.create_buffer(device, info, by, buffer);
}

/* Descriptors and arguments of a recording serve the next one, whether it is sets or descriptors that a pool runs out of. */
static void records_again_with_what_it_has(void **unused)
{
    (void)unused;
    rig r;
    rig_open(&r, rig_spec);
    if (r.info.backend != DART_BACKEND_VULKAN || (r.info.max_bindings != 0 && r.info.max_bindings < KERNEL_MAX_BINDINGS + 1)) {
        rig_close(&r);
        skip();
    }
    vk_device *device = r.device->handle;
    made = (struct made){.create_pool = device->vk.vkCreateDescriptorPool, .create_buffer = device->vk.vkCreateBuffer};
    device->vk.vkCreateDescriptorPool = count_pool;
    device->vk.vkCreateBuffer = count_buffer;
    op_operand inputs[INPUTS], y = {"y", rig_tensor(&r, DART_F32, COUNT, NULL), OP_F32, 1, COUNT};
    for (uint32_t j = 0; j < INPUTS; j++) inputs[j] = (op_operand){"input", rig_tensor(&r, DART_F32, COUNT, NULL), OP_F32, 1, COUNT};
    for (int narrow = 0; narrow < 2; narrow++) {
        struct made first = {0};
        for (int time = 0; time < 3; time++) {
            op_call call;
            rig_begin(&r);
            assert_int_equal(op_begin(&call, r.stream, "wide"), DART_OK);
            for (uint32_t n = 0; n < LAUNCHES && !narrow; n++) launch(&call, inputs, &y, n);
            MUST(&r, op_end(&call));
            for (uint32_t n = 0; n < LAUNCHES && narrow; n++) MUST(&r, dart_fill(r.stream, &(dart_fill_args){.T = 1, .W = COUNT, .y = y.of}));
            if (time == 0) first = made;
        }
        assert_int_equal(made.pools, first.pools);
        assert_int_equal(made.buffers, first.buffers);
    }
    assert_true(made.pools > 1);
    rig_close(&r);
}
#endif

/* A device that sees fewer buffers goes without the kernel, until ops lack one that they need. */
static void goes_without_what_exceeds_a_limit(void **unused)
{
    (void)unused;
    rig r;
    const uint32_t most = kernel_buffers(KERNEL_wide_check) - 1;
    rig_open_with(&r, &(dart_device_options){.spec = rig_spec, .max_bindings = most});
    const uint32_t needed = kernel_needed_buffers(r.device->backend->rows);
    assert_in_range(needed, 2, most);
    op_call call;
    rig_begin(&r);
    assert_int_equal(op_begin(&call, r.stream, "wide"), DART_OK);
    op_kernel(&call, KERNEL_wide_check, 1, FITS_PROBE_CHECK);
    assert_int_equal(op_status(&call), DART_UNSUPPORTED);
    dart_device *refused = NULL;
    assert_int_equal(dart_device_open(r.context, &(dart_device_options){.spec = rig_spec, .max_bindings = needed - 1}, &refused), DART_UNSUPPORTED);
    assert_null(refused);
    rig_close(&r);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(sums_everything),
#ifdef DARTLM_VULKAN
    cmocka_unit_test(records_again_with_what_it_has),
#endif
    cmocka_unit_test(goes_without_what_exceeds_a_limit),
};
RIG_MAIN("unit_wide")

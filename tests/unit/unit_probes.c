/* A probe that goes wrong costs its capability and nothing else: unit_probes [DEVICE_SPEC]. Each probe of the device in turn counts as
 * wrong; calls then take rows that do without, and give the right results. */
#include "rig.h"

#include "conform/conform.h"
#include "runtime/device.h"
#include "runtime/probe.h"

static const struct { uint32_t bit; const char *name; } probed[] = {
    {DART_CAP_MATRIX_F16, "matrix_f16"},   {DART_CAP_MATRIX_BF16, "matrix_bf16"},     {DART_CAP_MATRIX2, "matrix2"},
    {DART_CAP_MATRIX_CUTS, "matrix_cuts"}, {DART_CAP_MATRIX_PLACES, "matrix_places"}, {DART_CAP_RESIDENT, "resident"},
};

/* Of each op that has rows with matrices, sizes that those rows take. */
static const conform_case cases[] = {
    {"ssd", 1, 150, 1, 1, 128, 64, 128, CASE_PARAMS, DART_F32, 0, 0}, {"sma", 1, 40, 1, 1, 128, 64, 16, CASE_STORED, DART_F32, 0, 0},
    {"attention", 1, 40, 1, 1, 1, 64, 1, 0, DART_F32, 0, 0},            {"linear", 1, 20, 1, 1, 64, 48, 1, 0, DART_F32, 0, 0},
};

/* Does one of "kernel[variant] kernel[variant] ..." need the capability? */
static bool uses(const char *variants, uint32_t bit)
{
    char name[80];
    for (uint32_t i = 0; i < kernel_rows_count; i++) {
        const kernel_row *row = &kernel_rows[i];
        snprintf(name, sizeof name, "%s[%s]", kernel_table[row->id].name, row->variant);
        if (row->backend == DART_BACKEND_VULKAN && (row->needs & bit) != 0 && strstr(variants, name) != NULL) return true;
    }
    return false;
}

static void run_cases(rig *r, uint32_t without, uint32_t *with_matrices)
{
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        for (dart_dtype dtype = DART_F16; dtype <= DART_BF16; dtype = (dart_dtype)(dtype + 1)) {
            conform_case c = cases[i];
            conform_outcome outcome;
            char name[160];
            c.dtype = dtype;
            conform_name(&c, name, sizeof name);
            conform_run_case(r->device, &c, 7, &outcome);
            if (!outcome.ran || !outcome.passed)
                fail_msg("%s: %s %s (%s)", name, outcome.ran ? "failed" : "did not run", outcome.text, outcome.variants);
            if (without != 0 && uses(outcome.variants, without)) fail_msg("%s: %s", name, outcome.variants);
            *with_matrices += uses(outcome.variants, DART_CAP_MATRIX);
            conform_release(&outcome);
        }
}

static void does_without_what_a_probe_finds_wrong(void **unused)
{
    (void)unused;
    rig r;
    rig_open(&r, rig_spec);
    const uint32_t whole = r.info.capabilities;
    uint32_t ran = 0, with_matrices = 0;
    if (r.info.backend != DART_BACKEND_NULL) run_cases(&r, 0, &with_matrices);
    rig_close(&r);
    for (size_t i = 0; i < sizeof probed / sizeof probed[0]; i++) {
        if ((whole & probed[i].bit) == 0) {
            print_message("NOT RUN: the device has no %s\n", probed[i].name);
            continue;
        }
        rig_open_with(&r, &(dart_device_options){.spec = rig_spec, .poison = true, .wrong_probes = probed[i].bit});
        assert_int_equal(r.info.capabilities & probed[i].bit, 0);
        assert_int_equal(r.info.capabilities & ~whole, 0);
        uint32_t rest = 0;
        run_cases(&r, probed[i].bit, &rest);
        rig_close(&r);
        ran++;
    }
    /* The cases above must have used what the probes guard where the device has it for calls of any kind. */
    if ((whole & DART_CAP_MATRIX) != 0 && with_matrices == 0) fail_msg("no case took a row with matrices");
    if (ran == 0) skip();
}

/* A device that would never choose the scan's matrix rows, its subgroups being narrow and its registers few, runs them when it counts as having
 * both. */
static void runs_rows_that_it_would_not_choose(void **unused)
{
    (void)unused;
    static const struct { dart_dtype dtype; uint32_t needs; const char *variant; } types[] = {
        {DART_F16, DART_CAP_MATRIX_F16, "matrix_f16"},
        {DART_BF16, DART_CAP_MATRIX_BF16, "matrix_bf16"},
    };
    static const char *const kernels[] = {"ssd_memory", "ssd_state", "ssd_output"};
    uint32_t ran = 0;
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        rig r;
        rig_open_with(&r, &(dart_device_options){.spec = rig_spec, .variant = types[i].variant,
                                                 .with_capabilities = DART_CAP_WIDE | DART_CAP_REGISTERS160, .poison = true});
        const bool able = (r.info.capabilities & (types[i].needs | DART_CAP_LARGE)) == (types[i].needs | DART_CAP_LARGE);
        if (r.info.backend == DART_BACKEND_VULKAN && able) {
            const conform_case c = {"ssd", 1, 70, 2, 1, 16, 32, 64, 0, types[i].dtype, 0, 0};
            conform_outcome outcome;
            conform_run_case(r.device, &c, 7, &outcome);
            if (!outcome.ran || !outcome.passed) fail_msg("%s: %s (%s)", types[i].variant, outcome.text, outcome.variants);
            for (size_t k = 0; k < sizeof kernels / sizeof kernels[0]; k++) {
                char name[64];
                snprintf(name, sizeof name, "%s[%s]", kernels[k], types[i].variant);
                if (strstr(outcome.variants, name) == NULL) fail_msg("%s did not run: %s", name, outcome.variants);
            }
            conform_release(&outcome);
            ran++;
        } else {
            print_message("NOT RUN: the device has no rows %s\n", types[i].variant);
        }
        rig_close(&r);
    }
    if (ran == 0) skip();
}

/* ---- A device that pretends to have matrices: the null backend, whose launches of probes the host computes ---- */

enum { SIDE = 16, ELEMENTS = SIDE * SIDE };

static struct pretender {
    backend fake;
    kernel_id kernel; /* whose output of that slot is off by one bit */
    uint32_t slot;
} pretender;

static float as_float(dart_dtype dtype, const void *bits, size_t i)
{
    float value;
    dart_to_f32(dtype, &value, (const uint16_t *)bits + i, 1);
    return value;
}

static void compute_matrix_check(const backend_launch *launch, dart_dtype dtype)
{
    const void *a = launch->bindings[BINDING_matrix_check_a].memory, *b = launch->bindings[BINDING_matrix_check_b].memory;
    const float *r = launch->bindings[BINDING_matrix_check_r].memory;
    float *y = launch->bindings[BINDING_matrix_check_y].memory;
    for (size_t i = 0; i < ELEMENTS; i++) {
        y[i] = r[i / SIDE];
        for (size_t k = 0; k < SIDE; k++) y[i] += as_float(dtype, a, i / SIDE * SIDE + k) * as_float(dtype, b, k * SIDE + i % SIDE);
        y[i] *= 2;
    }
}

/* As MatrixCheckArgs says. */
static void compute_matrix2_check(const backend_launch *launch, dart_dtype dtype)
{
    const float *a = launch->bindings[BINDING_matrix2_check_a].memory;
    const uint32_t *patterns = launch->bindings[BINDING_matrix2_check_patterns].memory;
    float *reduced = launch->bindings[BINDING_matrix2_check_reduced].memory, *summed = launch->bindings[BINDING_matrix2_check_summed].memory,
          *numbered = launch->bindings[BINDING_matrix2_check_numbered].memory;
    uint16_t *converted = launch->bindings[BINDING_matrix2_check_converted].memory, *placed = launch->bindings[BINDING_matrix2_check_placed].memory,
             *moved = launch->bindings[BINDING_matrix2_check_moved].memory;
    uint32_t *joined = launch->bindings[BINDING_matrix2_check_joined].memory;
    for (size_t i = 0; i < ELEMENTS; i++) {
        uint32_t bits;
        memcpy(&bits, &a[i], sizeof bits);
        reduced[i] = summed[i] = 0;
        for (size_t k = 0; k < SIDE; k++) {
            reduced[i] += a[i / SIDE * SIDE + k];
            summed[i] += a[k * SIDE + i % SIDE];
        }
        numbered[i] = 2 * a[i] + (float)i;
        if (dtype == DART_BF16) converted[i] = (uint16_t)(bits >> 16);
        else dart_from_f32(dtype, &converted[i], &a[i], 1);
        dart_from_f32(DART_F16, &placed[i], &a[i], 1);
        moved[i] = (uint16_t)(patterns[i] >> 16);
        joined[i] = patterns[i] >> 16 | (patterns[(i + 1) % ELEMENTS] & 0xffff0000u);
    }
}

static dart_status pretend(void *device, void *stream, const backend_launch *launch)
{
    (void)device, (void)stream;
    const dart_dtype dtype = (launch->row->fits & FITS_BF16) != 0 ? DART_BF16 : DART_F16;
    if (launch->row->id == KERNEL_matrix_check) compute_matrix_check(launch, dtype);
    else compute_matrix2_check(launch, dtype);
    /* In the exponent of the last element, so that what may be rounded either way is wrong, too. */
    if (launch->row->id == pretender.kernel) {
        const backend_binding *wrong = &launch->bindings[pretender.slot];
        ((unsigned char *)wrong->memory)[wrong->bytes - 1] ^= 0x40;
    }
    return DART_OK;
}

/* What the device keeps of `has` when the output in that slot is wrong. */
static uint32_t kept(uint32_t has, kernel_id kernel, uint32_t slot)
{
    rig r;
    rig_open_with(&r, &(dart_device_options){.spec = "null"});
    pretender = (struct pretender){.fake = *r.device->backend, .kernel = kernel, .slot = slot};
    pretender.fake.stream_launch = pretend;
    r.device->backend = &pretender.fake;
    r.device->info.capabilities |= has;
    assert_int_equal(device_probe(r.device, 0), DART_OK);
    const uint32_t left = r.device->info.capabilities & has;
    rig_close(&r);
    return left;
}

static void heeds_every_verdict(void **unused)
{
    (void)unused;
    const uint32_t matrices = DART_CAP_MATRIX2 | DART_CAP_MATRIX_CUTS | DART_CAP_MATRIX_PLACES;
    static const struct { kernel_id kernel; uint32_t slot, loses; } outputs[] = {
        {KERNEL_matrix2_check, BINDING_matrix2_check_reduced, DART_CAP_MATRIX2 | DART_CAP_MATRIX_CUTS | DART_CAP_MATRIX_PLACES},
        {KERNEL_matrix2_check, BINDING_matrix2_check_summed, DART_CAP_MATRIX2 | DART_CAP_MATRIX_CUTS | DART_CAP_MATRIX_PLACES},
        {KERNEL_matrix2_check, BINDING_matrix2_check_numbered, DART_CAP_MATRIX2 | DART_CAP_MATRIX_CUTS | DART_CAP_MATRIX_PLACES},
        {KERNEL_matrix2_check, BINDING_matrix2_check_placed, DART_CAP_MATRIX_PLACES},
        {KERNEL_matrix2_check, BINDING_matrix2_check_moved, DART_CAP_MATRIX_PLACES},
        {KERNEL_matrix2_check, BINDING_matrix2_check_joined, DART_CAP_MATRIX_PLACES},
    };
    for (uint32_t type = DART_CAP_MATRIX_F16; type != 0; type = type == DART_CAP_MATRIX_F16 ? DART_CAP_MATRIX_BF16 : 0) {
        const uint32_t has = type | matrices;
        assert_int_equal(kept(has, KERNEL_COUNT, 0), has);
        assert_int_equal(kept(has, KERNEL_matrix_check, BINDING_matrix_check_y), 0);
        for (size_t i = 0; i < sizeof outputs / sizeof outputs[0]; i++)
            assert_int_equal(kept(has, outputs[i].kernel, outputs[i].slot), has & ~outputs[i].loses);
        /* bf16 is cut, f16 is rounded as it comes. */
        const uint32_t loses = type == DART_CAP_MATRIX_BF16 ? DART_CAP_MATRIX_CUTS : 0;
        assert_int_equal(kept(has, KERNEL_matrix2_check, BINDING_matrix2_check_converted), has & ~loses);
    }
}

/* Only what is a matter of speed can be claimed: a device without subgroup arithmetic would fail in the driver. */
static void refuses_to_claim_what_code_relies_on(void **unused)
{
    (void)unused;
    dart_context *context = NULL;
    dart_device *device = NULL;
    assert_int_equal(dart_context_create(&(dart_context_options){.without_vulkan = true, .without_cuda = true}, &context), DART_OK);
    assert_int_equal(dart_device_open(context, &(dart_device_options){.spec = "cpu", .with_capabilities = DART_CAP_SUBGROUP}, &device),
                     DART_INVALID_ARGUMENT);
    assert_null(device);
    dart_context_destroy(&context);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(does_without_what_a_probe_finds_wrong), cmocka_unit_test(runs_rows_that_it_would_not_choose),
                                       cmocka_unit_test(heeds_every_verdict), cmocka_unit_test(refuses_to_claim_what_code_relies_on)};
    return rig_main(argc, argv, "unit_probes", tests, sizeof tests / sizeof tests[0]);
}

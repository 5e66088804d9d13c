/* A probe that goes wrong costs its capability and nothing else: unit_probes [DEVICE_SPEC]. Each probe of the device in turn counts as
 * wrong; calls then take rows that do without, and give the right results. */
#include "rig.h"

#include "conform/conform.h"
#include "runtime/kernel.h"

static const struct { uint32_t bit; const char *name; } probed[] = {
    {DART_CAP_MATRIX_F16, "matrix_f16"},   {DART_CAP_MATRIX_BF16, "matrix_bf16"},     {DART_CAP_MATRIX2, "matrix2"},
    {DART_CAP_MATRIX_CUTS, "matrix_cuts"}, {DART_CAP_MATRIX_PLACES, "matrix_places"},
};

/* Of each op that has rows with matrices, sizes that those rows take. */
static const conform_case cases[] = {
    {"ssd", 1, 150, 1, 1, 128, 64, 128, CASE_PARAMS, DART_F32}, {"sma", 1, 40, 1, 1, 128, 64, 16, CASE_STORED, DART_F32},
    {"attention", 1, 40, 1, 1, 1, 64, 1, 0, DART_F32},            {"linear", 1, 20, 1, 1, 64, 48, 1, 0, DART_F32},
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
            if (!outcome.ran || !outcome.passed) fail_msg("%s: %s %s (%s)", name, outcome.ran ? "failed" : "did not run", outcome.text, outcome.variants);
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
    run_cases(&r, 0, &with_matrices);
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

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(does_without_what_a_probe_finds_wrong)};
    return rig_main(argc, argv, "unit_probes", tests, 1);
}

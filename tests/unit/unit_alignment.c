/* Where tensors start and how far their rows are apart: unit_alignment [DEVICE_SPEC]. Ops take fast rows of the table for what 16-byte
 * loads can read. Each tensor of a case in turn starts an element later, eight elements later, and has its rows an element farther apart:
 * the results stay right, or the call is refused. */
#include "rig.h"

#include "conform/conform.h"

/* Sizes that the fast rows take, of every op that has such rows; the ops of training, which have none yet, too. */
static const conform_case cases[] = {
    {"embed", 1, 5, 9, 1, 1, 64, 1, 0, DART_F16, 0, 0},
    {"norm", 1, 4, 1, 1, 1, 64, 1, 0, DART_BF16, 0, 0},
    {"gated_norm", 1, 4, 1, 1, 1, 64, 1, CASE_ADD, DART_F16, 0, 0},
    {"linear", 1, 20, 1, 1, 64, 48, 1, CASE_ADD, DART_F16, 0, 0},
    {"linear", 1, 3, 1, 1, 64, 48, 1, 0, DART_BF16, 0, 0},
    {"linear", 1, 1, 1, 1, 64, 48, 1, CASE_ADD, DART_BF16, 0, 0},
    {"linear", 1, 1, 1, 1, 64, 48, 1, 0, DART_F16, 0, 0},
    {"norm_linear", 1, 5, 1, 1, 64, 48, 1, CASE_ADD, DART_BF16, 0, 0},
    {"conv", 2, 9, 1, 1, 4, 48, 1, CASE_H | CASE_PARAMS, DART_F16, 0, 0},
    {"conv", 3, 1, 1, 1, 4, 48, 1, CASE_SEQ | CASE_PARAMS, DART_BF16, 0, 0},
    {"ssd", 2, 40, 2, 1, 16, 16, 16, CASE_SEQ | CASE_OPEN | CASE_H | CASE_PARAMS | CASE_STORED, DART_F16, 0, 0},
    {"ssd", 3, 1, 2, 1, 16, 16, 3, CASE_SEQ | CASE_OPEN | CASE_H | CASE_STEP, DART_BF16, 0, 0},
    {"ssd", 64, 20, 2, 1, 16, 16, 16, CASE_PARAMS | CASE_BARE, DART_BF16, 0, 0},
    {"ssd", 32, 3, 2, 2, 64, 64, 2, CASE_PARAMS | CASE_BARE, DART_BF16, 0, 0},
    {"sma", 1, 40, 2, 1, 16, 32, 8, CASE_STORED, DART_F16, 0, 0},
    {"sma", 1, 20, 2, 1, 64, 64, 8, CASE_STORED, DART_BF16, 0, 0},
    {"sma", 3, 1, 1, 1, 128, 64, 1, CASE_SEQ | CASE_STEP | CASE_STORED, DART_F16, 0, 0},
    {"sma", 1, 20, 2, 1, 16, 16, 8, 0, DART_F32, 0, 0}, /* raw memories, whose rho is computed */
    {"sma", 1, 20, 2, 1, 16, 16, 8, 0, DART_F16, 0, 0},
    {"attention", 1, 40, 2, 1, 1, 64, 1, 0, DART_F16, 0, 0},
    {"attention", 2, 20, 2, 1, 3, 64, 40, CASE_SEQ | CASE_STORED | CASE_RUNS, DART_BF16, 0, 0},
    {"attention", 2, 1, 2, 1, 3, 64, 40, CASE_SEQ | CASE_STORED | CASE_STEP | CASE_RUNS, DART_F16, 0, 0},
    {"mixer", 3, 48, 2, 1, 16, 16, 2, CASE_SEQ | CASE_OPEN | CASE_PARAMS, DART_BF16, 0, 0},
    {"mixer", 1, 64, 2, 1, 128, 64, 2, CASE_SEQ | CASE_OPEN | CASE_PARAMS | CASE_MIXED, DART_BF16, 0, 0},
    {"embed_backward", 1, 70, 3, 1, 1, 64, 1, 0, DART_F16, 0, 0},
    {"norm_backward", 1, 20, 1, 1, 1, 64, 1, CASE_ADD, DART_BF16, 0, 0},
    {"gated_norm_backward", 1, 20, 1, 1, 1, 64, 1, CASE_ADD, DART_F16, 0, 0},
    {"linear_backward", 1, 20, 1, 1, 64, 48, 1, CASE_ADD, DART_BF16, 0, 0},
    {"linear_backward", 1, 20, 1, 1, 64, 44, 1, CASE_PITCHED, DART_F16, 0, 0},
    {"conv_backward", 2, 40, 1, 1, 4, 48, 1, CASE_SEQ | CASE_PARAMS, DART_F16, 0, 0},
    {"ssd_backward", 2, 40, 2, 1, 16, 16, 16, CASE_SEQ | CASE_H | CASE_PARAMS, DART_F16, 0, 0},
    {"ssd_backward", 64, 20, 2, 1, 16, 16, 16, CASE_PARAMS | CASE_ADD, DART_BF16, 0, 0},
    {"ssd_backward", 32, 3, 2, 2, 64, 64, 2, CASE_PARAMS | CASE_ADD, DART_BF16, 0, 0},
    {"ssd_backward", 1, 70, 2, 1, 32, 32, 64, CASE_PARAMS | CASE_ADD, DART_BF16, 0, 0},
    {"ssd_backward", 1, 270, 2, 1, 128, 64, 256, CASE_PARAMS | CASE_ADD, DART_BF16, 0, 0},
    {"sma_backward", 2, 40, 2, 1, 16, 16, 8, CASE_SEQ | CASE_STORED, DART_BF16, 0, 0},
    {"sma_backward", 2, 40, 2, 1, 16, 16, 8, CASE_SEQ | CASE_STORED, DART_F16, 0, 0},
    {"sma_backward", 2, 20, 2, 1, 64, 64, 8, CASE_SEQ | CASE_STORED, DART_BF16, 0, 0},
    {"sma_backward", 2, 40, 2, 1, 128, 64, 8, CASE_SEQ | CASE_STORED, DART_BF16, 0, 0},
    {"sma_backward", 1, 20, 2, 1, 16, 16, 8, 0, DART_F32, 0, 0}, /* raw memories */
    {"attention_backward", 2, 40, 2, 1, 1, 32, 1, CASE_SEQ, DART_BF16, 0, 0},
    {"attention_backward", 2, 40, 2, 1, 1, 64, 1, CASE_SEQ, DART_BF16, 0, 0},
    {"attention_backward", 2, 40, 2, 1, 1, 128, 1, CASE_SEQ, DART_F16, 0, 0},
    {"cross_entropy", 1, 37, 1, 1, 24, 130, 1, CASE_ADD, DART_F16, 0, 0},
    {"grad_norm", 2, 1, 1, 1, 1, 3000, 1, 0, DART_F32, 0, 0},
    {"adamw", 1, 1, 1, 1, 1, 3000, 1, CASE_ADD, DART_BF16, 0, 0},
    {"linear", 1, 4100, 1, 1, 48, 72, 1, CASE_ADD, DART_BF16, 0, 0},
    {"rope", 2, 9, 3, 1, 1, 64, 1, CASE_SEQ, DART_F16, 0, 0},
    {"swiglu", 1, 9, 1, 1, 1, 64, 1, 0, DART_BF16, 0, 0},
};

typedef struct counts {
    uint32_t right, refused;
} counts;

static uint32_t run(rig *r, const conform_case *c, counts *to)
{
    conform_outcome outcome;
    conform_run_case(r->device, c, 7, &outcome);
    const bool refused = outcome.status == DART_INVALID_ARGUMENT && (c->moved != 0 || c->apart != 0);
    const char *wrong = outcome.status != DART_OK ? outcome.text : outcome.results_count == 0 ? "nothing compared" : NULL;
    for (uint32_t i = 0; i < outcome.results_count; i++)
        if (outcome.results[i].broken || !(outcome.results[i].share <= 1)) wrong = outcome.results[i].tensor;
    if (!refused && wrong != NULL) {
        char name[160];
        conform_name(c, name, sizeof name);
        fail_msg("%s, tensor %u of %u moved, %u apart: %s (%s)", name, c->moved, outcome.tensors, c->apart, wrong, outcome.variants);
    }
    to->right += !refused;
    to->refused += refused;
    conform_release(&outcome);
    return outcome.tensors;
}

static void takes_tensors_anywhere(void **unused)
{
    (void)unused;
    rig r;
    rig_open(&r, rig_spec);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        counts all = {0};
        conform_case c = cases[i];
        const uint32_t tensors = run(&r, &c, &all);
        for (uint32_t k = 1; k <= tensors; k++) {
            c.moved = k;
            run(&r, &c, &all);
            c.flags |= CASE_EIGHT;
            run(&r, &c, &all);
            c.flags &= ~CASE_EIGHT;
            c.moved = 0;
            c.apart = k;
            run(&r, &c, &all);
            c.apart = 0;
        }
        /* Few tensors must lie where a kernel wants them. */
        if (all.refused > all.right) fail_msg("%s: %u calls right, %u refused", c.op, all.right, all.refused);
        print_message("  %s: %u right, %u refused\n", c.op, all.right, all.refused);
    }
    rig_close(&r);
}

/* Through Vulkan, memories of 16 bits that begin at any multiple of eight elements, with scales anywhere, keep the rows with matrices. */
static void memories_keep_their_rows(void **unused)
{
    (void)unused;
    enum { DH = 5, SCALE = 6 }; /* after q, e, c and up_r */
    rig r;
    rig_open_with(&r, &(dart_device_options){.spec = rig_spec, .with_capabilities = DART_CAP_REGISTERS160});
    conform_case c = {"sma_backward", 2, 20, 2, 1, 128, 64, 8, CASE_SEQ | CASE_STORED, DART_F16, 0, 0};
    conform_outcome first, second;
    conform_run_case(r.device, &c, 7, &first);
    const bool has_row = r.info.backend == DART_BACKEND_VULKAN && strstr(first.variants, "sma_backward_token_side[") != NULL;
    for (int i = 0; i < 2 && has_row; i++) {
        c.moved = i == 0 ? DH : SCALE;
        c.flags = CASE_SEQ | CASE_STORED | (i == 0 ? CASE_EIGHT : 0);
        conform_run_case(r.device, &c, 7, &second);
        if (!second.passed || strcmp(second.variants, first.variants) != 0)
            fail_msg("tensor %u moved: %s, not %s", c.moved, second.variants, first.variants);
        conform_release(&second);
    }
    conform_release(&first);
    rig_close(&r);
    if (!has_row) skip();
}

static const struct CMUnitTest tests[] = {cmocka_unit_test(takes_tensors_anywhere), cmocka_unit_test(memories_keep_their_rows)};
RIG_MAIN("unit_alignment")

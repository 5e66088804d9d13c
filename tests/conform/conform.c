#include "conform_suite.h"

#include "runtime/device.h"
#include "conform_data.h"

#include <stdlib.h>
#include <string.h>

enum { IN_F32 = 1 << DART_F32, IN_F16 = 1 << DART_F16, IN_BF16 = 1 << DART_BF16 };

/* The table, one line for all dtypes of a case. */
static const struct { conform_case c; int dtypes; } lines[] = {
#define CASE(op, B, L, H, G, N, P, S, flags, dtypes) {{#op, B, L, H, G, N, P, S, flags, DART_F32, 0, 0}, dtypes},
#include "conform_cases.def"
};

/* What each op launches. */
static const struct {
    const char *op;
    conform_runner run;
    kernel_id kernels[11];
    uint32_t count;
} ops[] = {
    {"convert", conform_dense, {KERNEL_convert, KERNEL_fill}, 2},
    {"embed", conform_dense, {KERNEL_embed}, 1},
    {"norm", conform_dense, {KERNEL_norm}, 1},
    {"layer_norm", conform_dense, {KERNEL_layer_norm}, 1},
    {"gated_norm", conform_dense, {KERNEL_gated_norm}, 1},
    {"linear_bias", conform_dense, {KERNEL_bias}, 1},
    {"linear", conform_dense, {KERNEL_linear}, 1},
    {"linear_from", conform_dense, {KERNEL_linear_from, KERNEL_linear}, 2},
    {"linear_quantised", conform_weights, {KERNEL_linear_quantised, KERNEL_embed_quantised, KERNEL_linear}, 3},
    {"embed_quantised", conform_weights, {KERNEL_embed_quantised}, 1},
    {"embed_backward", conform_dense_backward, {KERNEL_embed_backward, KERNEL_embed_backward_sum}, 2},
    {"norm_backward", conform_dense_backward, {KERNEL_norm_backward, KERNEL_column_sum}, 2},
    {"gated_norm_backward", conform_dense_backward, {KERNEL_gated_norm_backward, KERNEL_column_sum}, 2},
    {"linear_backward", conform_dense_backward, {KERNEL_linear_backward_x, KERNEL_linear_backward_weight, KERNEL_column_sum}, 3},
    {"cross_entropy", conform_loss, {KERNEL_cross_entropy, KERNEL_labelled, KERNEL_loss_sum, KERNEL_cross_entropy_x, KERNEL_cross_entropy_weight}, 5},
    {"grad_norm", conform_optim, {KERNEL_square_sum, KERNEL_grad_scale}, 2},
    {"adamw", conform_optim, {KERNEL_adamw}, 1},
    {"rope", conform_mlp, {KERNEL_rope}, 1},
    {"gelu", conform_mlp, {KERNEL_gelu}, 1},
    {"swiglu", conform_mlp, {KERNEL_swiglu, KERNEL_swiglu_backward}, 2},
    {"attention_backward", conform_attention_backward, {KERNEL_attention_backward_dot, KERNEL_attention_backward_k, KERNEL_attention_backward_q,
                                                        KERNEL_attention_backward_whole}, 4},
    {"conv_backward", conform_conv_backward, {KERNEL_conv_backward, KERNEL_column_sum}, 2},
    {"norm_linear", conform_dense, {KERNEL_mixer_project}, 1},
    {"conv", conform_conv, {KERNEL_conv, KERNEL_conv_tail, KERNEL_conv_step}, 3},
    {"choice", conform_choice, {KERNEL_argmax_part, KERNEL_argmax, KERNEL_sample, KERNEL_advance}, 4},
    {"mark_ids", conform_mark_ids, {KERNEL_mark_ids}, 1},
    {"log_probs", conform_log_probs, {KERNEL_log_probs}, 1},
    {"ssd", conform_ssd, {KERNEL_ssd_decay, KERNEL_ssd_memory, KERNEL_ssd_decay_memory, KERNEL_ssd_state, KERNEL_ssd_output, KERNEL_ssd_piece,
                          KERNEL_ssd_step, KERNEL_sma_append}, 8},
    {"ssd_backward", conform_ssd_backward, {KERNEL_ssd_backward_products, KERNEL_ssd_backward_read, KERNEL_ssd_backward_state,
                                            KERNEL_ssd_backward_scores, KERNEL_ssd_backward_x, KERNEL_ssd_backward_b, KERNEL_ssd_backward_c,
                                            KERNEL_ssd_backward_decay, KERNEL_ssd_backward_gain, KERNEL_ssd_backward_walk}, 10},
    {"sma", conform_sma, {KERNEL_sma_rho, KERNEL_sma_query, KERNEL_sma, KERNEL_sma_step, KERNEL_sma_merge, KERNEL_sma_append, KERNEL_convert}, 7},
    {"sma_backward", conform_sma_backward, {KERNEL_sma_backward_scores, KERNEL_sma_backward_sums, KERNEL_sma_backward_tokens,
                                            KERNEL_sma_backward_norm, KERNEL_sma_backward_memories, KERNEL_sma_backward_dh,
                                            KERNEL_sma_backward_rows, KERNEL_sma_backward_token_side, KERNEL_sma_backward_memory_side,
                                            KERNEL_sma_backward_parts}, 10},
    {"attention", conform_attention, {KERNEL_attention, KERNEL_attention_large, KERNEL_attention_step, KERNEL_attention_step_large,
                                      KERNEL_attention_merge, KERNEL_sma_merge, KERNEL_kv_append, KERNEL_convert}, 8},
    {"mixer", conform_mixer, {KERNEL_mixer_project, KERNEL_mixer_attend, KERNEL_mixer_output, KERNEL_ssd_step, KERNEL_sma_append}, 5},
    {"mixer_layers", conform_mixer, {KERNEL_mixer_layers, KERNEL_mixer_project, KERNEL_mixer_attend, KERNEL_mixer_output, KERNEL_ssd_step}, 5},
    {"mixer_windows", conform_mixer, {KERNEL_mixer_windows, KERNEL_mixer_window_layers, KERNEL_window_project, KERNEL_window_output,
                                      KERNEL_window_gated, KERNEL_window_back, KERNEL_window_fold, KERNEL_window_folds, KERNEL_mixer_project,
                                      KERNEL_mixer_attend, KERNEL_mixer_output}, 11},
    {"mixer_quantised", conform_mixer, {KERNEL_mixer_project_quantised, KERNEL_mixer_output_quantised, KERNEL_mixer_project}, 3},
    {"window", conform_window, {KERNEL_window_append, KERNEL_window_output, KERNEL_window_fold, KERNEL_window_folds}, 4},
};

static const char *const flag_names[] = {"seq", "open",   "h",   "params", "step",   "wide", "dt",   "view",   "tiny",  "huge",  "zero",
                                         "far", "stored", "add", "mixed",  "limits", "form", "runs", "scaled", "large", "exact", "bare", "packed",
                                         "pitched", "gpu", "eight", "quiet"};

void conform_name(const conform_case *c, char *text, size_t size)
{
    int used = snprintf(text, size, "%s B%u L%u H%u G%u N%u P%u S%u %s", c->op, c->B, c->L, c->H, c->G, c->N, c->P, c->S, dart_dtype_name(c->dtype));
    for (size_t i = 0; i < COUNT_OF(flag_names); i++)
        if ((c->flags & 1 << i) != 0 && used > 0 && (size_t)used < size) used += snprintf(text + used, size - (size_t)used, " %s", flag_names[i]);
    if (c->moved > 0 && used > 0 && (size_t)used < size) used += snprintf(text + used, size - (size_t)used, " moved%u", c->moved);
    if (c->apart > 0 && used > 0 && (size_t)used < size) snprintf(text + used, size - (size_t)used, " apart%u", c->apart);
}

bool conform_parse(const char *name, conform_case *c)
{
    static const char letters[] = "BLHGNPS";
    uint32_t *const sizes[] = {&c->B, &c->L, &c->H, &c->G, &c->N, &c->P, &c->S};
    char word[32], again[160];
    *c = (conform_case){.op = NULL};
    for (const char *at = name + strspn(name, " "); *at != '\0'; at += strspn(at, " ")) {
        snprintf(word, sizeof word, "%.*s", (int)strcspn(at, " "), at);
        at += strcspn(at, " ");
        for (size_t i = 0; i < COUNT_OF(ops); i++)
            if (strcmp(ops[i].op, word) == 0) c->op = ops[i].op;
        for (int i = DART_F32; i <= DART_BF16; i++)
            if (strcmp(dart_dtype_name((dart_dtype)i), word) == 0) c->dtype = (dart_dtype)i;
        for (size_t i = 0; i < COUNT_OF(flag_names); i++)
            if (strcmp(flag_names[i], word) == 0) c->flags |= 1 << i;
        for (size_t i = 0; i < COUNT_OF(sizes); i++)
            if (word[0] == letters[i]) *sizes[i] = (uint32_t)strtoul(word + 1, NULL, 10);
        if (strncmp(word, "moved", 5) == 0) c->moved = (uint32_t)strtoul(word + 5, NULL, 10);
        if (strncmp(word, "apart", 5) == 0) c->apart = (uint32_t)strtoul(word + 5, NULL, 10);
    }
    if (c->op == NULL) return false;
    conform_name(c, again, sizeof again);
    return strcmp(again, name) == 0; /* so nothing else, and in this order */
}

uint32_t conform_op_of(const conform_case *c)
{
    for (uint32_t i = 0; i < COUNT_OF(ops) && i < MAX_OPS; i++)
        if (strcmp(ops[i].op, c->op) == 0) return i;
    abort();
}

void conform_run_all(conform_data d, conform_take *take, void *user)
{
    d.take = take;
    d.take_user = user;
    ops[conform_op_of(d.c)].run(&d);
    conform_forget(&d, 0);
}

/* The only run. */
static bool take_once(void *user, conform_run *run)
{
    conform_run *once = user;
    *run = *once;
    once->outcome = NULL;
    return run->outcome != NULL;
}

void conform_run_case(dart_device *device, const conform_case *c, uint64_t seed, conform_outcome *outcome)
{
    conform_run_all((conform_data){.device = device, .c = c, .seed = seed}, take_once, &(conform_run){.outcome = outcome});
}

bool conform_dump_case(const target *t, const conform_case *c, uint64_t seed, const char *path)
{
    static conform_outcome outcome;
    conform_dump dump = {.count = 0};
    conform_run_all((conform_data){.device = t->device, .c = c, .seed = seed, .dump = &dump}, take_once,
                    &(conform_run){.choice = &t->choice, .outcome = &outcome});
    conform_release(&outcome);
    const bool written = conform_dump_write(&dump, path);
    conform_dump_free(&dump);
    return written;
}

void conform_release(conform_outcome *outcome)
{
    for (uint32_t i = 0; i < outcome->results_count; i++) {
        free(outcome->results[i].values);
        outcome->results[i].values = NULL;
    }
}

/* ---- All of them ---- */

dart_status conform_open(const suite *s, const char *spec, uint32_t claimed, dart_device **device)
{
    const dart_device_options options = {.spec = spec, .with_capabilities = claimed, .poison = true,
                                         .without_capabilities = (s->options->no_matrix ? DART_CAP_MATRIX : 0) |
                                                                 (s->options->no_resident ? DART_CAP_RESIDENT : 0),
                                         .minimum_limits = s->options->minimum_limits, .cut = s->options->cut,
                                         .margin = s->options->margin, .backwards = s->options->backwards,
                                         .multiprocessors = s->options->multiprocessors};
    const dart_status status = dart_device_open(s->context, &options, device);
    if (status == DART_OK && s->options->opened != NULL) s->options->opened(*device);
    return status;
}

static bool open_as(suite *s, const char *spec, uint32_t claimed, dart_device **device)
{
    char text[256];
    if (conform_open(s, spec, claimed, device) == DART_OK) return true;
    dart_context_error(s->context, text, sizeof text);
    /* A device that was asked for by name and is not there is a failure; one of the listing is not. */
    fprintf(s->options->json ? stderr : s->out, "%s  device %s: %s\n", s->options->devices_count > 0 ? "FAILED " : "NOT RUN", spec, text);
    if (s->options->devices_count > 0) s->failed++;
    else s->not_run++;
    return false;
}

/* own: the target of the device as it chooses; NULL: this is it, and `variant` is "". */
static bool add_target(suite *s, const char *spec, const char *variant, uint32_t claimed, const target *own)
{
    if (s->targets_count == MAX_TARGETS) abort();
    target *t = &s->targets[s->targets_count];
    *t = (target){.shares = own != NULL, .claimed = claimed, .number = s->devices_count};
    if (own == NULL && !open_as(s, spec, 0, &t->device)) return false;
    if (own == NULL) dart_device_describe(t->device, &t->info);
    else t->info = own->info;
    if (own != NULL) t->device = own->device;
    t->info.capabilities |= claimed;
    snprintf(t->spec, sizeof t->spec, "%s", spec);
    snprintf(t->variant, sizeof t->variant, "%s", variant);
    t->choice = (stream_choice){.capabilities = t->info.capabilities, .variant = variant[0] != '\0' ? t->variant : NULL};
    s->targets_count++;
    return true;
}

/* Does some case that the options leave launch the kernel? */
static bool is_wanted(const suite *s, kernel_id id)
{
    for (uint32_t i = 0; i < s->cases_count; i++) {
        const uint32_t op = conform_op_of(&s->cases[i]);
        for (uint32_t k = 0; k < ops[op].count; k++)
            if (ops[op].kernels[k] == id) return true;
    }
    return false;
}

/* Does the device get right results from the row, and is it to run it? Rows with matrices that it lacks speed for included, and on a processor those
 * that count on registers or whose workgroups wait for one another; others of that kind would double the time of the drivers that are processors, and
 * run where they are chosen. */
bool conform_can_run(const kernel_row *row, const dart_device_info *info)
{
    const uint32_t claimed = ROW_HAS_MATRIX(row) ? DART_CAP_SPEED : info->type == DART_DEVICE_CPU ? DART_CAP_REGISTERS160 | DART_CAP_RESIDENT : 0;
    return row->backend == info->backend && (row->needs & ~(info->capabilities | claimed)) == 0;
}

/* The capabilities that the device must be taken to have for the rows of that name to be chosen. */
static uint32_t claimed_for(const suite *s, const char *variant, const dart_device_info *info)
{
    uint32_t claimed = 0;
    for (uint32_t i = 0; i < kernel_rows_count; i++) {
        const kernel_row *row = &kernel_rows[i];
        if (strcmp(row->variant, variant) == 0 && conform_can_run(row, info) && is_wanted(s, row->id)) claimed |= row->needs & ~info->capabilities;
    }
    return claimed;
}

/* Opens the device of t anew, with all that its other targets will claim for it. */
static bool open_again(suite *s, target *t)
{
    uint32_t claimed = 0;
    for (uint32_t i = 0; i < kernel_rows_count; i++)
        if (conform_can_run(&kernel_rows[i], &t->info) && is_wanted(s, kernel_rows[i].id)) claimed |= kernel_rows[i].needs & ~t->info.capabilities;
    t->opened_with = claimed;
    if (claimed == 0) return true;
    dart_device_destroy(&t->device);
    return open_as(s, t->spec, claimed, &t->device);
}

/* The device as it chooses, then once for every name of a variant that it could be made to choose. */
static void open_device(suite *s, const char *spec)
{
    const uint32_t first = s->targets_count;
    if (!add_target(s, spec, "", 0, NULL)) return;
    const dart_device_info *info = &s->targets[first].info;
    if (!open_again(s, &s->targets[first])) {
        s->targets_count--;
        return;
    }
    for (uint32_t i = 0; i < kernel_rows_count; i++) {
        const kernel_row *row = &kernel_rows[i];
        if (!conform_can_run(row, info) || !is_wanted(s, row->id)) continue;
        bool known = (s->options->skip != NULL && strcmp(row->variant, s->options->skip) == 0) ||
                     (s->options->variant != NULL && strcmp(row->variant, s->options->variant) != 0);
        for (uint32_t k = first; k < s->targets_count; k++) known = known || strcmp(s->targets[k].variant, row->variant) == 0;
        if (!known) add_target(s, spec, row->variant, claimed_for(s, row->variant, info), &s->targets[first]);
    }
    if (s->options->variant != NULL && s->targets_count == first + 1) {
        fprintf(s->options->json ? stderr : s->out, "FAILED   device %s: none of the kernels that it can run has a variant called %s\n", spec,
                s->options->variant);
        s->failed++;
        dart_device_destroy(&s->targets[first].device);
        s->targets_count = first;
        return;
    }
    s->devices_count++;
}

/* Traits of its own that a kernel's op may state of the case: it states no more than these. */
static uint32_t own_traits(const conform_case *c, kernel_id id)
{
    uint32_t none = 0; /* that it does not */
    switch (kernel_op_of(id)) {
    case KERNEL_OP_DENSE:
        none = (c->flags & CASE_GPU ? 0 : FITS_DENSE_MANY_TILES | FITS_DENSE_MANY_SUMS | FITS_DENSE_LIBRARY) |
               (c->P <= 64 || c->N <= 64 ? 0 : FITS_DENSE_INPUTS64);
        break;
    case KERNEL_OP_LOSS: none = c->P <= 64 || c->N <= 64 ? 0 : FITS_LOSS_W64; break;
    case KERNEL_OP_SSD: none = (uint64_t)c->B * c->G >= 64 ? 0 : FITS_SSD_WALK | FITS_SSD_WALK16 | FITS_SSD_WALK64; break;
    case KERNEL_OP_ATTENTION:
        none = (c->P <= 32 ? 0 : FITS_ATTENTION_D32) | (c->P <= 64 ? 0 : FITS_ATTENTION_D64) | (c->P == 64 ? 0 : FITS_ATTENTION_WHOLE_D64);
        break;
    default: break;
    }
    return UINT32_MAX << TRAITS_SHARED & ~none;
}

/* Would the named variant change what runs where the device chooses for itself? */
static bool differs(const target *t, const conform_case *c)
{
    const size_t op = conform_op_of(c);
    /* The op states no more traits of it than these. */
    const uint32_t type = c->dtype == DART_F16 ? FITS_F16 | FITS_16BIT : c->dtype == DART_BF16 ? FITS_BF16 | FITS_16BIT : 0;
    const uint32_t shared = type | (c->P <= 64 ? FITS_P64 : 0) | FITS_WORDS | FITS_TILES | FITS_N128_P64 | FITS_N64_P64 | FITS_N32_P64 |
                            (c->flags & CASE_PACKED ? 0 : FITS_UNPACKED);
    const kernel_capabilities capabilities = {t->info.capabilities}, unclaimed = {t->info.capabilities & ~t->claimed};
    const uint32_t rows = ops[op].run == conform_mixer ? c->B : c->L; /* a step has a row of each sequence */
    const dart_backend_kind kind = t->info.backend;
    for (uint32_t i = 0; i < ops[op].count; i++) {
        const uint32_t traits = shared | own_traits(c, ops[op].kernels[i]);
        const kernel_row *named = kernel_pick(kind, ops[op].kernels[i], capabilities, traits, rows, t->variant);
        const kernel_row *own = kernel_pick(kind, ops[op].kernels[i], unclaimed, traits, rows, NULL);
        if (named != NULL && named != own && strcmp(named->variant, t->variant) == 0) return true;
    }
    return false;
}

bool conform_concerns(const target *t, const conform_case *c)
{
    return (t->variant[0] == '\0' || differs(t, c)) && !((c->flags & CASE_GPU) && t->info.type == DART_DEVICE_CPU);
}

bool conform_may_reach(const suite *s, const target *t, const kernel_row *row) { return conform_can_run(row, &t->info) && is_wanted(s, row->id); }

/* Adds the case, if the options do not leave it out. */
static bool add_case(suite *s, const conform_case *c)
{
    char name[160];
    conform_name(c, name, sizeof name);
    if (s->options->filter != NULL && strstr(name, s->options->filter) == NULL) return false;
    if (s->options->without != NULL && strstr(name, s->options->without) != NULL) return false;
    s->cases[s->cases_count++] = *c;
    return true;
}

/* For each op in turn one more, until there are as many as the options ask for, or so few of them pass the filter that there are none to hope for. */
static void draw_cases(suite *s)
{
    enum { PATIENCE = 10000 }; /* draws of each op for a case that passes */
    const uint32_t count = s->options->random;
    for (uint64_t number = 0, last = 0; s->cases_count < count && number - last < PATIENCE; number++) {
        for (uint32_t i = 0; i < COUNT_OF(ops) && s->cases_count < count; i++) {
            conform_case c;
            conform_draw_case(ops[i].op, s->options->seed, number, &c);
            if (add_case(s, &c)) last = number;
        }
    }
}

void conform_list_cases(suite *s)
{
    enum { DTYPES = DART_BF16 + 1 };
    const uint32_t most = s->options->random > 0 ? s->options->random : COUNT_OF(lines) * DTYPES;
    s->cases = calloc(most, sizeof *s->cases);
    if (s->cases == NULL) abort();
    conform_case c;
    if (s->options->only != NULL) {
        if (conform_parse(s->options->only, &c)) add_case(s, &c);
    } else if (s->options->random > 0) {
        draw_cases(s);
    } else {
        for (uint32_t i = 0; i < most; i++) {
            c = lines[i / DTYPES].c;
            c.dtype = (dart_dtype)(i % DTYPES);
            if ((lines[i / DTYPES].dtypes & 1 << c.dtype) != 0) add_case(s, &c);
        }
    }
}

static void print_cases(suite *s)
{
    for (uint32_t i = 0; i < s->cases_count; i++) {
        char name[160];
        conform_name(&s->cases[i], name, sizeof name);
        fprintf(s->out, "%s\n", name);
        s->passed++;
    }
}

int conform_all(dart_context *context, const conform_options *options, FILE *out)
{
    suite *s = calloc(1, sizeof *s);
    if (s == NULL) abort();
    *s = (suite){.context = context, .options = options, .out = out, .json = options->json ? out : options->report, .first_json = true};
    conform_list_cases(s);
    for (uint32_t i = 0; i < options->devices_count && !options->list; i++) open_device(s, options->devices[i]);
    for (uint32_t i = dart_context_device_count(context); options->devices_count == 0 && !options->list && i-- > 0;) {
        dart_device_info info;
        char spec[300];
        if (dart_context_device_info(context, i, &info) != DART_OK || info.backend == DART_BACKEND_NULL) continue;
        snprintf(spec, sizeof spec, "%s:%u", dart_backend_name(info.backend), info.index);
        open_device(s, spec);
    }
    tally *tallies = calloc(MAX_TARGETS, sizeof *tallies);
    if (tallies == NULL) abort();
    if (!options->list) conform_print_header(s);
    if (options->list) print_cases(s);
    else if (s->targets_count > 0) conform_run_cases(s, tallies);
    if (!options->list) {
        if (!s->stopped) conform_list_unreached(s);
        conform_print_end(s, tallies);
    }
    for (uint32_t i = 0; i < s->targets_count; i++)
        if (!s->targets[i].shares) dart_device_destroy(&s->targets[i].device);
    for (uint32_t i = 0; i < MAX_JOBS; i++)
        for (uint32_t k = 0; k < MAX_DEVICES; k++) dart_device_destroy(&s->apart[i][k]);
    const int failures = s->failed + ((s->targets_count == 0 && !options->list) || s->passed == 0 || s->stopped);
    free(tallies);
    conform_forget_draws(s);
    free(s->cases);
    free(s);
    return failures;
}

/* What holds of backward passes whatever the gradients are: prop_backward [DEVICE_SPEC]. */
#include "rig.h"

#include "dartlm/ops_backward.h"

#include <math.h>

enum { SEEDS = 4, PARTS = 24, LETTERS = 128 };

/* What an op reads (IN, INTS: the seq of a call), what comes in (UP), what a call writes (GRAD) or adds to (SUM), what the forward call makes. */
typedef enum role { IN, INTS, UP, GRAD, SUM, MADE } role;

/* Axes: letters of sizes, or a digit. */
typedef struct part {
    const char *name, *axes;
    role role;
} part;

typedef struct subject {
    const char *name;
    part parts[PARTS]; /* up to the first without a name */
    uint32_t size[LETTERS];
    char many;         /* the first axis: sequences or rows, each with results of its own but for SUM */
    const char *alike; /* axes along which the op does the same, together: heads with their groups, channels; "": none */
    uint32_t terms;    /* at most so many numbers are added up to an element, one sum after another */
    dart_status (*record)(dart_stream *stream, const uint32_t *n, const dart_tensor *t);
} subject;

/* ---- Ops ---- */

#define SSD_PARTS \
    {"x", "BLHP", IN}, {"dt", "BLH", IN}, {"b", "BLGN", IN}, {"c", "BLGN", IN}, {"a_log", "H", IN}, {"dt_bias", "H", IN}, {"d", "H", IN}, \
        {"h", "BHNP", IN}, {"up_y", "BLHP", UP}, {"up_dh", "BMHNP", UP}, {"up_h", "BHNP", UP}, {"grad_x", "BLHP", GRAD}, {"grad_dt", "BLH", GRAD}, \
        {"grad_b", "BLGN", GRAD}, {"grad_c", "BLGN", GRAD}, {"grad_h", "BHNP", GRAD}, {"grad_a_log", "H", SUM}, {"grad_dt_bias", "H", SUM}, \
        {"grad_d", "H", SUM}

/* t[19] is seq, or absent. */
static dart_status ssd(dart_stream *stream, const uint32_t *n, const dart_tensor *t)
{
    return dart_ssd_backward(stream, &(dart_ssd_backward_args){.B = n['B'], .L = n['L'], .H = n['H'], .G = n['G'], .N = n['N'], .P = n['P'],
                                                               .S = n['S'], .dt_min = 0.05f, .x = t[0], .dt = t[1], .b = t[2], .c = t[3],
                                                               .a_log = t[4], .dt_bias = t[5], .d = t[6], .h = t[7], .up_y = t[8], .up_dh = t[9],
                                                               .up_h = t[10], .grad_x = t[11], .grad_dt = t[12], .grad_b = t[13], .grad_c = t[14],
                                                               .grad_h = t[15], .grad_a_log = t[16], .grad_dt_bias = t[17], .grad_d = t[18],
                                                               .seq = t[19]});
}

#define SMA_PARTS \
    {"q", "BLGN", IN}, {"e", "BLGP", IN}, {"c", "BLGN", IN}, {"dh", "BMHNP", IN}, {"r", "BLHP", MADE}, {"lse", "BLH", MADE}, {"up_r", "BLHP", UP}, \
        {"grad_q", "BLGN", GRAD}, {"grad_e", "BLGP", GRAD}, {"grad_c", "BLGN", GRAD}, {"grad_dh", "BMHNP", GRAD}

static dart_status sma(dart_stream *stream, const uint32_t *n, const dart_tensor *t)
{
    const dart_memories memories = {.M = n['M'], .dh = t[3]};
    const dart_status status = dart_sma(stream, &(dart_sma_args){.B = n['B'], .L = n['L'], .H = n['H'], .G = n['G'], .N = n['N'], .P = n['P'],
                                                                 .S = n['S'], .eps = 0.01f, .q = t[0], .e = t[1], .c = t[2], .memories = &memories,
                                                                 .memories_count = 1, .r = t[4], .lse = t[5], .seq = t[11]});
    if (status != DART_OK) return status;
    return dart_sma_backward(stream, &(dart_sma_backward_args){.B = n['B'], .L = n['L'], .H = n['H'], .G = n['G'], .N = n['N'], .P = n['P'],
                                                               .S = n['S'], .eps = 0.01f, .q = t[0], .e = t[1], .c = t[2], .memories = memories,
                                                               .r = t[4], .lse = t[5], .up_r = t[6], .grad_q = t[7], .grad_e = t[8],
                                                               .grad_c = t[9], .grad_dh = t[10], .seq = t[11]});
}

#define ATTENTION_PARTS \
    {"q", "BLHD", IN}, {"k", "BLGD", IN}, {"v", "BLGD", IN}, {"o", "BLHD", MADE}, {"lse", "BLH", MADE}, {"up_o", "BLHD", UP}, \
        {"grad_q", "BLHD", GRAD}, {"grad_k", "BLGD", GRAD}, {"grad_v", "BLGD", GRAD}

static dart_status attention(dart_stream *stream, const uint32_t *n, const dart_tensor *t)
{
    const dart_status status = dart_attention(stream, &(dart_attention_args){.B = n['B'], .L = n['L'], .H = n['H'], .G = n['G'], .D = n['D'],
                                                                             .C = n['L'], .q = t[0], .k = t[1], .v = t[2], .o = t[3], .lse = t[4],
                                                                             .seq = t[9]});
    if (status != DART_OK) return status;
    return dart_attention_backward(stream, &(dart_attention_backward_args){.B = n['B'], .L = n['L'], .H = n['H'], .G = n['G'], .D = n['D'],
                                                                           .q = t[0], .k = t[1], .v = t[2], .o = t[3], .lse = t[4], .up_o = t[5],
                                                                           .grad_q = t[6], .grad_k = t[7], .grad_v = t[8], .seq = t[9]});
}

#define CONV_PARTS \
    {"x", "BLC", IN}, {"weight", "CK", IN}, {"bias", "C", IN}, {"up_y", "BLC", UP}, {"grad_x", "BLC", GRAD}, {"grad_weight", "CK", SUM}, \
        {"grad_bias", "C", SUM}

static dart_status conv(dart_stream *stream, const uint32_t *n, const dart_tensor *t)
{
    return dart_conv_backward(stream, &(dart_conv_backward_args){.B = n['B'], .L = n['L'], .C = n['C'], .K = n['K'], .x = t[0], .weight = t[1],
                                                                 .bias = t[2], .up_y = t[3], .grad_x = t[4], .grad_weight = t[5],
                                                                 .grad_bias = t[6], .seq = t[7]});
}

static dart_status linear(dart_stream *stream, const uint32_t *n, const dart_tensor *t)
{
    return dart_linear_backward(stream, &(dart_linear_backward_args){.T = n['T'], .IN = n['I'], .OUT = n['O'], .x = t[0], .weight = t[1],
                                                                     .up_y = t[2], .grad_x = t[3], .grad_weight = t[4]});
}

static dart_status norm(dart_stream *stream, const uint32_t *n, const dart_tensor *t)
{
    return dart_rms_norm_backward(stream, &(dart_rms_norm_backward_args){.T = n['T'], .W = n['W'], .eps = 0.01f, .x = t[0], .weight = t[1],
                                                                         .up_y = t[2], .grad_x = t[3], .grad_weight = t[4]});
}

static dart_status gated_norm(dart_stream *stream, const uint32_t *n, const dart_tensor *t)
{
    return dart_gated_norm_backward(stream, &(dart_gated_norm_backward_args){.T = n['T'], .I = n['I'], .eps = 0.01f, .y = t[0], .r = t[1],
                                                                             .gate = t[2], .z = t[3], .weight = t[4], .up_out = t[5],
                                                                             .grad_y = t[6], .grad_r = t[7], .grad_gate = t[8], .grad_z = t[9],
                                                                             .grad_weight = t[10]});
}

#define LINEAR_PARTS {"x", "TI", IN}, {"weight", "OI", IN}, {"up_y", "TO", UP}, {"grad_x", "TI", GRAD}, {"grad_weight", "OI", SUM}
#define NORM_PARTS {"x", "TW", IN}, {"weight", "W", IN}, {"up_y", "TW", UP}, {"grad_x", "TW", GRAD}, {"grad_weight", "W", SUM}
#define GATED_PARTS \
    {"y", "TI", IN}, {"r", "TI", IN}, {"gate", "T", IN}, {"z", "TI", IN}, {"weight", "I", IN}, {"up_out", "TI", UP}, {"grad_y", "TI", GRAD}, \
        {"grad_r", "TI", GRAD}, {"grad_gate", "T", GRAD}, {"grad_z", "TI", GRAD}, {"grad_weight", "I", SUM}
#define SEQ {"seq", "B2", INTS}

/* Odd sizes and tail chunks; sums of more rows than one part of them takes; heads that share a group and heads that do not. */
static const subject subjects[] = {
    {"ssd", {SSD_PARTS}, {['B'] = 2, ['L'] = 37, ['H'] = 4, ['G'] = 2, ['N'] = 9, ['P'] = 11, ['S'] = 8}, 'B', "", 300, ssd},
    {"ssd with seq", {SSD_PARTS, SEQ}, {['B'] = 4, ['L'] = 21, ['H'] = 3, ['G'] = 3, ['N'] = 6, ['P'] = 16, ['S'] = 8}, 'B', "HG", 300, ssd},
    {"ssd, long chunks", {SSD_PARTS}, {['B'] = 3, ['L'] = 90, ['H'] = 2, ['G'] = 2, ['N'] = 20, ['P'] = 7, ['S'] = 70}, 'B', "HG", 600, ssd},
    {"sma", {SMA_PARTS}, {['B'] = 2, ['L'] = 37, ['H'] = 4, ['G'] = 2, ['N'] = 9, ['P'] = 11, ['S'] = 8}, 'B', "", 300, sma},
    {"sma with seq", {SMA_PARTS, SEQ}, {['B'] = 4, ['L'] = 41, ['H'] = 3, ['G'] = 3, ['N'] = 6, ['P'] = 16, ['S'] = 8}, 'B', "HG", 300, sma},
    {"attention", {ATTENTION_PARTS}, {['B'] = 2, ['L'] = 45, ['H'] = 4, ['G'] = 2, ['D'] = 17}, 'B', "", 200, attention},
    {"attention with seq", {ATTENTION_PARTS, SEQ}, {['B'] = 4, ['L'] = 70, ['H'] = 3, ['G'] = 3, ['D'] = 24}, 'B', "HG", 200, attention},
    {"conv", {CONV_PARTS}, {['B'] = 3, ['L'] = 150, ['C'] = 21, ['K'] = 4}, 'B', "C", 500, conv},
    {"conv with seq", {CONV_PARTS, SEQ}, {['B'] = 4, ['L'] = 30, ['C'] = 300, ['K'] = 3}, 'B', "C", 200, conv},
    {"linear", {LINEAR_PARTS}, {['T'] = 300, ['I'] = 33, ['O'] = 20}, 'T', "I", 300, linear},
    {"linear, few rows", {LINEAR_PARTS}, {['T'] = 9, ['I'] = 200, ['O'] = 130}, 'T', "I", 130, linear},
    {"norm", {NORM_PARTS}, {['T'] = 150, ['W'] = 37}, 'T', "", 200, norm},
    {"gated_norm", {GATED_PARTS}, {['T'] = 37, ['I'] = 70}, 'T', "", 200, gated_norm},
};
enum { SUBJECTS = sizeof subjects / sizeof subjects[0] };

/* Of an element as computed, relative to the root of the sum of the squares of its terms: 2^-24 for each rounding, as conform_tolerance counts
 * them. What comes in is independent and random here, so that a tensor's own size is that root but for chance. Two computations differ by twice
 * this, three by three times. */
static double rounding(const subject *s) { return (24 + 2 * sqrt(s->terms)) * 0x1p-24; }

/* ---- Values ---- */

typedef struct values {
    float *of[PARTS]; /* of SUM before a call: what it is added to, NULL for zeros */
} values;

static uint32_t size_of(const subject *s, char axis) { return axis >= '0' && axis <= '9' ? (uint32_t)(axis - '0') : s->size[(int)axis]; }

static uint64_t count_of(const subject *s, size_t i)
{
    uint64_t count = 1;
    for (const char *axis = s->parts[i].axes; *axis != '\0'; axis++) count *= size_of(s, *axis);
    return count;
}

static bool has_part(const subject *s, role which, size_t i) { return s->parts[i].name != NULL && s->parts[i].role == which; }
static bool is_result(const subject *s, size_t i) { return has_part(s, GRAD, i) || has_part(s, SUM, i); }

/* Counts from L down to 0, positions that are not chunk borders. Attention begins at position 0. */
static void fill_seq(rig *r, const subject *s, float *seq)
{
    const uint32_t B = s->size['B'], L = s->size['L'];
    for (uint32_t b = 0; b < B; b++) {
        seq[2 * b] = s->size['S'] > 0 ? floorf(rig_uniform(r, 0, (float)(2 * s->size['S']))) : 0;
        seq[2 * b + 1] = (float)(b + 1 == B ? 0 : L * (B - b) / B);
    }
}

/* A subject with its number of chunks known, and random inputs. */
static subject start(rig *r, size_t number, uint64_t seed, values *v)
{
    subject s = subjects[number];
    bool has_seq = false;
    for (size_t i = 0; i < PARTS; i++) has_seq |= has_part(&s, INTS, i);
    if (s.size['S'] > 0) s.size['M'] = dart_ssd_chunks(s.size['L'], s.size['S'], has_seq);
    *v = (values){{NULL}};
    r->random = seed * 1000 + number;
    for (size_t i = 0; i < PARTS; i++) {
        if (has_part(&s, IN, i) || has_part(&s, UP, i) || has_part(&s, INTS, i)) v->of[i] = rig_values(r, count_of(&s, i), -1, 1);
        if (has_part(&s, INTS, i)) fill_seq(r, &s, v->of[i]);
    }
    return s;
}

static float *copy_of(const float *from, uint64_t count)
{
    float *copy = malloc((size_t)count * sizeof *copy);
    assert_non_null(copy);
    memcpy(copy, from, (size_t)count * sizeof *copy);
    return copy;
}

/* What goes in. */
static values inputs_of(const subject *s, const values *v)
{
    values copies = {{NULL}};
    for (size_t i = 0; i < PARTS; i++)
        if (v->of[i] != NULL && !is_result(s, i)) copies.of[i] = copy_of(v->of[i], count_of(s, i));
    return copies;
}

static void release(values *v)
{
    for (size_t i = 0; i < PARTS; i++) {
        free(v->of[i]);
        v->of[i] = NULL;
    }
}

/* The call; results replace what v has of them. */
static void run(rig *r, const subject *s, values *v)
{
    dart_tensor t[PARTS] = {{.buffer = NULL}};
    const uint32_t before = r->buffers_count;
    for (size_t i = 0; i < PARTS && s->parts[i].name != NULL; i++) {
        const uint64_t count = count_of(s, i);
        if (s->parts[i].role == INTS) {
            int32_t *ints = malloc((size_t)count * sizeof *ints);
            assert_non_null(ints);
            for (uint64_t k = 0; k < count; k++) ints[k] = (int32_t)v->of[i][k];
            t[i] = rig_ints(r, count, ints);
            free(ints);
            continue;
        }
        if (s->parts[i].role == SUM && v->of[i] == NULL) {
            v->of[i] = calloc((size_t)count, sizeof(float));
            assert_non_null(v->of[i]);
        }
        t[i] = rig_tensor(r, DART_F32, count, s->parts[i].role == GRAD ? NULL : v->of[i]);
    }
    MUST(r, s->record(r->stream, s->size, t));
    rig_run(r);
    for (size_t i = 0; i < PARTS; i++) {
        if (!is_result(s, i)) continue;
        free(v->of[i]);
        v->of[i] = rig_read(&t[i], count_of(s, i));
    }
    while (r->buffers_count > before) dart_buffer_destroy(&r->buffers[--r->buffers_count]);
}

static double length(const float *x, uint64_t count)
{
    double sum = 0;
    for (uint64_t i = 0; i < count; i++) sum += (double)x[i] * (double)x[i];
    return sqrt(sum);
}

static void same_bits(const subject *s, size_t i, const float *got, const float *expected)
{
    char what[80];
    snprintf(what, sizeof what, "%s: %s", s->name, s->parts[i].name);
    rig_same_bits(what, got, expected, count_of(s, i));
}

/* Errors are relative to `size`. Returns the share of the tolerance. */
static double close_to(const subject *s, size_t i, const float *got, const float *expected, uint64_t count, double size, double tolerance)
{
    double sum = 0;
    for (uint64_t k = 0; k < count; k++) sum += ((double)got[k] - (double)expected[k]) * ((double)got[k] - (double)expected[k]);
    const double off = sqrt(sum) / size;
    if (!(off <= tolerance)) fail_msg("%s: %s is off by %.2e, at most %.1e", s->name, s->parts[i].name, off, tolerance);
    return off / tolerance;
}

/* ---- Tests ---- */

typedef void (*test)(rig *r, const subject *s, values *v, double *share);

/* With the subjects, several seeds each. share: the largest part of a tolerance that was used. */
static void on_all(test one)
{
    rig r;
    rig_open(&r, rig_spec);
    for (size_t number = 0; number < SUBJECTS; number++) {
        double share = 0;
        for (uint64_t seed = 1; seed <= SEEDS; seed++) {
            values v;
            const subject s = start(&r, number, seed, &v);
            one(&r, &s, &v, &share);
            release(&v);
        }
        if (share > 0) print_message("  %s: %.0f %% of the tolerance\n", subjects[number].name, 100 * share);
    }
    rig_close(&r);
}

/* What comes in is a up1 + b up2: so is what goes out. */
static void combine(rig *r, const subject *s, values *v, double *share)
{
    const float a = 0.7f, b = -1.3f;
    values one = inputs_of(s, v), two = inputs_of(s, v);
    for (size_t i = 0; i < PARTS; i++) {
        if (!has_part(s, UP, i)) continue;
        for (uint64_t k = 0; k < count_of(s, i); k++) {
            two.of[i][k] = rig_uniform(r, -1, 1);
            v->of[i][k] = a * one.of[i][k] + b * two.of[i][k];
        }
    }
    run(r, s, v);
    run(r, s, &one);
    run(r, s, &two);
    for (size_t i = 0; i < PARTS; i++) {
        if (!is_result(s, i)) continue;
        const uint64_t count = count_of(s, i);
        const double size = fabs((double)a) * length(one.of[i], count) + fabs((double)b) * length(two.of[i], count);
        for (uint64_t k = 0; k < count; k++) one.of[i][k] = a * one.of[i][k] + b * two.of[i][k];
        /* Three results err, and each element of both sides was rounded three times. */
        *share = fmax(*share, close_to(s, i, v->of[i], one.of[i], count, size, 3 * rounding(s) + 6 * 0x1p-24));
    }
    release(&one);
    release(&two);
}
static void is_linear(void **unused)
{
    (void)unused;
    on_all(combine);
}

/* Powers of two, the sign too, pass through every rounding. */
static void scale(rig *r, const subject *s, values *v, double *share)
{
    static const float factors[] = {2, -0.25f};
    (void)share;
    run(r, s, v);
    for (size_t f = 0; f < 2; f++) {
        values other = inputs_of(s, v);
        for (size_t i = 0; i < PARTS; i++)
            for (uint64_t k = 0; has_part(s, UP, i) && k < count_of(s, i); k++) other.of[i][k] *= factors[f];
        run(r, s, &other);
        for (size_t i = 0; i < PARTS; i++) {
            if (!is_result(s, i)) continue;
            float *expected = copy_of(v->of[i], count_of(s, i));
            for (uint64_t k = 0; k < count_of(s, i); k++) {
                expected[k] *= factors[f];
                /* The sign of a zero is that of a sum of zeros, or of cancelled terms: + whatever the factor. */
                if (expected[k] == 0 && other.of[i][k] == 0) expected[k] = other.of[i][k];
            }
            same_bits(s, i, other.of[i], expected);
            free(expected);
        }
        release(&other);
    }
}
static void powers_of_two_are_exact(void **unused)
{
    (void)unused;
    on_all(scale);
}

/* to_i = from_order(i) along the axes named. */
static float *permuted(const subject *s, size_t i, const float *from, const char *axes, const uint32_t *order)
{
    const uint64_t count = count_of(s, i);
    float *to = malloc((size_t)count * sizeof *to);
    assert_non_null(to);
    for (uint64_t k = 0; k < count; k++) {
        uint64_t rest = k, stride = 1, source = 0;
        for (size_t axis = strlen(s->parts[i].axes); axis-- > 0;) {
            const char letter = s->parts[i].axes[axis];
            const uint32_t at = (uint32_t)(rest % size_of(s, letter));
            source += stride * (strchr(axes, letter) != NULL ? order[at] : at);
            rest /= size_of(s, letter);
            stride *= size_of(s, letter);
        }
        to[k] = from[source];
    }
    return to;
}

static uint32_t *shuffled(rig *r, uint32_t count)
{
    uint32_t *order = malloc(count * sizeof *order);
    assert_non_null(order);
    for (uint32_t i = 0; i < count; i++) {
        const uint32_t other = (uint32_t)rig_uniform(r, 0, (float)(i + 1));
        order[i] = order[other];
        order[other] = i;
    }
    return order;
}

static void permute(rig *r, const subject *s, values *v, const char *axes, bool sums_are_exact, double *share)
{
    uint32_t *order = shuffled(r, size_of(s, axes[0]));
    values other = {{NULL}};
    for (size_t i = 0; i < PARTS; i++)
        if (v->of[i] != NULL) other.of[i] = permuted(s, i, v->of[i], axes, order);
    run(r, s, v);
    run(r, s, &other);
    for (size_t i = 0; i < PARTS; i++) {
        if (!is_result(s, i)) continue;
        float *expected = permuted(s, i, v->of[i], axes, order);
        if (has_part(s, GRAD, i) || sums_are_exact) {
            same_bits(s, i, other.of[i], expected);
        } else {
            const uint64_t count = count_of(s, i);
            *share = fmax(*share, close_to(s, i, other.of[i], expected, count, length(expected, count), 2 * rounding(s)));
        }
        free(expected);
    }
    free(order);
    release(&other);
}

static void permute_alike(rig *r, const subject *s, values *v, double *share)
{
    if (s->alike[0] != '\0') permute(r, s, v, s->alike, true, share);
}
static void heads_are_alike(void **unused)
{
    (void)unused;
    on_all(permute_alike);
}

/* Gradients of parameters are then summed in another order. */
static void permute_many(rig *r, const subject *s, values *v, double *share) { permute(r, s, v, (const char[]){s->many, '\0'}, false, share); }
static void sequences_are_alike(void **unused)
{
    (void)unused;
    on_all(permute_many);
}

static void repeat(rig *r, const subject *s, values *v, double *share)
{
    (void)share;
    run(r, s, v);
    for (uint32_t threads = 0; threads < (r->info.backend == DART_BACKEND_CPU ? 3 : 1); threads++) {
        values other = inputs_of(s, v);
        rig second;
        if (threads > 0) rig_open_with(&second, &(dart_device_options){.spec = rig_spec, .poison = true, .threads = threads == 1 ? 1 : 7});
        run(threads > 0 ? &second : r, s, &other);
        for (size_t i = 0; i < PARTS; i++)
            if (is_result(s, i)) same_bits(s, i, other.of[i], v->of[i]);
        if (threads > 0) rig_close(&second);
        release(&other);
    }
}
/* The bits of the next run, and of one thread or seven. */
static void repeats_its_bits(void **unused)
{
    (void)unused;
    on_all(repeat);
}

/* Sequences or rows from .. to - 1. */
static void run_some(rig *r, const subject *s, const values *v, uint32_t from, uint32_t to, values *some)
{
    subject less = *s;
    less.size[(int)s->many] = to - from;
    for (size_t i = 0; i < PARTS; i++) {
        if (is_result(s, i) || v->of[i] == NULL) continue;
        const bool cut = s->parts[i].axes[0] == s->many;
        free(some->of[i]);
        some->of[i] = copy_of(v->of[i] + (cut ? from * (count_of(s, i) / s->size[(int)s->many]) : 0), count_of(&less, i));
    }
    run(r, &less, some);
}

/* Two calls on parts of a batch: what they write is what one call on all of it writes, and what they add to becomes the same sum. Other variants
 * may serve fewer rows, so that bits may differ. */
static void split(rig *r, const subject *s, values *v, double *share)
{
    const uint32_t all = s->size[(int)s->many], cut = 1 + (uint32_t)rig_uniform(r, 0, (float)(all - 1));
    values some = {{NULL}};
    run(r, s, v);
    for (int half = 0; half < 2; half++) {
        const uint32_t from = half == 0 ? 0 : cut, to = half == 0 ? cut : all;
        run_some(r, s, v, from, to, &some);
        for (size_t i = 0; i < PARTS; i++) {
            if (!has_part(s, GRAD, i)) continue;
            const uint64_t count = count_of(s, i), one = count / all;
            const double size = length(v->of[i], count);
            *share = fmax(*share, close_to(s, i, some.of[i], v->of[i] + from * one, (to - from) * one, size, 2 * rounding(s)));
        }
    }
    for (size_t i = 0; i < PARTS; i++) {
        if (!has_part(s, SUM, i)) continue;
        const uint64_t count = count_of(s, i);
        *share = fmax(*share, close_to(s, i, some.of[i], v->of[i], count, length(v->of[i], count), 2 * rounding(s)));
    }
    release(&some);
}
static void batches_add_up(void **unused)
{
    (void)unused;
    on_all(split);
}

/* A call forms its sum and adds it once: two calls leave the bits of two ranks, whose sums are added. */
static void add(rig *r, const subject *s, values *v, double *share)
{
    (void)share;
    values onto = inputs_of(s, v), before = {{NULL}};
    run(r, s, v);
    for (size_t i = 0; i < PARTS; i++) {
        if (!has_part(s, SUM, i)) continue;
        before.of[i] = rig_values(r, count_of(s, i), -1, 1);
        onto.of[i] = copy_of(before.of[i], count_of(s, i));
    }
    run(r, s, &onto);
    for (size_t i = 0; i < PARTS; i++) {
        if (!has_part(s, SUM, i)) continue;
        for (uint64_t k = 0; k < count_of(s, i); k++) before.of[i][k] += v->of[i][k];
        same_bits(s, i, onto.of[i], before.of[i]);
    }
    release(&onto);
    release(&before);
}
static void sums_are_added_once(void **unused)
{
    (void)unused;
    on_all(add);
}

/* The same of the head, with more logits than it has memory for. */
static void the_head_adds_once(void **unused)
{
    (void)unused;
    enum { T = 480, V = 40000, W = 8 };
    rig r;
    rig_open(&r, rig_spec);
    static int32_t targets[T];
    for (int32_t t = 0; t < T; t++) targets[t] = (int32_t)rig_uniform(&r, 0, V);
    float *before = rig_values(&r, V * W, -0.1f, 0.1f);
    const dart_tensor x = rig_random(&r, DART_F32, T * W, -1, 1), weight = rig_random(&r, DART_F32, V * W, -1, 1), places = rig_ints(&r, T, targets),
                      share = rig_tensor(&r, DART_F32, 1, (const float[]){1.0f / T}), loss = rig_tensor(&r, DART_F32, 1, (const float[]){0}),
                      correct = rig_ints(&r, 1, (const int32_t[]){0}), grad_x = rig_tensor(&r, DART_F32, T * W, NULL),
                      grad_weight = rig_tensor(&r, DART_F32, V * W, before);
    dart_cross_entropy_args args = {.T = T, .V = V, .W = W, .x = x, .weight = weight, .targets = places, .share = share, .loss = loss,
                                    .correct = correct, .grad_x = grad_x, .grad_weight = grad_weight};
    MUST(&r, dart_cross_entropy(r.stream, &args));
    rig_run(&r);
    float *got = rig_read(&grad_weight, V * W), *zeros = calloc(V * W, sizeof *zeros);
    assert_non_null(zeros);
    rig_write(&grad_weight, V * W, zeros);
    MUST(&r, dart_cross_entropy(r.stream, &args));
    rig_run(&r);
    float *sum = rig_read(&grad_weight, V * W);
    for (uint32_t i = 0; i < V * W; i++) before[i] += sum[i];
    rig_same_bits("grad_weight", got, before, V * W);
    free(sum);
    free(zeros);
    free(got);
    free(before);
    rig_close(&r);
}

/* Chunks so long that the borders of memories which nobody reads lie beyond 2^32: only the second sequence reads one, the first memory. */
static void far_memories_have_no_gradient(void **unused)
{
    (void)unused;
    enum { B = 2, L = 6, N = 4, P = 4, M = 5, MEMORY = N * P };
    const uint32_t S = 1u << 30;
    rig r;
    rig_open(&r, rig_spec);
    const dart_tensor q = rig_random(&r, DART_F32, B * L * N, -1, 1), e = rig_random(&r, DART_F32, B * L * P, -1, 1),
                      c = rig_random(&r, DART_F32, B * L * N, -1, 1), dh = rig_random(&r, DART_F32, B * M * MEMORY, -1, 1),
                      seq = rig_ints(&r, 2 * B, (const int32_t[]){0, L, (int32_t)S - 3, L}), up = rig_random(&r, DART_F32, B * L * P, -1, 1),
                      read = rig_tensor(&r, DART_F32, B * L * P, NULL), lse = rig_tensor(&r, DART_F32, B * L, NULL),
                      grad_q = rig_tensor(&r, DART_F32, B * L * N, NULL), grad_e = rig_tensor(&r, DART_F32, B * L * P, NULL),
                      grad_c = rig_tensor(&r, DART_F32, B * L * N, NULL), grad_dh = rig_tensor(&r, DART_F32, B * M * MEMORY, NULL);
    const dart_memories memories = {.M = M, .dh = dh};
    MUST(&r, dart_sma(r.stream, &(dart_sma_args){.B = B, .L = L, .H = 1, .G = 1, .N = N, .P = P, .S = S, .eps = 0.01f, .q = q, .e = e, .c = c,
                                                 .seq = seq, .memories = &memories, .memories_count = 1, .r = read, .lse = lse}));
    MUST(&r, dart_sma_backward(r.stream, &(dart_sma_backward_args){.B = B, .L = L, .H = 1, .G = 1, .N = N, .P = P, .S = S, .eps = 0.01f, .q = q,
                                                                   .e = e, .c = c, .seq = seq, .memories = memories, .r = read, .lse = lse,
                                                                   .up_r = up, .grad_q = grad_q, .grad_e = grad_e, .grad_c = grad_c,
                                                                   .grad_dh = grad_dh}));
    rig_run(&r);
    float *got = rig_read(&grad_dh, B * M * MEMORY);
    for (uint32_t m = 0; m < B * M; m++)
        for (uint32_t i = 0; i < MEMORY; i++)
            if (!(m == M ? fabsf(got[m * MEMORY + i]) > 0 : fabsf(got[m * MEMORY + i]) <= 0))
                fail_msg("sequence %u, memory %u, element %u: %g", m / M, m % M, i, (double)got[m * MEMORY + i]);
    free(got);
    rig_close(&r);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(is_linear),           cmocka_unit_test(powers_of_two_are_exact), cmocka_unit_test(heads_are_alike),
    cmocka_unit_test(sequences_are_alike), cmocka_unit_test(repeats_its_bits),        cmocka_unit_test(batches_add_up),
    cmocka_unit_test(far_memories_have_no_gradient), cmocka_unit_test(sums_are_added_once), cmocka_unit_test(the_head_adds_once),
};
RIG_MAIN("prop_backward")

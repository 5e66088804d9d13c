/* Cases that nobody listed: sizes, types and flags drawn by a seed, from what the op takes and its runner can tell. */
#include "conform_suite.h"

#include <math.h>
#include <string.h>

typedef struct draw {
    uint64_t seed, drawn;
} draw;

static double uniform(draw *d) { return conform_uniform_at(d->seed, d->drawn++); }
static bool chance(draw *d, double share) { return uniform(d) < share; }
static uint32_t between(draw *d, uint32_t least, uint32_t most) { return least + (uint32_t)(uniform(d) * ((double)most - least + 1)); }
static uint32_t at_most(uint32_t number, uint32_t most) { return number < 1 ? 1 : number > most ? most : number; }

/* 1 to most: 1, few, around powers of two and around multiples of 16, any of a size. */
static uint32_t size(draw *d, uint32_t most)
{
    const double kind = uniform(d);
    uint32_t number = 1;
    if (kind < 0.1) number = 1;
    else if (kind < 0.45) number = between(d, 1, 40);
    else if (kind < 0.65) number = (UINT32_C(1) << between(d, 1, (uint32_t)log2(most))) + between(d, 0, 2) - 1;
    else if (kind < 0.8) number = 16 * between(d, 1, most / 16 > 0 ? most / 16 : 1) + between(d, 0, 2) - 1;
    else number = (uint32_t)exp(uniform(d) * log((double)most + 1));
    return at_most(number, most);
}

/* A size that rows of the kernel table ask for, its neighbours, or any. */
static uint32_t state_size(draw *d, uint32_t most)
{
    static const uint32_t marks[] = {8, 16, 16, 24, 32, 32, 40, 48, 64, 64, 64, 72, 80, 96, 128, 128, 144, 256};
    const double kind = uniform(d);
    uint32_t number = marks[between(d, 0, COUNT_OF(marks) - 1)];
    if (kind < 0.15) number += between(d, 0, 2) - 1;
    else if (kind < 0.3) number = between(d, 1, 40);
    else if (kind < 0.35) number = between(d, 1, most);
    return at_most(number, most);
}

static void draw_state(draw *d, conform_case *c)
{
    static const uint32_t pairs[][2] = {{128, 64}, {64, 64}, {32, 64}, {16, 64}, {16, 16}, {16, 32}, {128, 16}, {32, 32}, {16, 48}};
    c->N = state_size(d, 256);
    c->P = state_size(d, 256);
    if (!chance(d, 0.5)) return;
    const uint32_t *pair = pairs[between(d, 0, COUNT_OF(pairs) - 1)];
    c->N = pair[0];
    c->P = pair[1];
}

static void draw_heads(draw *d, conform_case *c)
{
    c->G = chance(d, 0.55) ? 1 : between(d, 2, 4);
    c->H = c->G * (chance(d, 0.8) ? between(d, 1, 4) : between(d, 5, 9));
}

/* Around L, around powers of two, or any. */
static uint32_t chunk(draw *d, uint32_t L)
{
    const double kind = uniform(d);
    uint32_t S = 1;
    if (kind < 0.05) S = 1;
    else if (kind < 0.25) S = L + between(d, 0, 2) - 1;
    else if (kind < 0.65) S = (UINT32_C(1) << between(d, 1, 8)) + (chance(d, 0.6) ? 0 : between(d, 0, 2) - 1);
    else if (kind < 0.75) S = (L + 1) / 2 + between(d, 0, 2) - 1;
    else S = size(d, 300);
    return at_most(S, 1 << 20);
}

static int maybe(draw *d, double share, int flag) { return chance(d, share) ? flag : 0; }
static int one_of(draw *d, const int *flags, uint32_t count) { return flags[between(d, 0, count - 1)]; }

/* Rows that lie apart: at odd places, at multiples of 8 elements, or with an odd place for the first and multiples of 8 from there on. */
static int views(draw *d)
{
    const int all[] = {0, 0, 0, 0, CASE_VIEW, CASE_VIEW, CASE_PITCHED, CASE_PITCHED, CASE_PITCHED, CASE_VIEW | CASE_PITCHED};
    return one_of(d, all, COUNT_OF(all));
}

static bool is_16bit(const conform_case *c) { return c->dtype != DART_F32; }

static void rows(draw *d, conform_case *c, uint32_t most_rows, uint32_t most_width)
{
    c->L = size(d, most_rows);
    c->P = chance(d, 0.4) ? at_most(16 * between(d, 1, most_width / 16), most_width) : size(d, most_width);
}

static void draw_norm(draw *d, conform_case *c)
{
    rows(d, c, 200, chance(d, 0.1) ? 5000 : 2200);
    c->flags = views(d) | maybe(d, 0.4, CASE_ADD);
}

static void draw_linear(draw *d, conform_case *c)
{
    c->L = chance(d, 0.03) ? between(d, 4090, 4140) : chance(d, 0.3) ? between(d, 1, 8) : size(d, 700);
    c->N = chance(d, 0.6) ? 16 * between(d, 1, 60) : size(d, 1100);
    c->P = chance(d, 0.3) ? 16 * between(d, 1, 40) : size(d, 700);
    c->flags = views(d);
}

static void draw_quantised(draw *d, conform_case *c)
{
    c->S = chance(d, 0.5) ? 4 : 8;
    c->flags = views(d);
    if (strcmp(c->op, "embed_quantised") == 0) {
        c->L = size(d, 90);
        c->H = size(d, 60);
        c->P = 32 * (chance(d, 0.7) ? between(d, 1, 12) : between(d, 1, 70));
        c->flags |= maybe(d, 0.3, CASE_ZERO) | maybe(d, 0.3, CASE_HUGE);
        return;
    }
    const int numbers[] = {0, 0, CASE_ZERO, CASE_HUGE, CASE_LARGE, CASE_ZERO | CASE_HUGE};
    c->L = chance(d, 0.4) ? between(d, 1, 5) : size(d, 220);
    c->N = 32 * (chance(d, 0.7) ? between(d, 1, 12) : between(d, 1, 140));
    c->P = size(d, 300);
    c->flags |= maybe(d, 0.4, CASE_ADD) | one_of(d, numbers, COUNT_OF(numbers));
    /* f16 holds no sum of numbers so large. */
    if (c->dtype == DART_F16) c->flags &= ~(CASE_HUGE | CASE_LARGE);
}

static void draw_dense(draw *d, conform_case *c)
{
    const char *op = c->op;
    if (strcmp(op, "convert") == 0) {
        rows(d, c, 200, 1200);
        c->flags = views(d) | maybe(d, 0.4, CASE_SEQ);
        if (c->flags & CASE_SEQ && (c->L + 3) % 7 == 0) c->L++; /* 7 rows apart must name every row */
    } else if (strcmp(op, "embed") == 0) {
        rows(d, c, 150, 700);
        c->H = size(d, 60);
        c->flags = views(d);
    } else if (strcmp(op, "linear_from") == 0) {
        draw_linear(d, c);
        c->flags |= maybe(d, 0.4, CASE_STORED);
    } else if (strncmp(op, "linear", 6) == 0 || strcmp(op, "norm_linear") == 0) {
        draw_linear(d, c);
        c->flags |= maybe(d, 0.4, CASE_ADD) | (strcmp(op, "linear") == 0 ? maybe(d, 0.3, CASE_STORED) : 0);
    } else {
        draw_norm(d, c);
    }
    if (is_16bit(c) && strcmp(op, "convert") != 0) c->flags |= maybe(d, 0.3, CASE_MIXED);
}

static void draw_dense_backward(draw *d, conform_case *c)
{
    if (strcmp(c->op, "embed_backward") == 0) {
        rows(d, c, 800, 330);
        c->H = size(d, 60);
        c->flags = views(d);
    } else if (strcmp(c->op, "linear_backward") == 0) {
        draw_linear(d, c);
        c->flags |= maybe(d, 0.4, CASE_ADD) | maybe(d, 0.3, CASE_STORED);
    } else {
        draw_norm(d, c);
        /* Where all elements of a row are small differences of y and gate r, the gradient of their norm magnifies the rounding of both, which no
         * tolerance has: so short rows are left out. */
        if (strcmp(c->op, "gated_norm_backward") == 0 && (c->flags & CASE_ADD) && c->P < 8) c->P = 8;
    }
    if (is_16bit(c)) c->flags |= maybe(d, 0.3, CASE_MIXED);
}

static void draw_loss(draw *d, conform_case *c)
{
    c->L = chance(d, 0.05) ? between(d, 4090, 4110) : size(d, 300);
    c->N = chance(d, 0.6) ? 16 * between(d, 1, 20) : size(d, 300);
    c->P = chance(d, 0.1) ? between(d, 8180, 8210) : size(d, 1100);
    if (c->P == 2) c->P = 3; /* two logits of one size leave no target that is certain */
    c->flags = views(d) | maybe(d, 0.7, CASE_ADD) | maybe(d, 0.2, CASE_ZERO);
    if (is_16bit(c)) c->flags |= maybe(d, 0.25, CASE_MIXED);
}

static void draw_optim(draw *d, conform_case *c)
{
    const int numbers[] = {0, 0, 0, CASE_HUGE, CASE_ZERO};
    c->P = chance(d, 0.2) ? size(d, 40000) : size(d, 3000);
    if (strcmp(c->op, "adamw") == 0) {
        c->flags = maybe(d, 0.5, CASE_ADD) | maybe(d, 0.2, CASE_BARE) | maybe(d, 0.2, CASE_HUGE);
        return;
    }
    c->dtype = DART_F32;
    c->B = chance(d, 0.7) ? between(d, 1, 5) : between(d, 1, 128);
    c->L = between(d, 1, 2);
    c->flags = maybe(d, 0.4, CASE_ADD) | maybe(d, 0.3, CASE_SCALED) | one_of(d, numbers, COUNT_OF(numbers));
    if (c->B < 2) c->flags &= ~CASE_HUGE; /* it is in the second tensor */
}

/* Sequences as they are, ragged, or packed. */
static int sequences(draw *d)
{
    const int all[] = {0, CASE_SEQ, CASE_PACKED};
    return one_of(d, all, COUNT_OF(all));
}

static void draw_mlp(draw *d, conform_case *c)
{
    if (strcmp(c->op, "rope") == 0) {
        c->B = between(d, 1, chance(d, 0.8) ? 6 : 40);
        c->L = size(d, 60);
        c->H = between(d, 1, 6);
        c->P = 2 * at_most(state_size(d, 256) / 2, 128);
        c->N = chance(d, 0.4) ? 2 * between(d, 1, c->P / 2) : 1;
        c->S = size(d, 200);
        c->flags = views(d) | sequences(d) | maybe(d, 0.4, CASE_ADD);
        if (c->flags & CASE_SEQ) c->flags |= maybe(d, 0.2, CASE_FAR);
    } else {
        rows(d, c, 90, 800);
        c->flags = views(d) | (strcmp(c->op, "gelu") == 0 ? maybe(d, 0.5, CASE_ADD) : 0);
    }
    if (is_16bit(c)) c->flags |= maybe(d, 0.25, CASE_MIXED);
}

static void draw_conv(draw *d, conform_case *c)
{
    const bool forward = strcmp(c->op, "conv") == 0;
    c->B = chance(d, 0.85) ? between(d, 1, 6) : between(d, 1, 140);
    c->L = chance(d, 0.15) ? 1 : size(d, 300);
    c->N = chance(d, 0.6) ? 4 : between(d, 2, 8);
    c->P = chance(d, 0.5) ? 16 * between(d, 1, 36) : size(d, 600);
    c->S = size(d, 60);
    c->flags = views(d) | sequences(d) | maybe(d, 0.6, CASE_PARAMS);
    if (forward && !(c->flags & CASE_PACKED)) c->flags |= maybe(d, 0.3, CASE_H);
    if (is_16bit(c)) c->flags |= maybe(d, 0.25, CASE_MIXED);
}

static void draw_choice(draw *d, conform_case *c)
{
    const bool samples = strcmp(c->op, "choice") == 0;
    if (strcmp(c->op, "mark_ids") == 0) {
        c->dtype = DART_F32;
        c->B = between(d, 1, 12);
        c->L = size(d, 300);
        c->P = size(d, 3000);
        c->S = size(d, 40);
        c->flags = sequences(d);
        return;
    }
    c->L = size(d, 45);
    c->P = chance(d, 0.1) ? size(d, 60000) : size(d, 3000);
    c->N = chance(d, 0.2) ? 0 : samples ? size(d, 200) : between(d, 1, 32);
    c->S = samples ? between(d, 1, 2) : 1;
    c->flags = views(d) | (samples ? 0 : maybe(d, 0.1, CASE_ZERO));
}

static void draw_attention(draw *d, conform_case *c)
{
    const bool backward = strcmp(c->op, "attention_backward") == 0;
    const int numbers[] = {0, 0, 0, 0, CASE_FAR, CASE_HUGE, CASE_ZERO};
    c->P = state_size(d, backward ? 128 : 256);
    c->L = size(d, 200);
    c->flags = views(d);
    if (backward) {
        c->S = size(d, 40);
        c->flags |= sequences(d) | maybe(d, 0.3, CASE_PARAMS);
        if (c->dtype == DART_F32) c->flags |= maybe(d, 0.2, CASE_FAR);
    } else if (chance(d, 0.25)) {
        c->S = size(d, 40);
        c->flags |= CASE_PACKED;
    } else {
        c->flags |= one_of(d, numbers, COUNT_OF(numbers)) | maybe(d, 0.3, CASE_PARAMS) | maybe(d, 0.35, CASE_STEP);
        if (c->flags & CASE_STEP) c->L = 1;
        if (chance(d, 0.6)) {
            c->flags |= CASE_STORED | maybe(d, 0.85, CASE_SEQ);
            c->S = size(d, 150);
            c->N = chance(d, 0.5) ? between(d, 1, 9) : size(d, 100);
            /* without positions a piece begins with token 0, and the first block has all of it */
            if (c->flags & CASE_SEQ) c->flags |= maybe(d, 0.2, CASE_LIMITS) | maybe(d, 0.4, CASE_RUNS);
            /* the longest sequence of several needs more than S tokens */
            if (c->flags & CASE_LIMITS) {
                if (c->B < 4) c->B = 4;
                c->N = at_most(c->N, c->S);
            }
        }
    }
    if (is_16bit(c)) c->flags |= maybe(d, 0.25, CASE_MIXED);
}

static void draw_scan(draw *d, conform_case *c)
{
    const bool backward = strcmp(c->op, "ssd_backward") == 0;
    const int kind = sequences(d), steps[] = {0, 0, 0, CASE_DT, CASE_DT | CASE_WIDE, CASE_LIMITS};
    if (chance(d, 0.12)) { /* so many groups that workgroups walk over their chunks */
        c->H = c->G * between(d, 1, 4);
        c->B = 64 / c->G + between(d, 0, 3);
        c->L = between(d, 1, 40);
        c->S = chance(d, 0.5) ? 16 : between(d, 1, 33);
        c->N = chance(d, 0.6) ? 16 : between(d, 1, 33);
        c->P = chance(d, 0.7) ? 16 * between(d, 1, 4) : between(d, 1, 65);
        c->flags = views(d) | maybe(d, 0.9, CASE_PARAMS) | one_of(d, steps, COUNT_OF(steps)) | maybe(d, 0.85, CASE_BARE);
        if (backward) c->flags = (c->flags & ~CASE_BARE) | maybe(d, 0.3, CASE_BARE) | maybe(d, 0.5, CASE_ADD);
        else if (is_16bit(c)) c->flags |= maybe(d, 0.2, CASE_FORM);
        if (is_16bit(c)) c->flags |= maybe(d, 0.2, CASE_MIXED);
        c->flags |= maybe(d, 0.3, CASE_QUIET);
        return;
    }
    c->flags = views(d) | kind | maybe(d, 0.7, CASE_PARAMS) | maybe(d, 0.5, CASE_H);
    if (is_16bit(c)) c->flags |= maybe(d, 0.2, CASE_MIXED);
    if (backward) {
        c->flags |= maybe(d, 0.4, CASE_ADD) | maybe(d, 0.3, CASE_BARE) | maybe(d, 0.3, CASE_STORED);
        c->flags |= one_of(d, steps, COUNT_OF(steps));
        return;
    }
    if (kind == CASE_PACKED) return;
    const double special = uniform(d);
    if (special < 0.06 && is_16bit(c) && kind == 0 && !(c->flags & CASE_MIXED)) {
        /* One chunk, and sums below 2^8; entering states that are stored as they are. */
        c->flags |= CASE_DT | CASE_EXACT;
        if (c->dtype != DART_BF16) c->flags &= ~CASE_H;
        c->N = at_most(c->N, 128);
        c->L = at_most(c->L, 16384 / c->N);
        c->S = c->L + between(d, 0, 9);
        return;
    }
    if (special < 0.14 && is_16bit(c) && kind == 0) {
        c->flags |= CASE_LARGE | maybe(d, 0.3, CASE_BARE);
        c->N = at_most(c->N, 128); /* y fits */
        return;
    }
    c->flags |= one_of(d, steps, COUNT_OF(steps)) | maybe(d, 0.3, CASE_BARE);
    if (kind == CASE_SEQ && chance(d, 0.6)) c->flags |= CASE_OPEN | CASE_H | maybe(d, 0.5, CASE_STORED);
    if (c->flags & CASE_STORED) c->flags |= maybe(d, 0.4, CASE_RUNS);
    if (chance(d, 0.25)) {
        c->flags |= CASE_STEP;
        c->L = 1;
        return;
    }
    if (!(c->flags & CASE_STORED)) c->flags |= maybe(d, 0.25, CASE_FORM);
    if (c->dtype == DART_BF16 && !(c->flags & (CASE_FORM | CASE_BARE))) c->flags |= maybe(d, 0.3, CASE_SCALED);
}

static void draw_sma(draw *d, conform_case *c)
{
    const bool backward = strcmp(c->op, "sma_backward") == 0;
    const int kind = sequences(d), numbers[] = {0, 0, 0, 0, CASE_TINY, CASE_HUGE, CASE_ZERO, CASE_FAR};
    c->flags = views(d) | kind | maybe(d, 0.5, CASE_STORED);
    if (is_16bit(c)) c->flags |= maybe(d, 0.2, CASE_MIXED);
    if (backward) {
        c->flags |= maybe(d, 0.4, CASE_ADD) | maybe(d, 0.15, CASE_ZERO);
        if (c->dtype == DART_F32 && !(c->flags & CASE_ZERO)) c->flags |= maybe(d, 0.3, chance(d, 0.5) ? CASE_TINY : CASE_HUGE);
        return;
    }
    if (kind == CASE_PACKED) return;
    c->flags |= one_of(d, numbers, COUNT_OF(numbers));
    if ((c->flags & CASE_HUGE) && c->dtype == DART_F16 && !(c->flags & CASE_MIXED)) c->flags &= ~CASE_HUGE; /* f16 could not hold r */
    if (chance(d, 0.3)) {
        c->flags |= CASE_STEP;
        c->L = 1;
    }
}

static void draw_mixer(draw *d, conform_case *c)
{
    const bool quantised = strcmp(c->op, "mixer_quantised") == 0;
    c->B = chance(d, 0.4) ? 1 : between(d, 1, 24);
    c->L = chance(d, 0.5) ? 16 * between(d, 1, 50) : size(d, 800);
    c->S = chance(d, 0.7) ? between(d, 1, 20) : chunk(d, 20);
    c->flags = maybe(d, 0.85, CASE_SEQ) | maybe(d, 0.6, CASE_PARAMS) | maybe(d, 0.4, CASE_ADD);
    if (c->flags & CASE_SEQ) c->flags |= maybe(d, 0.8, CASE_OPEN);
    if (is_16bit(c)) c->flags |= maybe(d, 0.5, CASE_MIXED);
    if (!quantised) return;
    c->L = 32 * between(d, 1, 24);
    c->P = 8 * at_most((c->P + 4) / 8, 32);
    while (c->H * c->P % 32 != 0) c->H += c->G; /* blocks of out_proj */
    c->flags |= maybe(d, 0.2, CASE_ZERO) | maybe(d, 0.2, CASE_HUGE);
}

/* Mostly what the one launch takes. */
static void draw_layers(draw *d, conform_case *c)
{
    draw_mixer(d, c);
    c->flags &= ~CASE_ADD;
    if (chance(d, 0.1)) return;
    c->B = c->G = 1;
    c->N = 128;
    c->P = 64;
    c->L = 256 * between(d, 1, 4);
    c->H = 4 * between(d, 1, c->L / 128); /* at most 2 L channels of y */
    c->dtype = chance(d, 0.5) ? DART_F16 : DART_BF16;
}

static void draw_windows(draw *d, conform_case *c)
{
    draw_layers(d, c);
    c->G = 1;
    c->N = 8 * at_most((c->N + 4) / 8, 32);
    c->P = 8 * at_most((c->P + 4) / 8, 32);
    c->B = chance(d, 0.3) ? between(d, 33, 40) : between(d, 1, 32);
    c->L = 256 * between(d, 1, 2);
    c->H = 8 * between(d, 1, 2);
    c->S = chance(d, 0.5) ? between(d, 1, 40) : between(d, 40, 300);
    c->flags = CASE_SEQ | (c->flags & (CASE_OPEN | CASE_PARAMS));
    if (chance(d, 0.9)) c->dtype = DART_BF16;
}

static void draw_window(draw *d, conform_case *c)
{
    c->N = 8 * at_most((c->N + 4) / 8, 32);
    c->P = 8 * at_most((c->P + 4) / 8, 32);
    c->B = between(d, 1, 7);
    c->L = between(d, 1, chance(d, 0.6) ? 12 : 70);
    c->S = chunk(d, c->L);
    c->flags = CASE_SEQ | maybe(d, 0.6, CASE_PARAMS) | maybe(d, 0.7, CASE_OPEN);
    if (c->flags & CASE_OPEN) c->flags |= maybe(d, 0.4, CASE_RUNS);
    if (is_16bit(c)) c->flags |= maybe(d, 0.4, CASE_MIXED);
}

/* Numbers that the judge works through, about: what it is asked for is to take it a second at most. */
static double work(const conform_case *c)
{
    const double tokens = (double)c->B * c->L, state = (double)c->H * c->N * c->P;
    const double before = (c->flags & CASE_SEQ) != 0 ? c->B / 2.0 + 2 : 0, M = (double)c->L / c->S + 1 + before; /* chunks */
    const char *op = c->op;
    enum { TAPE = 20 }; /* what a number on the tape costs */
    if (strncmp(op, "mixer", 5) == 0)
        return 3.0 * c->B * c->L * (3.0 * c->H * c->P + 3.0 * c->G * c->N) + c->B * (5 + c->B / 2.0) * state * 6;
    if (strcmp(op, "window") == 0) return tokens * state * 3;
    if (strcmp(op, "ssd") == 0) return tokens * state * 2 + (M + 3) * c->B * state * 4;
    if (strcmp(op, "sma") == 0) return tokens * state * M * 2 + (M + 1) * c->B * state * 12;
    if (strcmp(op, "ssd_backward") == 0) return tokens * state * TAPE * 1.5 + M * c->B * state * 6;
    if (strcmp(op, "sma_backward") == 0) return tokens * state * M * TAPE + M * c->B * state * TAPE;
    if (strcmp(op, "attention") == 0) return tokens * c->H * c->P * (c->L + c->N + c->S * before) * 2;
    if (strcmp(op, "attention_backward") == 0) return tokens * c->L * c->H * c->P * TAPE;
    if (strcmp(op, "conv") == 0) return tokens * c->P * c->N * 2;
    if (strcmp(op, "conv_backward") == 0) return tokens * c->P * c->N * TAPE;
    if (strcmp(op, "linear_backward") == 0 || strcmp(op, "cross_entropy") == 0) return (double)c->L * c->N * c->P * TAPE / 4;
    if (strcmp(op, "log_probs") == 0) return (double)c->L * c->P * (c->N + 4);
    if (strcmp(op, "choice") == 0) return (double)c->L * c->P * 40;
    if (strncmp(op, "linear", 6) == 0 || strcmp(op, "norm_linear") == 0) return (double)c->L * c->N * c->P;
    return tokens * c->H * c->P * 10;
}

/* Sums of products may cancel. They are judged together with others of their tensor, against the size of all: these are the elements of the smallest
 * such tensor, of which there have to be some. */
static uint64_t sums(const conform_case *c)
{
    const char *op = c->op;
    if (strncmp(op, "mixer", 5) == 0) return (uint64_t)c->B * c->L;
    if (strncmp(op, "ssd", 3) == 0 || strncmp(op, "sma", 3) == 0 || strncmp(op, "attention", 9) == 0) return (uint64_t)c->B * c->L * c->H * c->P;
    if (strcmp(op, "linear_backward") == 0) return (uint64_t)c->N * (c->L < c->P ? c->L : c->P);
    if (strncmp(op, "linear", 6) == 0 || strcmp(op, "norm_linear") == 0) return (uint64_t)c->L * c->P;
    return UINT64_MAX;
}

/* Of the first tensors that a case makes, which are all that may lie apart or anywhere, one does. */
static void draw_place(draw *d, conform_case *c)
{
    static const struct { const char *op; uint32_t free; } places[] = {
        {"norm", 2}, {"layer_norm", 3}, {"gated_norm", 3}, {"linear", 3}, {"linear_bias", 3}, {"linear_backward", 3}, {"cross_entropy", 2},
        {"conv", 2}, {"conv_backward", 3}, {"ssd", 5}, {"ssd_backward", 6}, {"sma", 3}, {"sma_backward", 4}, {"attention", 3},
        {"attention_backward", 4},
    };
    for (size_t i = 0; i < COUNT_OF(places); i++) {
        if (strcmp(places[i].op, c->op) != 0 || (c->flags & CASE_PACKED) || !chance(d, 0.3)) continue;
        if (chance(d, 0.5)) c->moved = between(d, 1, places[i].free);
        else c->apart = between(d, 1, places[i].free);
    }
}

void conform_draw_case(const char *op, uint64_t seed, uint64_t number, conform_case *c)
{
    static const struct { const char *begin; void (*draw)(draw *d, conform_case *c); } kinds[] = {
        {"embed_backward", draw_dense_backward}, {"norm_backward", draw_dense_backward}, {"gated_norm_backward", draw_dense_backward},
        {"linear_backward", draw_dense_backward}, {"linear_quantised", draw_quantised}, {"embed_quantised", draw_quantised},
        {"cross_entropy", draw_loss}, {"grad_norm", draw_optim}, {"adamw", draw_optim}, {"rope", draw_mlp}, {"gelu", draw_mlp},
        {"swiglu", draw_mlp}, {"convert", draw_dense}, {"conv", draw_conv}, {"choice", draw_choice}, {"mark_ids", draw_choice},
        {"log_probs", draw_choice},
        {"attention", draw_attention}, {"ssd", draw_scan}, {"sma", draw_sma}, {"mixer_layers", draw_layers}, {"mixer_windows", draw_windows},
        {"mixer", draw_mixer},
        {"window", draw_window},
        {"", draw_dense},
    };
    enum { USUAL_WORK = 20000000, MOST_WORK = 150000000, LEAST_SUMS = 8 };
    for (const char *at = op; *at != '\0'; at++) seed = 31 * seed + (unsigned char)*at;
    draw d = {.seed = (uint64_t)(conform_uniform_at(seed, number) * 0x1p53)};
    const double most = chance(&d, 0.9) ? USUAL_WORK : MOST_WORK;
    do {
        *c = (conform_case){.op = op, .B = 1, .L = 1, .H = 1, .G = 1, .N = 1, .P = 1, .S = 1, .dtype = (dart_dtype)between(&d, DART_F32, DART_BF16)};
        const bool of_sequences = strncmp(op, "ssd", 3) == 0 || strncmp(op, "sma", 3) == 0 || strncmp(op, "attention", 9) == 0 ||
                                  strncmp(op, "mixer", 5) == 0 || strcmp(op, "window") == 0;
        if (of_sequences) {
            c->B = chance(&d, 0.85) ? between(&d, 1, 6) : between(&d, 7, 30);
            c->L = size(&d, 300);
            draw_heads(&d, c);
            if (strncmp(op, "attention", 9) != 0) {
                draw_state(&d, c);
                c->S = chunk(&d, c->L);
            }
        }
        size_t k = 0;
        while (strncmp(kinds[k].begin, op, strlen(kinds[k].begin)) != 0) k++;
        kinds[k].draw(&d, c);
        draw_place(&d, c);
    } while (work(c) > most || sums(c) < LEAST_SUMS);
}

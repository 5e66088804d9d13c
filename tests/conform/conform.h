/* Conformance: cases of every op, on a device, against the fp64 oracle.
 *
 * A case is run with tensors of its own in buffers with guard bands; outputs start as NaN. Everything an op writes is
 * compared, stages included, and everything that it must not write must still hold its first bits.
 */
#ifndef DARTLM_CONFORM_H
#define DARTLM_CONFORM_H

#include "dartlm/dartlm.h"

#include <stdio.h>

/* What a case varies besides its sizes. */
enum {
    CASE_SEQ = 1 << 0,      /* positions and ragged counts */
    CASE_OPEN = 1 << 1,     /* ssd: carried open chunk (needs SEQ) */
    CASE_H = 1 << 2,        /* ssd: initial state */
    CASE_PARAMS = 1 << 3,   /* ssd: dt_bias and d; conv: bias */
    CASE_STEP = 1 << 4,     /* the single-token plan */
    CASE_WIDE = 1 << 5,     /* ssd: steps from 1e-4 to 20 in one chunk */
    CASE_DT = 1 << 6,       /* ssd: dt is the step */
    CASE_VIEW = 1 << 7,     /* strided views at odd offsets */
    CASE_TINY = 1 << 8,     /* sma: memories of size 1e-6 */
    CASE_HUGE = 1 << 9,     /* sma: memories of size 1e4 */
    CASE_ZERO = 1 << 10,    /* sma: one memory is all zero */
    CASE_FAR = 1 << 11,     /* sma: two memories whose logits lie 100 apart */
    CASE_STORED = 1 << 12,  /* memories in runs, stored by ssd (in place when there is one run) or sma_append; linear: y in f32 */
    CASE_ADD = 1 << 13,     /* linear: add; gated_norm: with r and gate; norm: gathered rows; mixer: the last rows of two matrices lie apart */
    CASE_MIXED = 1 << 14,   /* activations f32, weights and memories of the case's dtype */
    CASE_LIMITS = 1 << 15,  /* ssd: step limits */
    CASE_FORM = 1 << 16,    /* ssd: memories raw where x has 16 bits and normalised where it is f32 */
    CASE_RUNS = 1 << 17,    /* with STORED: two runs */
    CASE_SCALED = 1 << 18,  /* ssd: entering states normalised in bf16, too, where they are raw otherwise */
    CASE_LARGE = 1 << 19,   /* ssd: x as large as f16 holds, b, c and d so small that y fits */
    CASE_EXACT = 1 << 20,   /* ssd: small whole numbers without decay, so that 8 digits hold all that becomes y, and y */
    CASE_BARE = 1 << 21,    /* ssd: nobody asks for what passes between the stages */
    CASE_PACKED = 1 << 22,  /* B sequences of at most L tokens, packed */
    CASE_PITCHED = 1 << 23, /* strided views whose rows start at multiples of 8 elements */
    CASE_GPU = 1 << 24,     /* so large that rows for many tiles take it on a GPU: not for processors */
    CASE_EIGHT = 1 << 25,   /* the tensor `moved` starts eight elements later, not one: a multiple of 16 bytes, and of nothing larger */
    CASE_QUIET = 1 << 26    /* ssd: nobody reads y of the first tokens; ssd_backward: up_y is 0 there */
};

typedef struct conform_case {
    const char *op;
    uint32_t B, L, H, G, N, P, S;
    int flags;
    dart_dtype dtype;
    /* 1 + the number of a tensor, in the order in which the runner makes them; 0: none. That one starts an element later (or eight), or has its
     * rows an element farther apart, where it may. */
    uint32_t moved, apart;
} conform_case;
/* "ssd B1 L77 H4 G1 N16 P64 S16 f16 seq view", with "moved2" and "apart3" at its end where tensors are; text of at least 160 bytes. */
void conform_name(const conform_case *c, char *text, size_t size);
/* The case of such a name, its words in this order; false: there is no such case. */
bool conform_parse(const char *name, conform_case *c);

/* One compared tensor. Errors relative to the tensor (L2, L-infinity) and to the row (L2); the share of the tolerance is the
 * largest of the three, each against the same tolerance but rows, which get four times as much. */
typedef struct conform_result {
    char tensor[24];
    double l2, linf, row, tolerance, share;
    uint64_t worst_row;
    uint64_t element;     /* the one that is farthest off, or the first that is broken: row * width + column */
    double got, want;     /* there */
    bool broken; /* NaN where there should be a number, or a write where there should be none */
    char note[96];
    double against_first; /* L2 distance from the first device's tensor, relative to size */
    double slack;         /* absolute L2 error that subnormal storage explains */
    double size;          /* L2, of what errors are relative to */
    uint64_t digest;      /* of the bits that the device left in the tensor's buffer */
    double *values;       /* what the device wrote, NaN where nothing; until conform_release */
    uint64_t values_count;
} conform_result;

enum { CONFORM_MAX_RESULTS = 16 };
typedef struct conform_outcome {
    bool ran;
    dart_status status;      /* when it did not run: why */
    char text[256];
    char variants[512];      /* "ssd_decay[base] ssd_memory[base] ..." */
    conform_result results[CONFORM_MAX_RESULTS];
    uint32_t results_count;
    bool passed;
    uint64_t inputs; /* digest of all tensors' bits before the run: reports compare only where it is the same */
    uint32_t tensors; /* that the case has */
    uint64_t ns;      /* of the op on the device, of its last run; 0: it did not run */
    char dumped[300];  /* the file that holds the tensors, "" without one */
} conform_outcome;
/* A run of a case: how rows are chosen, NULL as the device does, and what comes out. */
struct stream_choice;
typedef struct conform_run {
    const struct stream_choice *choice;
    conform_outcome *outcome;
} conform_run;
/* Gives the next run of a case, the one before having ended; false: there is none. */
typedef bool conform_take(void *user, conform_run *run);

/* Runs the case twice on the device and compares; the second run must give the same bits. */
void conform_run_case(dart_device *device, const conform_case *c, uint64_t seed, conform_outcome *outcome);
void conform_release(conform_outcome *outcome);

typedef struct conform_options {
    const char *const *devices; /* specs; NULL: every usable device of the context */
    uint32_t devices_count;
    const char *filter;         /* only cases whose name contains this */
    const char *without;        /* no cases whose name contains this; NULL: all of them */
    const char *skip;           /* a variant that is not asked for by name; NULL: none */
    const char *variant;        /* of those that are asked for by name only this one; NULL: all */
    bool list;                  /* only print the names of the cases */
    const char *only;           /* the name of a case, which need not be in the list: nothing but that; NULL: all of the list */
    uint32_t random;            /* so many cases that `seed` draws, instead of the list; 0: the list */
    bool json, verbose;
    const char *dump;           /* a folder for the tensors of cases that fail, the first few of them; NULL: none */
    void (*opened)(dart_device *device); /* for tests: called with each device before its first case; may be NULL */
    FILE *report;               /* the JSON besides what goes to `out`; NULL: none */
    bool no_matrix;             /* the devices count as lacking cooperative matrices */
    bool no_resident;           /* the devices count as lacking DART_CAP_RESIDENT */
    bool minimum_limits;        /* as in dart_device_options */
    uint32_t cut, margin, backwards, multiprocessors; /* the same */
    uint64_t seed;              /* of the inputs of all cases */
    uint32_t seeds;             /* so many times, with the seeds that follow; 0: once */
    bool draw;                  /* only some cases, each in some variants: so many that every row runs whose turn it is */
    uint64_t draw_seed;         /* which; draw_turns seeds, one after the other, have every row that all cases run */
    uint32_t draw_turns;        /* 0: 1 */
    uint32_t jobs;              /* cases and variants that run at the same time; 0: one a core, on a processor 1 */
    void (*progress)(void *user, const char *text); /* may be NULL */
    void *progress_user;
    bool (*go_on)(void *user);  /* asked before each case, may be NULL: false ends the run with what there is */
    void *go_on_user;
    const char *commit, *system; /* for the report: what was built, and what it runs on */
} conform_options;
/* Every case on every device in every eligible variant, then each device against the first one; prints a table or JSON. Returns the
 * number of failures; cases that did not run are listed with the reason. */
int conform_all(dart_context *context, const conform_options *options, FILE *out);

#endif

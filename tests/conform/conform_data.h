/* Tensors of a case: made from a seed, kept in double as stored, compared when the op is done. */
#ifndef DARTLM_CONFORM_DATA_H
#define DARTLM_CONFORM_DATA_H

#include "conform_dump.h"
#include "conform_numbers.h"

enum { MAX_TENSORS = 40 };

/* rows x width elements inside a larger buffer. */
typedef struct conform_tensor {
    dart_tensor t;
    uint64_t rows, width, total; /* total: elements of the buffer, guards included */
    double *values;              /* rows x width: what was written, as stored */
    void *initial;               /* the buffer's first bytes, to be restored and compared; once it has run what the device left */
    void *original;              /* the first bytes again, for the next run of the case; NULL: initial has them */
    bool held, changed;          /* the buffer holds `initial`; the run changed it */
    uint64_t digest;             /* of the buffer's bytes after the run */
} conform_tensor;

/* A case with a seed on a device: tensors and what is expected of them are made once, and serve all of its runs. */
typedef struct conform_data {
    dart_device *device;
    const conform_case *c;
    uint64_t seed, drawn;     /* how many of the seed's numbers the case has taken */
    conform_numbers *numbers; /* of the seed, or NULL */
    conform_tensor *tensors[MAX_TENSORS];
    uint32_t tensors_count;
    conform_dump *dump; /* NULL: tensors are not kept */
    bool plan;          /* nothing runs and nothing is compared: which rows are launched is all that is asked. Inputs are 0 */
    conform_take *take;
    void *take_user;
    dart_status status; /* sticky, until the run ends */
    char text[256];     /* why */
    /* Of the run at hand. */
    dart_stream *stream;
    conform_outcome *outcome; /* NULL between runs */
    struct {                  /* as conform_next was called first */
        uint32_t tensors;
        dart_status status;
        uint64_t inputs; /* the digest of their bits, 0 until it is asked for */
        char text[256];
    } made;
} conform_data;

double conform_uniform(conform_data *d, double low, double high);
double conform_normal(conform_data *d);

/* Does the case vary that (CASE_...)? */
static inline bool conform_has(const conform_data *d, int flag) { return (d->c->flags & flag) != 0; }
/* Did a row whose "kernel[variant]" begins like that run? */
bool conform_ran(const conform_data *d, const char *row);
/* That many of the value, to be freed. */
double *conform_filled(uint64_t count, double value);

/* Value i of a tensor. */
typedef double (*conform_generator)(conform_data *d, uint64_t i);
double conform_unit(conform_data *d, uint64_t i);  /* standard normal */
double conform_a_log(conform_data *d, uint64_t i); /* log of 1 to 16 */
double conform_bias(conform_data *d, uint64_t i);  /* of dt: -4 to 0 */

/* A tensor with values; view: rows farther apart than their width, with CASE_VIEW (odd offset) and CASE_PITCHED only. */
conform_tensor *conform_input(conform_data *d, dart_dtype dtype, uint64_t rows, uint64_t width, bool view, conform_generator make);
/* A tensor of NaN. */
conform_tensor *conform_output(conform_data *d, dart_dtype dtype, uint64_t rows, uint64_t width, bool view);
/* What normalised rows and their scales stand for once the op is done: f32, rows of the first cut into as many parts as
 * scale has columns. Rows that were not written stay so. */
conform_tensor *conform_scaled(conform_data *d, const conform_tensor *tensor, const conform_tensor *scale);
/* i32 values. */
conform_tensor *conform_ints(conform_data *d, uint64_t rows, uint64_t width, const int32_t *values);
/* The values of a tensor replaced, rounded to its type; values then holds what is stored. NaN: left as it is. */
void conform_set(conform_data *d, conform_tensor *tensor, const double *values);
/* Where the op may write what it likes, or nothing: rows `first` and later, so many, count as not written. Once it has run. */
void conform_disregard(conform_tensor *tensor, uint64_t first, uint64_t count);
/* CASE_QUIET: so many tokens of each sequence, at least a chunk where there are several, at most all; else 0. */
uint32_t conform_quiet(conform_data *d);
/* Column `column` of a packed tensor, as a tensor of its own. */
conform_tensor conform_column(const conform_tensor *tensor, uint64_t column);
dart_tensor conform_view(const conform_tensor *tensor); /* absent for NULL */
dart_dtype conform_activation(const conform_case *c);
/* Where element i of a row lies, in elements of the buffer. */
uint64_t conform_place(const conform_tensor *tensor, uint64_t row, uint64_t i);
/* Row r of what the tensor's buffer holds. */
void conform_read_row(const conform_tensor *tensor, uint64_t r, float *values);
/* Room for a row, for free(). */
float *conform_row_of_floats(const conform_tensor *tensor);

/* What a result may be off by, relative to the tensor (terms may say more). 32-bit results: bound + operands, in L2 and in the largest element.
 * 16-bit results: in L2, bound and twice what as many independent roundings as operands counts, and the result's own, would err by;
 * in the largest element, bound, operands and one rounding. bound and operands 0: not more than rounding the exact result once. */
typedef struct conform_limits {
    double bound;    /* of the work in f32: conform_tolerance */
    double operands; /* of operands rounded to 16 bits */
    bool shared;     /* elements of a row have a factor in common that operands made, so that their errors are not independent of one another */
    double floor;    /* absolute, of an element: half a step of subnormal numbers */
    const double *terms; /* of each element, the root of the sum of the squares of the terms that it adds up: what it would be like if
                            they did not cancel. Errors of an element are relative to this where it is less. NULL: to the element. */
    const double *rounded; /* what one rounding leaves, where the tensor does not hold it itself; NULL: the tensor's type says */
    dart_dtype rounded_to; /* the type of that */
} conform_limits;

/* expected: rows x width; NaN: must not have been written. */
void conform_compare_within(conform_data *d, const char *name, const conform_tensor *tensor, const double *expected, const conform_limits *limits);
/* The same, with operands as they are. */
void conform_compare(conform_data *d, const char *name, const conform_tensor *tensor, const double *expected, double bound, double floor);
/* Logarithms of sums of exp(score). An absolute error of a score is one of the same size in the logarithm, however close to 0 that is. */
void conform_compare_lse(conform_data *d, const conform_tensor *lse, const double *expected, double bound);
void conform_compare_ints(conform_data *d, const char *name, const conform_tensor *tensor, const int32_t *expected);
/* Makes the status of the run, unless it has one. */
void conform_fail(conform_data *d, dart_status status, const char *text);
/* Frees all tensors but the first so many. */
void conform_forget(conform_data *d, uint32_t kept);

/* Units of the last place of f32 that the op may lose; derivations beside the table. */
typedef enum conform_bound { BOUND_DOT, BOUND_NORM, BOUND_CONV, BOUND_DECAY, BOUND_SCAN, BOUND_SMA, BOUND_SMA_STORE } conform_bound;
double conform_tolerance(conform_bound bound, uint64_t terms);
/* The largest relative error of rounding to the type once; 0 for f32. */
double conform_rounding(dart_dtype stored);
/* What an f32 operand of a matrix loses at most as the sum of two 16-bit numbers (shaders/ssd/walk_matrix.glsl), relative to it. */
double conform_split_rounding(dart_dtype stored);
double conform_rounded(dart_dtype stored, double value);
/* Half the smallest subnormal step of the type. */
double conform_floor(dart_dtype stored);

/* Op runners: make the tensors, work out what is expected, and then, as long as there are runs, record on d->stream, execute, compare:
 *
 *     while (conform_next(d)) {
 *         dart_op(d->stream, ...);
 *         if (!conform_execute(d)) continue;
 *         conform_compare(d, ...);
 *     }
 *
 * Each run finds the tensors that were there before the first one as they were; those that it makes itself are gone with it. Random numbers are for
 * what comes before the runs. */
typedef void (*conform_runner)(conform_data *d);
void conform_dense(conform_data *d);
void conform_weights(conform_data *d);
void conform_dense_backward(conform_data *d);
void conform_conv(conform_data *d);
void conform_choice(conform_data *d);
void conform_mark_ids(conform_data *d);
void conform_log_probs(conform_data *d);
void conform_ssd(conform_data *d);
void conform_ssd_backward(conform_data *d);
void conform_sma(conform_data *d);
void conform_sma_backward(conform_data *d);
void conform_attention(conform_data *d);
void conform_mixer(conform_data *d);
void conform_window(conform_data *d);
void conform_attention_backward(conform_data *d);
void conform_conv_backward(conform_data *d);
void conform_loss(conform_data *d);
void conform_optim(conform_data *d);
void conform_mlp(conform_data *d);
bool conform_next(conform_data *d);
/* Submits and waits, twice, from the same initial contents; the second time must leave the same bits. False where there is nothing to compare: it
 * failed, or was planned only. */
bool conform_execute(conform_data *d);

#endif

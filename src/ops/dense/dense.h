/* What ops of other families share with those on rows: parts of operands that fit a binding, sums over rows, products. */
#ifndef DART_DENSE_H
#define DART_DENSE_H

#include "runtime/op.h"

/* Rows of the operand that one binding can hold, at least 1 and at most all. */
uint32_t dense_rows_that_fit(const op_call *call, const op_operand *operand);
/* `rows` rows of the operand from row `first` on. */
op_operand dense_slice(const op_operand *operand, uint32_t first, uint32_t rows);
/* The slice's columns from `column` on, `width` of them. */
op_operand dense_columns(const op_operand *operand, uint32_t first, uint32_t rows, uint32_t column, uint32_t width);
/* Elements from the operand's first one to the end of its buffer: rows that an index tensor names may lie anywhere in them. */
uint64_t dense_rest(const op_operand *operand);

/* Inputs up to which linear and its gradient of weight have rows of the table for short rows of x: three tiles of 64. */
enum { DENSE_SHORT_INPUTS = 192 };

/* Traits of a call of a norm of rows of that width. eights: all tensors allow words of 16 bytes. */
static inline uint32_t dense_row_traits(bool eights, uint32_t width)
{
    return (eights ? FITS_TILES : 0) | (width <= 256 ? FITS_DENSE_W256 : 0) | (width <= 2048 ? FITS_DENSE_W2048 : 0);
}

/* y (+)= the sum of the rows of partial, packed f32 scratch of as many columns as y has elements, in an order that depends on its shape only. */
void dense_sum(op_call *call, const op_operand *partial, const op_operand *y, bool add);
/* The sums of the rows of parts of x, which is packed f32, a row each in scratch memory: by one launch of many tiles. Parts depend on shapes only. */
op_operand dense_sum_parts(op_call *call, const op_operand *x);

/* Every element becomes 0. */
void dense_clear(op_call *call, const op_operand *y);
/* y = x in the dtype of y. flags: of a layout; with HAS_SEQ, rows are those of sequences of L tokens, and rows past their counts stay as they are. */
void dense_convert(op_call *call, const op_operand *x, const op_operand *y, const op_operand *seq, uint32_t flags, uint32_t L);

/* A weight of rows x width numbers, as an operand: that of a quantised one has rows of bytes. */
op_operand dense_weight(const dart_tensor *weight, uint64_t rows, uint32_t width);
static inline bool dense_is_quantised(const op_operand *weight) { return weight->of.dtype == DART_Q8 || weight->of.dtype == DART_Q4; }
/* Fails the stream where a quantised weight cannot have that width. */
bool dense_check_quantised(op_call *call, const dart_tensor *weight, uint32_t width);
/* The launches of dart_linear and dart_embed with quantised weights. */
void dense_linear_quantised(op_call *call, const op_operand *x, const op_operand *weight, const op_operand *y, bool add);
void dense_embed_quantised(op_call *call, const op_operand *ids, const op_operand *weight, const op_operand *y);

/* Traits of y = x weight^T, plain or quantised. */
uint32_t dense_linear_traits(const op_call *call, const op_operand *x, const op_operand *weight);
/* The launches of dart_linear and of dart_linear_backward: y (+)= x weight^T;  grad_x (+)= up_y weight;  grad_weight += up_y^T x. */
void dense_linear(op_call *call, const op_operand *x, const op_operand *weight, const op_operand *y, bool add);
void dense_linear_backward_x(op_call *call, const op_operand *up_y, const op_operand *weight, const op_operand *grad_x, bool add);
void dense_linear_backward_weight(op_call *call, const op_operand *up_y, const op_operand *x, const op_operand *grad_weight);
/* y = from + x weight^T in one launch, where there is one that adds up as that of linear does; else false, and nothing was launched. */
bool dense_linear_from(op_call *call, const op_operand *x, const op_operand *weight, const op_operand *from, const op_operand *y);

#endif

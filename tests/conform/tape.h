/* Derivatives of calculations in fp64, by reverse-mode automatic differentiation.
 *
 * A calculation is written down once, as operations on vectors of doubles; the tape keeps every intermediate value. Going back over
 * the tape gives the gradient of sum_i <up_i, out_i> with respect to every vector on it, by the chain rule and the derivatives of the
 * few operations below. The derivative of a model is thus taken of its definition, and no formula of a backward pass is written here.
 *
 * Running out of memory and wrong sizes end the program with a line on stderr. A tape is used by one thread at a time.
 */
#ifndef DARTLM_TESTS_TAPE_H
#define DARTLM_TESTS_TAPE_H

#include <stddef.h>
#include <stdint.h>

typedef struct tape tape;
/* A vector on a tape. */
typedef struct { uint32_t id; } tape_vector;

tape *tape_create(void);
/* Takes the address of the handle, sets it to NULL, accepts NULL. */
void tape_destroy(tape **tape);

/* A vector with these values (NULL: zeros). */
tape_vector tape_input(tape *tape, const double *values, size_t count);
size_t tape_count(const tape *tape, tape_vector v);
/* Until the next operation. */
const double *tape_values(const tape *tape, tape_vector v);

/* Elements first + i stride, i < count. */
tape_vector tape_part(tape *tape, tape_vector v, size_t first, size_t stride, size_t count);
/* The vectors one behind the other. */
tape_vector tape_join(tape *tape, const tape_vector *parts, size_t count);
/* a + b and a b, element by element; b of one element goes with every element of a. */
tape_vector tape_add(tape *tape, tape_vector a, tape_vector b);
tape_vector tape_multiply(tape *tape, tape_vector a, tape_vector b);
/* factor a + term, element by element. */
tape_vector tape_scale(tape *tape, tape_vector a, double factor, double term);
/* The sum of all elements. */
tape_vector tape_sum(tape *tape, tape_vector a);
/* y[n P + p] = a[n] b[p]. */
tape_vector tape_outer(tape *tape, tape_vector a, tape_vector b);
/* y[r N + n] = sum_p matrix[n P + p] v[r P + p], P elements in each of the rows of v. */
tape_vector tape_rows(tape *tape, tape_vector matrix, tape_vector v, size_t rows);
/* y[p] = sum_n v[n] matrix[n P + p], N elements in v. */
tape_vector tape_columns(tape *tape, tape_vector matrix, tape_vector v);

/* A function of one number, and its derivative there. numbers: what the caller gave. */
typedef struct { double value, slope; } tape_point;
typedef tape_point (*tape_function)(double v, const double *numbers);
/* function of every element, with up to two numbers of its own. */
tape_vector tape_apply(tape *tape, tape_vector a, tape_function function, double first, double second);
tape_point tape_exp(double v, const double *numbers);
tape_point tape_log(double v, const double *numbers);
tape_point tape_silu(double v, const double *numbers);
tape_point tape_softplus(double v, const double *numbers);
tape_point tape_power(double v, const double *numbers); /* v ^ first */
/* The nearest number from first to second; the derivative is 1 there, both ends included, and 0 outside. */
tape_point tape_clamp(double v, const double *numbers);

/* Adds up (NULL: zeros) to the gradient of v, before tape_reverse. */
void tape_push(tape *tape, tape_vector v, const double *up);
/* Gradients of everything on the tape. Once. */
void tape_reverse(tape *tape);
/* After tape_reverse. */
const double *tape_gradient(const tape *tape, tape_vector v);
/* After tape_reverse: of each element the sum of the squares of the terms that its gradient adds up, taken over every way from an
 * output to the element. Its root is what the gradient would be like if no terms cancelled: rounding errors are relative to that. */
const double *tape_squares(const tape *tape, tape_vector v);

#endif
